package provider

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// askPause is how long to wait before looking again at a guest that was asked to shut down or reboot.
const askPause = 2 * time.Second

// forgetAfter is how long a guest that was asked is remembered while the library does not come back to it: it has dropped the
// wish, and a later one is another. It is longer than any pause of the library.
const forgetAfter = 15 * time.Minute

// leaving is a guest that was asked to shut down or to reboot and has not done so yet. It is not kept across restarts of the
// provider: then the guest is asked again and has its time again.
type leaving struct {
	want string
	// since is when the guest was first asked, and seen when the library last asked for it.
	since, seen time.Time
	// rebooted is set by libvirt's event; stop ends listening for it.
	rebooted atomic.Bool
	stop     func()
}

const (
	wantShutdown = "shut down"
	wantReboot   = "reboot"
)

// SetPower switches the machine. A guest that is asked to shut down gets Config.ShutdownTimeout for it; then it is cut off.
func (d *Driver) SetPower(ctx context.Context, ref driver.Ref, want driver.Power) error {
	release, err := d.lockMachine(ctx, ref)
	if err != nil {
		return err
	}

	defer release()

	own, err := d.domain(ctx, ref)
	if err != nil {
		return err
	}

	switch want {
	case driver.PowerOn:
		d.settle(ref)

		return d.start(ctx, own)
	case driver.PowerOff:
		return d.shutDown(ctx, own)
	default:
		return fmt.Errorf("switch domain %q: got power state %q, want on or off", own.name, want)
	}
}

// Reboot restarts the guest once. It returns Pending until that has happened; a guest that does not do it in
// Config.ShutdownTimeout is reset.
func (d *Driver) Reboot(ctx context.Context, ref driver.Ref) error {
	release, err := d.lockMachine(ctx, ref)
	if err != nil {
		return err
	}

	defer release()

	own, err := d.domain(ctx, ref)
	if err != nil {
		return err
	}

	if powerOf(own.state) == driver.PowerOff {
		d.settle(ref)

		return fmt.Errorf("reboot domain %q: it is %s", own.name, stateName(own.state))
	}

	// A guest that sleeps or was stopped hears nothing, and a reset would not make it run.
	if err := d.wake(ctx, own); err != nil {
		return err
	}

	l, first := d.leave(own, wantReboot)

	switch {
	case first:
		err = d.change(ctx, ref, "reboot", func(dom *libvirt.Domain) error { return dom.Reboot(libvirt.DOMAIN_REBOOT_DEFAULT) })
		if err != nil && !connection.Is(err, libvirt.ERR_NO_SUPPORT, libvirt.ERR_OPERATION_UNSUPPORTED) {
			d.settle(ref)

			return err
		}
	case l.rebooted.Load():
	case time.Since(l.since) > d.config.ShutdownTimeout:
		if err := d.change(ctx, ref, "reset", func(dom *libvirt.Domain) error { return dom.Reset(0) }); err != nil {
			return err
		}

		l.rebooted.Store(true)
	}

	if !l.rebooted.Load() {
		return driver.Pending(askPause, "waiting for the guest of domain %q to reboot; it is reset in %s",
			own.name, d.left(l))
	}

	if err := d.recordBoot(ctx, own); err != nil {
		return err
	}

	d.settle(ref)

	return nil
}

// recordBoot makes the reboot visible in Machine.Boot: libvirt does not number resets.
func (d *Driver) recordBoot(ctx context.Context, own *domain) error {
	var boot [4]byte

	_, _ = rand.Read(boot[:]) // It never fails.

	m := own.mark
	m.Boot = hex.EncodeToString(boot[:])

	element, err := m.element()
	if err != nil {
		return err
	}

	return d.change(ctx, m.ref(), "mark the reboot of", func(dom *libvirt.Domain) error {
		return dom.SetMetadata(libvirt.DOMAIN_METADATA_ELEMENT, element, markPrefix, markNamespace,
			libvirt.DOMAIN_AFFECT_LIVE|libvirt.DOMAIN_AFFECT_CONFIG)
	})
}

// start makes the domain run, and run again when its host comes up.
func (d *Driver) start(ctx context.Context, own *domain) error {
	ref := own.mark.ref()

	switch own.state {
	case libvirt.DOMAIN_RUNNING, libvirt.DOMAIN_BLOCKED, libvirt.DOMAIN_PAUSED, libvirt.DOMAIN_PMSUSPENDED:
		if err := d.wake(ctx, own); err != nil {
			return err
		}
	case libvirt.DOMAIN_SHUTDOWN:
		return driver.Pending(askPause, "domain %q is shutting down; it is started after that", own.name)
	default:
		if own.active() {
			// Crashed, and kept for a look at it.
			if err := d.cutOff(ctx, ref); err != nil {
				return err
			}
		}

		if err := d.change(ctx, ref, "start", (*libvirt.Domain).Create); err != nil {
			return d.withFreeMemory(ctx, ref, err)
		}
	}

	return d.autostart(ctx, ref, true)
}

