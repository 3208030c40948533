package lifecycle

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"go.uber.org/zap"
)

// reportInterval is the least time between two status writes about progress, so that instant phases cost none.
const reportInterval = time.Second

// reporter writes what a machine's provisioning is at into the request's status.
type reporter struct {
	p       *Provider
	request *infra.MachineRequest
	phases  []string
	uuid    string
	// from is the first phase that is shown: those before it were done when the last turn ended, and are only looked at again.
	from int

	mu   sync.Mutex
	text string
}

// start makes the status, or leaves it as it is when there is one: the error of the last try stays until something succeeds.
func (r *reporter) start(ctx context.Context) error {
	_, err := ensure(ctx, r.p, r.p.statuses, infra.NewMachineRequestStatus(r.request.Metadata().ID()), func(s *infra.MachineRequestStatus) {
		spec := s.TypedSpec().Value

		if spec.Stage == specs.MachineRequestStatusSpec_UNKNOWN {
			copyLabels(s, r.request)

			spec.Stage = specs.MachineRequestStatusSpec_PROVISIONING
		}

		// A machine that has joined under another UUID, after a conflict, keeps it.
		if r.uuid != "" && spec.Id == "" {
			spec.Id = r.uuid
		}
	})
	if err != nil {
		return fmt.Errorf("write status of machine request %q: %w", r.request.Metadata().ID(), err)
	}

	return nil
}

// progress notes what the phase says of itself.
func (r *reporter) progress(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.text = text
}

// during runs a phase and shows it, with what it says of its progress, for as long as it takes.
func (r *reporter) during(ctx context.Context, index int, phase func() error) error {
	r.progress("")

	if index < r.from {
		return phase()
	}

	done := make(chan struct{})

	var wg sync.WaitGroup

	wg.Go(func() {
		ticker := time.NewTicker(reportInterval)
		defer ticker.Stop()

		for {
			select {
			case <-done:
				return
			case <-ctx.Done():
				return
			case <-ticker.C:
				r.show(ctx, index)
			}
		}
	})

	err := phase()

	close(done)
	wg.Wait()

	return err
}

func (r *reporter) show(ctx context.Context, index int) {
	r.mu.Lock()
	text := fmt.Sprintf("%s (%d/%d)", r.phases[index], index+1, len(r.phases))

	if r.text != "" {
		text += ": " + r.text
	}
	r.mu.Unlock()

	_, err := ensure(ctx, r.p, r.p.statuses, infra.NewMachineRequestStatus(r.request.Metadata().ID()), func(s *infra.MachineRequestStatus) {
		s.TypedSpec().Value.Status = plain(text)
	})
	if err != nil && ctx.Err() == nil {
		r.p.log.Warn("progress is not shown", zap.String("request", r.request.Metadata().ID()), zap.Error(err))
	}
}
