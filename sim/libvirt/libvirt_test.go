package libvirt_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	real "libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

const small = `<domain type='kvm'><name>a</name><memory unit='MiB'>64</memory><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>`

// inBubble runs test on a fake clock with a host that is closed at its end.
func inBubble(t *testing.T, opts libvirt.Options, test func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := libvirt.New(opts)
		defer h.Close()

		c, err := h.Connect()
		require.NoError(t, err)
		test(t, h, c)
	})
}

func TestGuestThatReturnsHasShutItselfDown(t *testing.T) {
	opts := libvirt.Options{Boot: func(ctx context.Context, _ libvirt.Guest) {
		select {
		case <-time.After(time.Minute):
		case <-ctx.Done():
		}
	}}
	inBubble(t, opts, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		d, err := c.DomainDefineXML(small)
		require.NoError(t, err)
		require.NoError(t, d.Create())
		time.Sleep(time.Minute - time.Second)

		state, _, err := d.GetState()
		require.NoError(t, err)
		require.Equal(t, real.DOMAIN_RUNNING, state)
		time.Sleep(2 * time.Second)

		state, reason, err := d.GetState()
		require.NoError(t, err)
		require.Equal(t, real.DOMAIN_SHUTOFF, state)
		require.Equal(t, int(real.DOMAIN_SHUTOFF_SHUTDOWN), reason)
	})
}
