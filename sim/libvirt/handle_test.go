package libvirt_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	real "libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

func TestFreedHandleIsInvalid(t *testing.T) {
	inBubble(t, libvirt.Options{}, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		d, err := c.DomainDefineXML(small)
		require.NoError(t, err)
		require.NoError(t, d.Ref())
		require.NoError(t, d.Free())
		_, err = d.GetName()
		require.NoError(t, err)
		require.NoError(t, d.Free())
		_, err = d.GetName()
		require.Equal(t, real.ERR_INVALID_DOMAIN, numberOf(err))
		_, _, err = d.GetState()
		require.Contains(t, err.Error(), "invalid domain pointer in virDomainGetState")
		require.Equal(t, real.ERR_INVALID_DOMAIN, numberOf(d.Free()))

		p := poolOf(t, c, "default")
		require.NoError(t, p.Free())
		require.Equal(t, real.ERR_INVALID_STORAGE_POOL, numberOf(p.Refresh(0)))
	})
}

func TestClosedConnectionIsInvalid(t *testing.T) {
	inBubble(t, libvirt.Options{}, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		left, err := c.Close()
		require.NoError(t, err)
		require.Zero(t, left)
		_, err = c.GetHostname()
		require.Equal(t, real.ERR_INVALID_CONN, numberOf(err))
		_, err = c.Close()
		require.Equal(t, real.ERR_INVALID_CONN, numberOf(err))
	})
}

func TestHandleOfACallbackIsFreedAfterIt(t *testing.T) {
	inBubble(t, libvirt.Options{}, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		var kept *libvirt.Domain

		_, err := c.DomainEventLifecycleRegister(nil, func(_ *libvirt.Connect, d *libvirt.Domain, _ *real.DomainEventLifecycle) {
			name, err := d.GetName()
			require.NoError(t, err)
			require.Equal(t, "a", name)

			kept = d
		})
		require.NoError(t, err)
		_, err = c.DomainDefineXML(small)
		require.NoError(t, err)
		synctest.Wait()
		_, err = kept.GetName()
		require.Equal(t, real.ERR_INVALID_DOMAIN, numberOf(err))
	})
}

func TestEventsOfOneDomain(t *testing.T) {
	inBubble(t, libvirt.Options{}, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		a, err := c.DomainDefineXML(domainXML("a", ""))
		require.NoError(t, err)
		b, err := c.DomainDefineXML(domainXML("b", ""))
		require.NoError(t, err)

		var seen []string

		id, err := c.DomainEventLifecycleRegister(a, func(_ *libvirt.Connect, d *libvirt.Domain, e *real.DomainEventLifecycle) {
			name, _ := d.GetName()
			seen = append(seen, lifecycleText(name, e))
		})
		require.NoError(t, err)
		require.NoError(t, b.Undefine())
		require.NoError(t, a.Create())
		synctest.Wait()
		require.NoError(t, c.DomainEventDeregister(id))
		require.NoError(t, a.Destroy())
		synctest.Wait()
		require.Equal(t, []string{"domain a resumed, detail 0", "domain a started, detail 0"}, seen)
	})
}

func TestCallbackMayCall(t *testing.T) {
	inBubble(t, libvirt.Options{}, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		var state real.DomainState

		_, err := c.DomainEventLifecycleRegister(nil, func(_ *libvirt.Connect, d *libvirt.Domain, _ *real.DomainEventLifecycle) {
			state, _, _ = d.GetState()
		})
		require.NoError(t, err)
		d, err := c.DomainDefineXML(small)
		require.NoError(t, err)
		require.NoError(t, d.Create())
		synctest.Wait()
		require.Equal(t, real.DOMAIN_RUNNING, state)
	})
}
