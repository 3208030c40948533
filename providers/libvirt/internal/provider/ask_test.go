package provider

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
)

func TestHostIsDoubtedWhenItHadItsTime(t *testing.T) {
	for limit, doubted := range map[time.Duration]bool{time.Minute: true, 40 * time.Second: true, 15 * time.Second: false} {
		synctest.Test(t, func(t *testing.T) {
			hosts := []*host{{Host: hypervisor.New(hypervisor.Config{Name: "a"})}, {Host: hypervisor.New(hypervisor.Config{Name: "b"})}}

			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()

			answers := ask(ctx, hosts, func(ctx context.Context, h *host) (bool, error) {
				if h == hosts[0] {
					return true, nil
				}

				<-ctx.Done()

				return false, ctx.Err()
			})

			assert.True(t, answers[0].value)
			assert.Error(t, answers[1].err)
			assert.NoError(t, ctx.Err(), "the answers are in time")
			assert.Zero(t, hosts[0].doubted.Load())
			assert.Equal(t, doubted, hosts[1].doubted.Load() != 0, "in a call of %s", limit)
		})
	}
}
