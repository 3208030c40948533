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

	if done, err := p.takeAway(ctx, id); err != nil || !done {
		return err
	}

	if err := p.removeFinalizer(ctx, request); err != nil {
		return err
	}

	p.forget(id)
	p.log.Info("machine removed", zap.String("request", id))

	return nil
}

// orphaned takes away what is left of a request that is gone without its finalizer: that was taken off by force, or the answer
// to a write was lost.
func (p *Provider) orphaned(ctx context.Context, id string) error {
	// What ends a machine has to be Omni's own word.
	_, ok, err := fetch(ctx, p, p.requests, infra.NewMachineRequest(id).Metadata())
	if err != nil {
		return fmt.Errorf("see whether machine request %q is gone: %w", id, err)
	}

	if ok {
		p.sweeper.spare(id)

		return errChanged
	}

	done, err := p.takeAway(ctx, id)
	if done {
		p.sweeper.spare(id)
		p.log.Info("machine removed, its request was gone", zap.String("request", id))
	}

	return err
}

// leftOver reports whether Omni still holds something that was written for the request.
func (p *Provider) leftOver(id string) bool {
	_, status := p.statuses.get(id)
	_, rec := p.records.get(id)
	_, official := p.official.get(id)

	return status || rec || official || len(p.patchesOf(id)) > 0
}

// takeAway removes everything of a request but the request; false says that somebody still holds on to a part, and an event
// will follow.
func (p *Provider) takeAway(ctx context.Context, id string) (bool, error) {
	if released, err := p.release(ctx, id); err != nil || !released {
		return false, err
	}

	if err := p.removeMachine(ctx, id); err != nil {
		return false, err
	}

	state, official := p.official.get(id)

	_, adopts := p.cfg.Driver.(driver.Adopter)

	if rec, ok := p.records.get(id); ok && !rec.ours() || official && !ok && !adopts {
		p.log.Warn("the machine was made by a provider on the official library: what it left in the cloud carries no mark and is not ours to remove",
			zap.String("request", id))
	}

	if official {
		if gone, err := remove(ctx, p, p.official, state.Metadata()); err != nil || !gone {
			return false, wrap(err, "remove the official library's state of %q", id)
		}
	}

	gone, err := remove(ctx, p, p.records, newRecord(p.cfg.ID, id).Metadata())

	return gone, wrap(err, "remove the record of %q", id)
}

func (p *Provider) patchesOf(id string) []*infra.ConfigPatchRequest {
	return p.patches.all(func(r *infra.ConfigPatchRequest) bool {
		of, _ := r.Metadata().Labels().Get(omni.LabelMachineRequest)

		return of == id
	})
}

// release gives up what Omni was told of the machine; false says that Omni still holds on to it, and an event will follow.
func (p *Provider) release(ctx context.Context, id string) (bool, error) {
	for _, patch := range p.patchesOf(id) {
		if gone, err := remove(ctx, p, p.patches, patch.Metadata()); err != nil || !gone {
			return false, wrap(err, "remove config patch request %q", patch.Metadata().ID())
		}
	}

	gone, err := remove(ctx, p, p.statuses, infra.NewMachineRequestStatus(id).Metadata())

	return gone, wrap(err, "remove status of machine request %q", id)
}

// removeMachine takes the machine away, and what was observed of it. A nil error means that nothing is left.
func (p *Provider) removeMachine(ctx context.Context, id string) error {
	done, err := p.removeFromCloud(ctx, id)

	// Only the driver's word ends a machine: an error that something was not found may speak of the place that it looked at.
	switch {
	case err != nil:
		return fmt.Errorf("remove machine of %q: %w", id, err)
	case !done:
		return driver.Pending(pendingPause, "the cloud is removing the machine of %q", id)
	}

	for _, status := range p.observed.all(func(s *infra.MachineStatus) bool {
		of, _ := s.Metadata().Annotations().Get(requestAnnotation)

		return of == id
	}) {
		gone, err := remove(ctx, p, p.observed, status.Metadata())
		if err != nil {
			return fmt.Errorf("remove infra machine status %q: %w", status.Metadata().ID(), err)
		}

		if !gone {
			return driver.Pending(pendingPause, "infra machine status %q is held by %v", status.Metadata().ID(), *status.Metadata().Finalizers())
		}
	}

	return nil
}

