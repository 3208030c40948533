package conformance

import (
	"context"
	"fmt"
	"maps"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	siderolinkres "github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"

	talosmeta "github.com/omni-infra/omni-infra-providers/sim/talos/meta"
)

// joinStranger lets a machine of somebody else boot and join, until leave is called.
func (e *env) joinStranger(uuid string, joinConfig func() ([]byte, error)) (leave func()) {
	config, err := joinConfig()
	if err != nil {
		panic(fmt.Errorf("make a join configuration: %w", err))
	}

	ctx, cancel := context.WithCancel(e.ctx)
	before := len(list[*siderolinkres.Link](e))

	e.note("somebody else's machine boots with UUID %s", uuid)
	e.tasks.Go(func() {
		e.world.run(ctx, Guest{UUID: uuid, UserData: string(config), hostname: "stranger"}, &talosmeta.Memory{})
	})
	e.awaitLinks(before + 1)

	return func() {
		cancel()
		e.deleteLink(uuid)
	}
}

// plainJoinConfig returns the join configuration of a machine that no provider has made.
func (e *env) plainJoinConfig() ([]byte, error) {
	token, err := safe.StateGetByID[*siderolinkres.DefaultJoinToken](e.ctx, e.omni.State(), siderolinkres.DefaultJoinTokenID)
	if err != nil {
		return nil, err
	}

	return e.renderJoinConfig(token.TypedSpec().Value.GetTokenId())
}

// awaitLink waits until Omni knows a machine that names the request as its own.
func (e *env) awaitLink(request string) {
	e.await("a machine of "+request+" joins", func() (string, bool) {
		links := list[*siderolinkres.Link](e)

		for _, link := range links {
			if id, ok := link.Metadata().Labels().Get(omni.LabelMachineRequest); ok && id == e.full(request) {
				return "", true
			}
		}

		return fmt.Sprintf("%d machines joined, none of it", len(links)), false
	})
}

// awaitLinks waits until Omni knows that many machines.
func (e *env) awaitLinks(n int) {
	e.await(fmt.Sprintf("%d machines have joined", n), func() (string, bool) {
		links := list[*siderolinkres.Link](e)

		return fmt.Sprintf("%d machines", len(links)), len(links) == n
	})
}

// labels returns the labels of a request and those of its status.
func (e *env) labels(id string) (request, status map[string]string) {
	read := func(md *resource.Metadata) map[string]string {
		r, err := e.state.Get(e.ctx, md)
		if err != nil {
			return nil
		}

		return maps.Clone(r.Metadata().Labels().Raw())
	}

	return read(infra.NewMachineRequest(e.full(id)).Metadata()), read(infra.NewMachineRequestStatus(e.full(id)).Metadata())
}

// requestLabelled makes a request with a label.
func (e *env) requestLabelled(id, key, value string) {
	e.request(id)
	e.do("label a machine request", func(ctx context.Context) error {
		_, err := safe.StateUpdateWithConflicts(ctx, e.state, infra.NewMachineRequest(e.full(id)).Metadata(), func(r *infra.MachineRequest) error {
			r.Metadata().Labels().Set(key, value)

			return nil
		})

		return err
	})
}

// forgetUUID takes the UUID out of a request's status.
func (e *env) forgetUUID(id string) {
	e.editStatus(id, func(s *infra.MachineRequestStatus) { s.TypedSpec().Value.Id = "" })
	e.note("the UUID is taken out of the status of %s", id)
}

// ageOmni takes away what an old Omni does not have: join configurations of providers, and their kind.
func (e *env) ageOmni() {
	e.do("make Omni old", func(ctx context.Context) error {
		st := e.omni.State()

		configs, err := safe.StateListAll[*siderolinkres.ProviderJoinConfig](ctx, st)
		if err != nil {
			return err
		}

		for config := range configs.All() {
			if err := st.Destroy(ctx, config.Metadata(), state.WithDestroyOwner(config.Metadata().Owner())); err != nil {
				return err
			}
		}

		return st.Destroy(ctx,
			resource.NewMetadata(meta.NamespaceName, meta.ResourceDefinitionType, "providerjoinconfigs.omni.sidero.dev", resource.VersionUndefined),
			state.WithDestroyOwner(meta.Owner))
	})
	e.note("Omni is an old one, without join configurations of providers")
}