// wake makes a guest go on that was paused or went to sleep.
func (d *Driver) wake(ctx context.Context, own *domain) error {
	switch own.state { //nolint:exhaustive // All others run, or do not run at all.
	case libvirt.DOMAIN_PAUSED:
		return d.change(ctx, own.mark.ref(), "resume", (*libvirt.Domain).Resume)
	case libvirt.DOMAIN_PMSUSPENDED:
		return d.change(ctx, own.mark.ref(), "wake", func(dom *libvirt.Domain) error { return dom.PMWakeup(0) })
	default:
		return nil
	}
}

// autostart says whether the machine starts with its host: one that was switched off on purpose must not.
func (d *Driver) autostart(ctx context.Context, ref driver.Ref, on bool) error {
	return d.change(ctx, ref, "set autostart of", func(dom *libvirt.Domain) error {
		if is, err := dom.GetAutostart(); err != nil || is == on {
			return err
		}

		return dom.SetAutostart(on)
	})
}

func (d *Driver) shutDown(ctx context.Context, own *domain) error {
	ref := own.mark.ref()

	if err := d.autostart(ctx, ref, false); err != nil {
		return err
	}

	if !own.active() {
		d.settle(ref)

		return nil
	}

	l, _ := d.leave(own, wantShutdown)

	// Only a guest that runs can obey.
	if own.state == libvirt.DOMAIN_RUNNING || own.state == libvirt.DOMAIN_BLOCKED || own.state == libvirt.DOMAIN_SHUTDOWN {
		if time.Since(l.since) <= d.config.ShutdownTimeout {
			// A guest that was still booting did not hear it the first time.
			if err := d.change(ctx, ref, wantShutdown, (*libvirt.Domain).Shutdown); err != nil && !gone(err) {
				return err
			}

			return driver.Pending(askPause, "waiting for the guest of domain %q to shut down; it is cut off in %s", own.name, d.left(l))
		}
	}

	if err := d.cutOff(ctx, ref); err != nil {
		return err
	}

	d.settle(ref)

	return nil
}

// cutOff stops the domain at once. One that does not run is no error.
func (d *Driver) cutOff(ctx context.Context, ref driver.Ref) error {
	err := d.change(ctx, ref, "stop", func(dom *libvirt.Domain) error { return dom.DestroyFlags(libvirt.DOMAIN_DESTROY_DEFAULT) })
	if gone(err) {
		return nil
	}

	return err
}

// gone says that a domain does not run, or not exist, any more.
func gone(err error) bool {
	return driver.IsNotFound(err) || connection.Is(err, libvirt.ERR_OPERATION_INVALID)
}

// leave returns the record of a guest that was asked to leave, and whether it is new.
func (d *Driver) leave(own *domain, want string) (l *leaving, first bool) {
	ref := own.mark.ref()

	d.mu.Lock()
	defer d.mu.Unlock()

	now := time.Now()

	if l = d.leaving[ref]; l != nil && l.want == want && now.Sub(l.seen) < forgetAfter {
		l.seen = now

		return l, false
	}

	if l != nil {
		l.stop()
	}

	l = &leaving{want: want, since: now, seen: now}
	l.stop = d.conn.Subscribe(func(e connection.Event) {
		if e.Kind == connection.Rebooted && strings.EqualFold(e.Domain, own.uuid) {
			l.rebooted.Store(true)
		}
	})
	d.leaving[ref] = l

	return l, true
}

// settle forgets that a guest was asked to leave.
func (d *Driver) settle(ref driver.Ref) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if l := d.leaving[ref]; l != nil {
		l.stop()
		delete(d.leaving, ref)
	}
}

func (d *Driver) left(l *leaving) time.Duration {
	return max(0, d.config.ShutdownTimeout-time.Since(l.since)).Round(time.Second)
}

// withFreeMemory adds to an error that says that memory ran out how much is needed and how much there is.
func (d *Driver) withFreeMemory(ctx context.Context, ref driver.Ref, err error) error {
	if driver.KindOf(err) != driver.KindCapacity {
		return err
	}

	text, textErr := domainCall(ctx, d, ref, "look at", func(c *libvirt.Connect, dom *libvirt.Domain) (string, error) {
		needed, err := dom.GetMaxMemory()
		if err != nil {
			return "", err
		}

		free, err := c.GetFreeMemory()

		return fmt.Sprintf("it needs %d MiB, the hypervisor has %d MiB free", needed>>10, free>>20), err
	})
	if textErr != nil {
		return err
	}

	return driver.Capacity(fmt.Errorf("%w; %s", err, text))
}
