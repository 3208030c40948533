package lifecycle_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// takeTime makes the cloud slow, and its machines half-made for a while. The calls end up to late after their context.
func (w *world) takeTime(random *rand.Rand, late time.Duration) {
	var mu sync.Mutex

	draw := func(most time.Duration) time.Duration {
		mu.Lock()
		defer mu.Unlock()

		return time.Duration(random.Int64N(int64(most)))
	}

	spend := func(ctx context.Context, most time.Duration) error {
		select {
		case <-time.After(draw(most)):
			return nil
		case <-ctx.Done():
			time.Sleep(late)

			return ctx.Err()
		}
	}

	w.cloud.set(func(ctx context.Context, call, request string) error {
		if call != "ensure" || w.cloud.has(request) {
			return spend(ctx, 2*time.Second)
		}

		ref := driver.Ref{ProviderID: providerID, RequestID: request}
		w.cloud.change(ref, func(m *driver.Machine) { *m = driver.Machine{Ref: ref, State: "half-made", Incomplete: true} })

		if err := spend(ctx, 5*time.Second); err != nil {
			return err
		}

		w.cloud.drop(request)

		return nil
	})
}

// has reports whether the request's machine is whole.
func (c *cloud) has(request string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	m, ok := c.machines[request]

	return ok && !m.Incomplete
}

// left lists what is left of any request, in the cloud and in Omni.
func (w *world) left() []string {
	left := w.cloud.names()

	for namespace, kinds := range map[string][]resource.Type{
		"infra-provider":      {infra.MachineRequestStatusType, infra.ConfigPatchRequestType, infra.InfraMachineStatusType},
		"infra-provider:test": {recordType, officialType},
	} {
		for _, kind := range kinds {
			list, err := w.st.List(w.ctx, resource.NewMetadata(namespace, kind, "", resource.VersionUndefined))
			require.NoError(w.t, err)

			for _, r := range list.Items {
				left = append(left, kind+" "+r.Metadata().ID())
			}
		}
	}

	return left
}

func TestShutdownAtAnyMomentIsPromptAndLeaksNothing(t *testing.T) {
	for seed := range uint64(100) {
		run(t, func(w *world) {
			random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's
			w.holdAll(300 * time.Millisecond)
			w.joined("pool-old")
			w.takeTime(rand.New(rand.NewPCG(seed, 2)), time.Duration(random.IntN(2))*3*time.Second) //nolint:gosec // a test's

			ids := []string{"pool-old", "lone"}
			w.request("lone", ofNoSet)

			for i := range 12 {
				ids = append(ids, fmt.Sprintf("pool-%d", i))
				w.request(ids[len(ids)-1])
			}

			teardown := time.Duration(random.Int64N(int64(10 * time.Second)))
			w.wait(teardown)

			gone := ids[:1+random.IntN(len(ids))]
			for _, id := range gone {
				w.teardown(id)
			}

			w.wait(time.Duration(random.Int64N(int64(10 * time.Second))))

			before := w.logs.Len()
			w.stop()

			for _, entry := range w.logs.All()[before:] {
				require.Less(t, entry.Level, zapcore.WarnLevel, "seed %d: %s", seed, entry.Message)
			}

			for _, id := range ids {
				if status, ok := w.status(id); ok {
					require.NotEqual(t, specs.MachineRequestStatusSpec_FAILED, status.TypedSpec().Value.Stage, "seed %d", seed)
					require.Empty(t, status.TypedSpec().Value.Error, "seed %d", seed)
				}
			}

			w.start()
			w.wait(3 * time.Minute)

			live := ids[len(gone):]
			require.ElementsMatch(t, live, w.cloud.names(), "seed %d", seed)

			for _, id := range live {
				require.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage(id), "seed %d", seed)
				w.teardown(id)
			}

			w.wait(3 * time.Minute)
			require.Empty(t, w.left(), "seed %d", seed)

			for _, id := range ids {
				require.Empty(t, w.finalizers(id), "seed %d", seed)
			}
		})
	}
}

// From the first call to Omni on, a provider can be told to end.
func TestShutdownWhileTheProviderStartsIsNoFailure(t *testing.T) {
	for _, verb := range []string{"get", "create", "list", "watch"} {
		run(t, func(w *world) {
			w.stop()
			w.setHangs(func(v, _ string) bool { return v == verb })
			w.start()
			w.wait(10 * time.Second)
			w.stop()
			assert.Empty(t, w.logs.Filter(func(e observer.LoggedEntry) bool { return e.Level >= zap.WarnLevel }).All(), verb)
		})
	}
}
