package conformance

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

const (
	// toyPause is how often a toy looks at everything.
	toyPause = 20 * time.Second
	// toySoon is how often it does while Omni holds on to something. A machine that Omni has let go of joins again if it is left
	// running.
	toySoon = 2 * time.Second
	// toyBeat is how often it reports its health, and toyLate how long a look may take before that is a trouble.
	toyBeat = 25 * time.Second
	toyLate = 10 * time.Second
)

const toySchema = `{"type": "object", "properties": {"cores": {"type": "integer", "minimum": 1, "default": 2}}, "required": ["cores"], "additionalProperties": false}`

const toyMapSchema = `{"type": "object", "properties": {"cores": {"type": "integer"}, "env": {"type": "object", "additionalProperties": {"type": "integer"}}}, "required": ["cores"]}`

// toyHealth is how a toy's last look went.
type toyHealth struct {
	mu      sync.Mutex
	started time.Time
	err     error
}

func (h *toyHealth) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.started = time.Now()
}

func (h *toyHealth) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.started, h.err = time.Time{}, err
}

func (h *toyHealth) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()

	switch {
	case !h.started.IsZero() && time.Since(h.started) > toyLate:
		return "the cloud does not answer"
	case h.err != nil:
		return h.err.Error()
	default:
		return ""
	}
}

// report tells Omni that the toy lives, and what is wrong.
func (t toyProvider) report(ctx context.Context) {
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(ctx, toyBeat)
		err := safe.StateModify(call, t.State, infra.NewProviderHealthStatus(t.ProviderID), func(s *infra.ProviderHealthStatus) error {
			text := t.health.text()
			if t.flaw == isSilent && text == s.TypedSpec().Value.Error && text == "" {
				return nil
			}

			s.TypedSpec().Value.LastHeartbeatTimestamp, s.TypedSpec().Value.Error = timestamppb.Now(), text

			if t.flaw == feelsWell {
				s.TypedSpec().Value.Error = ""
			}

			return nil
		})

		cancel()

		if err != nil && ctx.Err() == nil {
			t.Logger.Warn("health is not reported", zap.Error(err))
		}

		_ = sleep(ctx, toyBeat)
	}
}

// pauseOf returns how long the cloud wants to be left alone, zero if it does not.
func pauseOf(err error) time.Duration {
	fault, ok := errors.AsType[*ledger.FaultError](err)

	switch {
	case !ok:
		return 0
	case fault.Kind == ledger.Full:
		return time.Minute
	default:
		return fault.RetryAfter
	}
}
