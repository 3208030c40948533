package lifecycle

import (
	"context"
	"fmt"
	"time"

	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// requestAnnotation on an InfraMachineStatus names the request of its machine. It is no label, since Omni copies labels to
// the machine for users to see.
const requestAnnotation = "omni-infra.dev/machine-request"

// deprovision takes the machine of a request away that is being torn down. It needs nothing but the request's id: no class,
// image, join configuration or record.
//
// No call reaches the cloud before Omni has let go of the machine, which it says by dropping its finalizer from the request's
// status; until then it may be draining the node. The request's own finalizer goes last, once the cloud has confirmed that
// nothing is left.
func (p *Provider) deprovision(ctx context.Context, request *infra.MachineRequest) error {
	id := request.Metadata().ID()

	if !request.Metadata().Finalizers().Has(p.owner) {
		return nil
	}

	released, err := p.release(ctx, id)
	if err != nil || !released {
		return err
	}

	if err := p.removeMachine(ctx, id); err != nil {
		return err
	}

	if gone, err := remove(ctx, p, p.records, newRecord(p.cfg.ID, id).Metadata()); err != nil || !gone {
		return err
	}

	if err := p.removeFinalizer(ctx, request); err != nil {
		return err
	}

	p.forget(id)
	p.log.Info("machine removed", zap.String("request", id))

	return nil
}

// release gives up what Omni was told of the machine; false says that Omni still holds on to it, and an event will follow.
func (p *Provider) release(ctx context.Context, id string) (bool, error) {
	patches := p.patches.all(func(r *infra.ConfigPatchRequest) bool {
		of, _ := r.Metadata().Labels().Get(omni.LabelMachineRequest)

		return of == id
	})

	for _, patch := range patches {
		if gone, err := remove(ctx, p, p.patches, patch.Metadata()); err != nil || !gone {
			return false, wrap(err, "remove config patch request %q", patch.Metadata().ID())
		}
	}

	gone, err := remove(ctx, p, p.statuses, infra.NewMachineRequestStatus(id).Metadata())

	return gone, wrap(err, "remove status of machine request %q", id)
}

// removeMachine takes the machine away, and what was observed of it. A nil error means that nothing is left.
func (p *Provider) removeMachine(ctx context.Context, id string) error {
	done, err := ask(ctx, p, p.cfg.CallTimeout, "removing the machine", func(ctx context.Context) (bool, error) {
		return p.cfg.Driver.Remove(ctx, p.ref(id))
	})

	switch {
	case driver.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("remove machine of %q: %w", id, err)
	case !done:
		return driver.Pending(pendingPause, "the cloud is removing the machine of %q", id)
	}

	for _, status := range p.observed.all(func(s *infra.MachineStatus) bool {
		of, _ := s.Metadata().Annotations().Get(requestAnnotation)

		return of == id
	}) {
		if _, err := remove(ctx, p, p.observed, status.Metadata()); err != nil {
			return fmt.Errorf("remove infra machine status %q: %w", status.Metadata().ID(), err)
		}
	}

	return nil
}

// vanished begins the end of a machine that is no longer in the cloud. Omni has no signal for that; tearing the request's
// status down makes it let go of the machine and, for a set, replace it.
func (p *Provider) vanished(ctx context.Context, request *infra.MachineRequest, status *infra.MachineRequestStatus) error {
	id := request.Metadata().ID()
	uuid := status.TypedSpec().Value.Id

	if len(p.joined(id)) == 0 {
		// Omni does not know the machine yet: it is made again, and the request stays.
		p.looks.forget(id)

		if _, err := ensure(ctx, p, p.statuses, status, func(s *infra.MachineRequestStatus) {
			s.TypedSpec().Value.Stage = specs.MachineRequestStatusSpec_PROVISIONING
			s.TypedSpec().Value.Status = "making the machine again"
			s.TypedSpec().Value.Error = "the machine vanished from the cloud before it joined Omni"
		}); err != nil {
			return err
		}

		return p.provision(ctx, request)
	}

	text := fmt.Sprintf("machine %s vanished from the cloud: two complete looks did not find it. If it was a node of a cluster, Omni waits for the node; "+
		"to let it go, run: omnictl delete link %s", uuid, uuid)

	if _, ok := request.Metadata().Labels().Get(omni.LabelMachineRequestSet); !ok {
		if err := p.markLost(ctx, id, text); err != nil {
			return err
		}
	}

	if _, err := ensure(ctx, p, p.statuses, status, func(s *infra.MachineRequestStatus) {
		s.TypedSpec().Value.Stage = specs.MachineRequestStatusSpec_FAILED
		s.TypedSpec().Value.Status, s.TypedSpec().Value.Error = "Machine vanished", text
	}); err != nil {
		return err
	}

	p.log.Warn("machine vanished", zap.String("request", id), zap.String("uuid", uuid))

	_, err := remove(ctx, p, p.statuses, status.Metadata())

	return err
}

// letGo finishes what vanished began, for a request that Omni still wants: it removes what is left in the cloud, then the
// status. The next turn makes a new machine, or says why not.
func (p *Provider) letGo(ctx context.Context, request *infra.MachineRequest) error {
	id := request.Metadata().ID()

	if status, ok := p.statuses.get(id); ok && !status.Metadata().Finalizers().Empty() {
		return nil
	}

	if err := p.removeMachine(ctx, id); err != nil {
		return err
	}

	p.looks.forget(id)

	if released, err := p.release(ctx, id); err != nil || !released {
		return err
	}

	return driver.Pending(time.Millisecond, "the machine of %q is gone", id)
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}

	return fmt.Errorf(format+": %w", append(args, err)...)
}
