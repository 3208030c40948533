package libvirt_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	real "libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

type ledgerObject = ledger.Object

// numberOf returns libvirt's number of an error, and ERR_OK for any other.
func numberOf(err error) real.ErrorNumber {
	if e, ok := errors.AsType[real.Error](err); ok {
		return e.Code
	}

	return real.ERR_OK
}

func TestLostReplyIsAConnectionThatBreaks(t *testing.T) {
	inBubble(t, libvirt.Options{}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		var reasons []real.ConnectCloseReason

		require.NoError(t, c.RegisterCloseCallback(func(_ *libvirt.Connect, reason real.ConnectCloseReason) { reasons = append(reasons, reason) }))
		h.Ledger().Inject(ledger.Fault{Kind: ledger.Lost, Op: "Connect.DomainDefineXML"})

		_, err := c.DomainDefineXML(small)
		require.Equal(t, real.ERR_SYSTEM_ERROR, numberOf(err))
		synctest.Wait()
		require.Equal(t, []real.ConnectCloseReason{real.CONNECT_CLOSE_REASON_EOF}, reasons)

		alive, err := c.IsAlive()
		require.NoError(t, err)
		require.False(t, alive)

		_, err = c.GetHostname()
		require.Equal(t, "internal error: client socket is closed", err.(real.Error).Message) //nolint:errorlint,forcetypeassert // As libvirt.

		c, err = h.Connect()
		require.NoError(t, err)
		_, err = c.LookupDomainByName("a")
		require.NoError(t, err)
	})
}

func TestDeadProcessStaysDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := libvirt.New(libvirt.Options{})
		defer h.Close()

		process, died := h.Client(), false
		c, err := process.Connect()
		require.NoError(t, err)
		h.Ledger().CrashAfter(h.Ledger().Calls()+1, true, func() { died = true })

		_, err = c.DomainDefineXML(small)
		require.Error(t, err)
		require.True(t, died)
		_, err = process.Connect()
		require.Equal(t, real.ERR_SYSTEM_ERROR, numberOf(err))

		c, err = h.Connect()
		require.NoError(t, err)
		_, err = c.LookupDomainByName("a")
		require.NoError(t, err)
	})
}

func TestEachFaultHasWordsOfLibvirt(t *testing.T) {
	for _, test := range []struct {
		kind            ledger.FaultKind
		domain, storage real.ErrorNumber
	}{
		{ledger.NotFound, real.ERR_NO_NETWORK, real.ERR_NO_STORAGE_POOL},
		{ledger.Conflict, real.ERR_OPERATION_TIMEOUT, real.ERR_INTERNAL_ERROR},
		{ledger.Full, real.ERR_INTERNAL_ERROR, real.ERR_SYSTEM_ERROR},
		{ledger.Unauthorized, real.ERR_ACCESS_DENIED, real.ERR_ACCESS_DENIED},
		{ledger.Echo, real.ERR_INTERNAL_ERROR, real.ERR_INTERNAL_ERROR},
		{ledger.Throttled, real.ERR_RESOURCE_BUSY, real.ERR_RESOURCE_BUSY},
	} {
		t.Run(string(test.kind), func(t *testing.T) {
			inBubble(t, libvirt.Options{}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
				p, err := c.LookupStoragePoolByName("default")
				require.NoError(t, err)

				remove := h.Ledger().Inject(ledger.Fault{Kind: test.kind, Times: -1, For: time.Nanosecond})

				_, err = c.DomainDefineXML(small)
				require.Equal(t, test.domain, numberOf(err), "%v", err)
				_, err = p.StorageVolCreateXML(volumeXML("v", "raw", 1), 0)
				require.Equal(t, test.storage, numberOf(err), "%v", err)
				remove()

				alive, err := c.IsAlive()
				require.NoError(t, err)
				require.True(t, alive)
				require.Empty(t, h.Machines())
			})
		})
	}
}

func TestUnavailableDaemonIsALostConnection(t *testing.T) {
	inBubble(t, libvirt.Options{}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		h.Ledger().Inject(ledger.Fault{Kind: ledger.Unavailable})

		_, err := c.GetHostname()
		require.Equal(t, real.ERR_SYSTEM_ERROR, numberOf(err))

		alive, err := c.IsAlive()
		require.NoError(t, err)
		require.False(t, alive)
	})
}

func TestBadCredentialsAreSaidWhenConnecting(t *testing.T) {
	inBubble(t, libvirt.Options{}, func(t *testing.T, h *libvirt.Hypervisor, _ *libvirt.Connect) {
		h.Ledger().Inject(ledger.Fault{Kind: ledger.Unauthorized})

		_, err := h.Connect()
		require.Equal(t, real.ERR_AUTH_FAILED, numberOf(err))
	})
}

func TestSilentDaemonIsWaitedForAsLongAsKeepaliveHasIt(t *testing.T) {
	inBubble(t, libvirt.Options{}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		h.Freeze()

		go func() {
			time.Sleep(time.Hour)
			h.Thaw()
		}()

		start := time.Now()
		_, err := c.GetHostname()
		require.NoError(t, err)
		require.Equal(t, time.Hour, time.Since(start))

		h.Freeze()
		require.NoError(t, c.SetKeepAlive(5, 4))

		start = time.Now()
		_, err = c.GetHostname()
		require.Equal(t, real.ERR_INTERNAL_ERROR, numberOf(err))
		require.Equal(t, 25*time.Second, time.Since(start))

		alive, err := c.IsAlive()
		require.NoError(t, err)
		require.False(t, alive)
		h.Thaw()
	})
}

