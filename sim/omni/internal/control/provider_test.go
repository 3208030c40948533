package control_test

import (
	"context"
	"sync"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/google/uuid"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/require"
)

const provisioner = cloud + ".ProvisionController"

// script is a provider as small as one can be: each request is provisioned at once and gets a UUID, and is let go of when it
// is torn down.
type script struct {
	w *world
	// byToken leaves the UUID out: it comes from the machine's registration.
	byToken bool
	// patch has it ask for a config patch for each request.
	patch bool
	done  sync.WaitGroup
	// stop ends the provider as a crash does.
	stop func()
}

// provide registers the status of the provider and runs a script until the test ends.
func (w *world) provide(change ...func(*script)) *script {
	w.t.Helper()

	s := &script{w: w}
	for _, c := range change {
		c(s)
	}

	status := infra.NewProviderStatus(cloud)
	status.Metadata().Labels().Set(omni.LabelInfraProviderID, cloud)
	status.TypedSpec().Value.Name = "Fake cloud"
	w.create(status)

	requests := make(chan safe.WrappedStateEvent[*infra.MachineRequest])
	statuses := make(chan safe.WrappedStateEvent[*infra.MachineRequestStatus])
	registrations := make(chan safe.WrappedStateEvent[*infra.MachineRegistration])
	patches := make(chan safe.WrappedStateEvent[*infra.ConfigPatchRequest])

	ctx, cancel := context.WithCancel(w.ctx)

	require.NoError(w.t, safe.StateWatchKind(ctx, w.st, infra.NewMachineRequest("").Metadata(), requests, state.WithBootstrapContents(true)))
	require.NoError(w.t, safe.StateWatchKind(ctx, w.st, infra.NewMachineRequestStatus("").Metadata(), statuses))
	require.NoError(w.t, safe.StateWatchKind(ctx, w.st, infra.NewMachineRegistration("").Metadata(), registrations))
	require.NoError(w.t, safe.StateWatchKind(ctx, w.st, infra.NewConfigPatchRequest("").Metadata(), patches))

	s.done.Go(func() {
		for {
			var id string

			select {
			case <-ctx.Done():
				return
			case event := <-requests:
				id = idOf(event.Resource())
			case event := <-statuses:
				id = idOf(event.Resource())
			case event := <-registrations:
				if registration, err := event.Resource(); err == nil {
					id, _ = registration.Metadata().Labels().Get(omni.LabelMachineRequest)
				}
			case event := <-patches:
				if patch, err := event.Resource(); err == nil {
					id, _ = patch.Metadata().Labels().Get(omni.LabelMachineRequest)
				}
			}

			if id != "" {
				s.reconcile(ctx, id)
			}
		}
	})

	s.stop = func() {
		cancel()
		s.done.Wait()
	}

	stop := w.stop
	w.stop = func() {
		s.stop()
		stop()
	}

	return s
}

func idOf[T resource.Resource](res T, err error) string {
	if err != nil {
		return ""
	}

	return res.Metadata().ID()
}

func (s *script) reconcile(ctx context.Context, id string) {
	request, err := safe.StateGetByID[*infra.MachineRequest](ctx, s.w.st, id)
	if state.IsNotFoundError(err) || ctx.Err() != nil {
		return
	}

	require.NoError(s.w.t, err)

	if request.Metadata().Phase() == resource.PhaseTearingDown {
		s.deprovision(ctx, request)

		return
	}

	if !request.Metadata().Finalizers().Has(provisioner) {
		require.NoError(s.w.t, s.w.st.AddFinalizer(ctx, request.Metadata(), provisioner))
	}

	status, err := safe.StateGetByID[*infra.MachineRequestStatus](ctx, s.w.st, id)

	switch {
	case state.IsNotFoundError(err):
		s.provision(ctx, request)
	case err == nil && status.Metadata().Phase() == resource.PhaseRunning && status.TypedSpec().Value.Id == "":
		s.identify(ctx, status)
	}
}

func (s *script) provision(ctx context.Context, request *infra.MachineRequest) {
	id := request.Metadata().ID()

	status := infra.NewMachineRequestStatus(id)
	*status.Metadata().Labels() = *request.Metadata().Labels()
	status.TypedSpec().Value.Stage = specs.MachineRequestStatusSpec_PROVISIONING
	require.NoError(s.w.t, s.w.st.Create(ctx, status, state.WithCreateOwner(provisioner)))

	if s.patch {
		patch := infra.NewConfigPatchRequest("000-hostname-" + id)
		patch.Metadata().Labels().Set(omni.LabelInfraProviderID, cloud)
		patch.Metadata().Labels().Set(omni.LabelMachineRequest, id)
		require.NoError(s.w.t, patch.TypedSpec().Value.SetUncompressedData([]byte("machine: {}")))
		require.NoError(s.w.t, s.w.st.Create(ctx, patch, state.WithCreateOwner(provisioner)))
	}

	s.update(ctx, status, func(spec *specs.MachineRequestStatusSpec) {
		if !s.byToken {
			spec.Id = uuid.NewSHA1(uuid.NameSpaceOID, []byte(id)).String()
		}

		spec.Stage = specs.MachineRequestStatusSpec_PROVISIONED
		spec.Status = "Provision Complete"
	})
}

// identify takes the UUID from the machine's registration.
func (s *script) identify(ctx context.Context, status *infra.MachineRequestStatus) {
	found, err := safe.StateListAll[*infra.MachineRegistration](ctx, s.w.st,
		state.WithLabelQuery(resource.LabelEqual(omni.LabelMachineRequest, status.Metadata().ID())))
	require.NoError(s.w.t, err)

	if found.Len() == 1 {
		s.update(ctx, status, func(spec *specs.MachineRequestStatusSpec) { spec.Id = found.Get(0).Metadata().ID() })
	}
}

func (s *script) update(ctx context.Context, status *infra.MachineRequestStatus, change func(*specs.MachineRequestStatusSpec)) {
	_, err := safe.StateUpdateWithConflicts(ctx, s.w.st, status.Metadata(), func(res *infra.MachineRequestStatus) error {
		change(res.TypedSpec().Value)

		return nil
	}, state.WithUpdateOwner(provisioner))
	require.NoError(s.w.t, err)
}

func (s *script) deprovision(ctx context.Context, request *infra.MachineRequest) {
	id := request.Metadata().ID()

	for _, ptr := range []resource.Pointer{
		infra.NewConfigPatchRequest("000-hostname-" + id).Metadata(), infra.NewMachineRequestStatus(id).Metadata(),
	} {
		ready, err := s.w.st.Teardown(ctx, ptr, state.WithTeardownOwner(provisioner))
		if state.IsNotFoundError(err) {
			continue
		}

		require.NoError(s.w.t, err)

		if !ready {
			return
		}

		require.NoError(s.w.t, s.w.st.Destroy(ctx, ptr, state.WithDestroyOwner(provisioner)))
	}

	if request.Metadata().Finalizers().Has(provisioner) {
		require.NoError(s.w.t, s.w.st.RemoveFinalizer(ctx, request.Metadata(), provisioner))
	}
}
