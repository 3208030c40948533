package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// foreign returns the machine that a provider on the official library recorded for the request, when the driver can take such
// machines over. The state stays until the request is removed: it says what belongs to the machine when nothing else does, and
// the official provider finds it should the operator go back.
func (p *Provider) foreign(id string) (driver.Adopter, driver.Foreign, bool, error) {
	var f driver.Foreign

	adopter, ok := p.cfg.Driver.(driver.Adopter)
	if !ok {
		return nil, f, false, nil
	}

	state, ok := p.official.get(id)
	if !ok {
		return nil, f, false, nil
	}

	res, err := protobuf.FromResource(state, protobuf.WithoutYAML())
	if err != nil {
		return nil, f, false, fmt.Errorf("read the official provider's state of %q: %w", id, err)
	}

	stored, err := res.Marshal()
	if err != nil {
		return nil, f, false, fmt.Errorf("read the official provider's state of %q: %w", id, err)
	}

	f.Ref, f.State = p.ref(id), stored.GetSpec().GetProtoSpec()

	if request, ok := p.requests.get(id); ok {
		f.Set, _ = request.Metadata().Labels().Get(omni.LabelMachineRequestSet)
	}

	return adopter, f, true, nil
}

// adopt takes over the request's machine from an official provider, if there is one to take over.
//
// The state that the official provider left is the record of what is there, and the mark only says the same once more. So the
// mark comes first, then the request's stage, then our record, which is what ends the adoption: after a crash in between, the
// same is found and written again. A machine with a record and without a mark would be taken for vanished.
func (p *Provider) adopt(ctx context.Context, request *infra.MachineRequest) error {
	id := request.Metadata().ID()

	if rec, ok := p.records.get(id); ok && rec.ours() {
		return nil
	}

	adopter, f, ok, err := p.foreign(id)
	if err != nil || !ok {
		return err
	}

	status, ok := p.statuses.get(id)
	f.Unfinished = !ok || !isProvisioned(status)

	adoption, err := change(ctx, p, p.cfg.CallTimeout, "taking over the official provider's machine", func(ctx context.Context) (driver.Adoption, error) {
		return adopter.Adopt(ctx, f)
	})

	switch {
	case err == nil:
	case driver.IsNotFound(err) && f.Unfinished:
		return p.beginAnew(ctx, request, err)
	default:
		return p.notAdopted(ctx, request, f.Unfinished, err)
	}

	machine := adoption.Machine

	uuid, err := driver.CanonicalUUID(machine.UUID)
	if err != nil {
		return p.notAdopted(ctx, request, f.Unfinished, driver.Terminal(err))
	}

	if err := p.showProvisioned(ctx, request, machine, uuid); err != nil {
		return err
	}

	if _, err := p.keep(ctx, id, func(r *recordSpec) {
		r.UUID, r.Names, r.Place = uuid, adoption.Names, machine.Place
		// What was asked for before is no reason to reboot it.
		r.RebootID, r.RebootDone = request.Metadata().Annotations().Raw()[RebootAnnotation], true
	}); err != nil {
		return fmt.Errorf("record the adoption of %q in Omni: %w", id, err)
	}

	p.log.Info("machine of an official provider adopted", zap.String("request", id), zap.String("machine", machine.ID), zap.String("uuid", uuid),
		zap.Any("objects", adoption.Names))

	return nil
}

// beginAnew clears away what an official provider had only begun, its state last. The request is a new one after that.
func (p *Provider) beginAnew(ctx context.Context, request *infra.MachineRequest, why error) error {
	id := request.Metadata().ID()

	p.log.Info("an official provider had only begun with the machine; it is begun anew", zap.String("request", id), zap.Error(why))

	if done, err := p.discard(ctx, id); err != nil || !done {
		return p.provisionFailed(ctx, request, "clear away what the official provider had begun", cmp.Or(err, errDiscarding))
	}

	return driver.Pending(time.Millisecond, "the machine of %q is begun anew", id)
}

// notAdopted shows why a machine was not taken over. It stays as it is, and what Omni knows of it too.
func (p *Provider) notAdopted(ctx context.Context, request *infra.MachineRequest, unfinished bool, err error) error {
	const step = "take over the official provider's machine"

	if driver.KindOf(err) != driver.KindPending {
		p.log.Warn("machine of an official provider is not adopted", zap.String("request", request.Metadata().ID()), zap.Error(err))
	}

	if unfinished {
		return p.provisionFailed(ctx, request, step, err)
	}

	return p.powerFailed(ctx, request, fmt.Errorf("%s: %w", step, err))
}

// errDiscarding is what a request waits for.
var errDiscarding = driver.Pending(pendingPause, "the cloud is removing what the official provider made")

// discard takes away what an official provider recorded for the request, then the record.
func (p *Provider) discard(ctx context.Context, id string) (done bool, err error) {
	adopter, f, ok, err := p.foreign(id)
	if err != nil || !ok {
		return err == nil, err
	}

	f.Place = p.recordedPlace(id)

	done, err = change(ctx, p, p.cfg.CallTimeout, "removing what the official provider made", func(ctx context.Context) (bool, error) {
		return adopter.Discard(ctx, f)
	})
	if err != nil || !done {
		return false, wrap(err, "remove what the official provider made")
	}

	state, ok := p.official.get(id)
	if !ok {
		return true, nil
	}

	done, err = remove(ctx, p, p.official, state.Metadata())

	return done, wrap(err, "remove the official provider's state of %q", id)
}

// showProvisioned tells Omni that the request has its machine.
func (p *Provider) showProvisioned(ctx context.Context, request *infra.MachineRequest, machine driver.Machine, uuid string) error {
	_, err := ensure(ctx, p, p.statuses, infra.NewMachineRequestStatus(request.Metadata().ID()), func(s *infra.MachineRequestStatus) {
		spec := s.TypedSpec().Value
		spec.Stage = specs.MachineRequestStatusSpec_PROVISIONED
		spec.Status, spec.Error = "Provision Complete", ""

		// A machine that has joined under another UUID, after a conflict, keeps it.
		if uuid != "" && spec.Id == "" {
			spec.Id = uuid
		}

		copyLabels(s, request)

		if machine.ID != "" {
			s.Metadata().Labels().Set(omni.LabelMachineInfraID, machine.ID)
		}
	})

	return err
}