func TestStoppedDaemonRefusesConnections(t *testing.T) {
	inBubble(t, libvirt.Options{}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		h.StopDaemon()

		_, err := h.Connect()
		require.Equal(t, real.ERR_SYSTEM_ERROR, numberOf(err))
		require.Contains(t, err.Error(), "Connection refused")
		h.StartDaemon()

		_, err = h.Connect()
		require.NoError(t, err)
		_, err = c.GetHostname()
		require.Equal(t, real.ERR_INTERNAL_ERROR, numberOf(err))
	})
}

func TestCallsOnOneDomainWaitForEachOther(t *testing.T) {
	opts := libvirt.Options{Durations: map[string]time.Duration{"Domain.Create": 20 * time.Second}}
	inBubble(t, opts, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		d, err := c.DomainDefineXML(small)
		require.NoError(t, err)

		started := make(chan error, 1)
		go func() { started <- d.Create() }()

		time.Sleep(time.Second)
		requireState(t, d, real.DOMAIN_PAUSED, int(real.DOMAIN_PAUSED_STARTING_UP))

		start := time.Now()
		require.NoError(t, d.SetAutostart(true))
		require.Equal(t, 19*time.Second, time.Since(start))
		require.NoError(t, <-started)
	})
}

func TestCallsOnOneDomainDoNotWaitForEver(t *testing.T) {
	opts := libvirt.Options{Durations: map[string]time.Duration{"Domain.Create": time.Minute}}
	inBubble(t, opts, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		d, err := c.DomainDefineXML(small)
		require.NoError(t, err)

		started := make(chan error, 1)
		go func() { started <- d.Create() }()

		time.Sleep(time.Second)
		err = d.SetAutostart(true)
		require.Equal(t, real.ERR_OPERATION_TIMEOUT, numberOf(err))
		require.Contains(t, err.Error(), "cannot acquire state change lock (held by monitor=remoteDispatchDomainCreate)")
		require.NoError(t, <-started)
	})
}

func TestDomainIsDestroyedWhileItStarts(t *testing.T) {
	opts := libvirt.Options{Durations: map[string]time.Duration{"Domain.Create": 20 * time.Second}}
	inBubble(t, opts, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		d, err := c.DomainDefineXML(small)
		require.NoError(t, err)

		started := make(chan error, 1)
		go func() { started <- d.Create() }()

		time.Sleep(time.Second)
		_ = d.Destroy() // It may find the domain off already.
		require.Error(t, <-started)

		active, err := d.IsActive()
		require.NoError(t, err)
		require.False(t, active)
	})
}

func TestSomeoneAtTheConsoleIsQuickerThanACall(t *testing.T) {
	opts := libvirt.Options{Durations: map[string]time.Duration{
		"Domain.Undefine": time.Minute, "Domain.Destroy": time.Minute, "Domain.ManagedSave": time.Minute, "Domain.CreateSnapshotXML": time.Minute,
		"Domain.Create": time.Minute,
	}}

	for name, act := range map[string]func(d *libvirt.Domain) error{
		"undefine":     (*libvirt.Domain).Undefine,
		"destroy":      (*libvirt.Domain).Destroy,
		"managed save": func(d *libvirt.Domain) error { return d.ManagedSave(0) },
		"snapshot": func(d *libvirt.Domain) error {
			_, err := d.CreateSnapshotXML("<domainsnapshot><name>s</name></domainsnapshot>", 0)

			return err
		},
		"create": (*libvirt.Domain).Create,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, opts, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
				d, err := c.DomainDefineXML(small)
				require.NoError(t, err)

				if name != "create" {
					require.NoError(t, d.Create())
				}

				done := make(chan error, 1)
				go func() { done <- act(d) }()

				time.Sleep(time.Second)
				require.NoError(t, h.DeleteMachine(h.Machines()[0].ID))
				require.Equal(t, name != "destroy", <-done != nil)
				require.Empty(t, h.Machines())
				require.Empty(t, h.Ledger().Leaks())
			})
		})
	}
}

func TestLatencyAndDurations(t *testing.T) {
	opts := libvirt.Options{Latency: time.Second, Durations: map[string]time.Duration{
		"StorageVol.Delete": time.Minute, "Stream.Send": time.Hour, "Connect.DomainDefineXML": 2 * time.Minute,
	}}
	inBubble(t, opts, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		p, err := c.LookupStoragePoolByName("default")
		require.NoError(t, err)
		v, err := p.StorageVolCreateXML(volumeXML("v", "raw", 1), 0)
		require.NoError(t, err)

		start := time.Now()
		require.NoError(t, v.Delete(0))
		require.Equal(t, time.Minute+time.Second, time.Since(start))

		start = time.Now()
		_, err = c.DomainDefineXMLFlags(small, 0)
		require.NoError(t, err)
		require.Equal(t, 2*time.Minute+time.Second, time.Since(start))

		v, err = p.StorageVolCreateXML(volumeXML("v", "raw", 1), 0)
		require.NoError(t, err)

		start = time.Now()
		require.NoError(t, send(c, v, []byte("x")))
		require.Equal(t, time.Hour+3*time.Second, time.Since(start))
	})
}