// vanished begins the end of a machine that is no longer in the cloud. Omni has no signal for that; tearing the request's
// status down makes it let go of the machine and, for a set, replace it. Everything else follows from the status that is torn
// down, so that a crash in between changes nothing.
func (p *Provider) vanished(ctx context.Context, request *infra.MachineRequest, status *infra.MachineRequestStatus) error {
	id := request.Metadata().ID()

	// A list can lag behind. The cloud is asked for this one machine before Omni is told.
	machine, err := p.find(ctx, id)

	switch {
	case err == nil && !machine.Incomplete:
		p.looks.saw(id, machine)

		return nil
	case err != nil && !driver.IsNotFound(err):
		return p.powerFailed(ctx, request, fmt.Errorf("find machine: %w", err))
	}

	if rec, ok := p.records.get(id); len(p.joined(id)) == 0 && (!ok || rec.spec.Joined == "") {
		// Omni does not know the machine yet: it is made again, and the request stays.
		p.looks.forget(id)

		if _, err := ensure(ctx, p, p.statuses, status, func(s *infra.MachineRequestStatus) {
			s.TypedSpec().Value.Stage = specs.MachineRequestStatusSpec_PROVISIONING
			s.TypedSpec().Value.Status = "making the machine again"
			s.TypedSpec().Value.Error = "the machine vanished from the cloud before it joined Omni"
		}); err != nil {
			return err
		}

		return driver.Pending(time.Millisecond, "the machine of %q is made again", id)
	}

	p.log.Warn("machine vanished", zap.String("request", id), zap.String("uuid", status.TypedSpec().Value.Id))

	_, err = tearDown(ctx, p, p.statuses, status)

	return wrap(err, "tear down the status of machine request %q", id)
}

// replaceGrace is how long Omni is given to tear down a request whose machine vanished. It does so within a second for a
// machine of a set that it knew.
const replaceGrace = 10 * time.Second

// letGo finishes what vanished began, for a request that Omni still wants: once Omni has let go it removes what is left in the
// cloud, then the status. A later turn makes a new machine, or says why not.
func (p *Provider) letGo(ctx context.Context, request *infra.MachineRequest, status *infra.MachineRequestStatus) error {
	id := request.Metadata().ID()
	uuid := status.TypedSpec().Value.Id
	_, ofSet := request.Metadata().Labels().Get(omni.LabelMachineRequestSet)

	if rec, ok := p.records.get(id); !ok || rec.spec.Lost == "" {
		if !status.Metadata().Finalizers().Empty() {
			_, err := ensure(ctx, p, p.statuses, status, func(s *infra.MachineRequestStatus) {
				s.TypedSpec().Value.Stage = specs.MachineRequestStatusSpec_FAILED
				s.TypedSpec().Value.Status = "Machine vanished"
				s.TypedSpec().Value.Error = fmt.Sprintf("machine %s vanished from the cloud: two complete looks did not find it. If it was a node of a cluster, "+
					"Omni waits for the node; to let it go, run: omnictl delete link %s", uuid, uuid)
			})
			if err != nil {
				return wrap(err, "show in Omni that the machine of %q vanished", id)
			}
		}

		if !ofSet {
			if err := p.markLost(ctx, request, fmt.Sprintf("machine %s vanished from the cloud", uuid)); err != nil {
				return err
			}
		}
	}

	if !status.Metadata().Finalizers().Empty() {
		return nil
	}

	if err := p.removeMachine(ctx, id); err != nil {
		return err
	}

	p.looks.forget(id)

	if released, err := p.release(ctx, id); err != nil || !released {
		return err
	}

	if ofSet {
		// Omni replaces the request as well; a machine that is made before that would be made to be removed.
		return driver.Pending(replaceGrace, "the machine of %q is gone", id)
	}

	return driver.Pending(time.Millisecond, "the machine of %q is gone", id)
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}

	return fmt.Errorf(format+": %w", append(args, err)...)
}
