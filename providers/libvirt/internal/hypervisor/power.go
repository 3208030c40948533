package hypervisor

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// askPause is how long to wait before looking again at a guest that was asked to shut down or reboot.
const askPause = 2 * time.Second

// askPatience is how long to wait for an answer when a guest is asked to leave. libvirt passes the question on to the guest's agent,
// where there is one, and waits for it; one that hangs is not waited for, as the power button is pressed next time.
const askPatience = 8 * time.Second

// forgetAfter is how long a guest that was asked is remembered while the library does not come back to it: it has dropped the
// wish, and a later one is another. It is longer than any pause of the library.
const forgetAfter = 15 * time.Minute

// leaving is a guest that was asked to shut down, to reboot or to go on, and has not done so yet. It is not kept across restarts of the
// provider: then the guest is asked again and has its time again.
type leaving struct {
	want string
	// since is when the guest was first asked, and seen when the library last asked for it.
	since, seen time.Time
}

const (
	wantShutdown = "shut down"
	wantReboot   = "reboot"
	wantToGoOn   = "go on"
)

// SetPower switches the machine. A guest that is asked to shut down gets Config.ShutdownTimeout for it; then it is cut off.
func (h *Host) SetPower(ctx context.Context, ref driver.Ref, want driver.Power) error {
	release, err := h.lockMachine(ctx, ref)
	if err != nil {
		return err
	}

	defer release()

	own, err := h.domain(ctx, ref)
	if err != nil {
		return err
	}

	switch want {
	case driver.PowerOn:
		return h.start(ctx, own)
	case driver.PowerOff:
		return h.shutDown(ctx, own)
	default:
		return fmt.Errorf("switch domain %q: got power state %q, want on or off", own.name, want)
	}
}

// Reboot restarts the guest once. It returns Pending until that has happened; a guest that does not shut down in
// Config.ShutdownTimeout is cut off.
//
// libvirt can reboot a guest by itself, but nothing tells later that it has. So the guest is shut down and the domain started again,
// which gives it another id: whoever comes after a crash sees what has happened. That it has to be started again is kept in its mark.
func (h *Host) Reboot(ctx context.Context, ref driver.Ref) error {
	release, err := h.lockMachine(ctx, ref)
	if err != nil {
		return err
	}

	defer release()

	own, err := h.domain(ctx, ref)
	if err != nil {
		return err
	}

	if own.rebooting() {
		return h.start(ctx, own)
	}

	if own.power() == driver.PowerOff {
		h.settle(ref)

		return fmt.Errorf("reboot domain %q: it is %s", own.name, own.condition)
	}

	l, first := h.leave(own, wantReboot)

	if own.passing() && time.Since(l.since) <= h.config.ShutdownTimeout {
		return driver.Pending(askPause, "domain %q is in the state %q; it is rebooted after that", own.name, own.condition)
	}

	if first || own.mark.Rebooting == "" {
		if err := h.keep(ctx, own); err != nil {
			return err
		}

		if err := h.markRebooting(ctx, own, time.Now()); err != nil {
			return err
		}
	}

	// A guest that sleeps or was stopped hears nothing.
	if err := h.wake(ctx, own); err != nil {
		return err
	}

	off, err := h.askToLeave(ctx, own, l, first)
	if err != nil {
		return err
	}

	if !off {
		return driver.Pending(askPause, "waiting for the guest of domain %q to shut down and start again; it is cut off in %s", own.name, h.left(l))
	}

	// It is not looked at again: nobody else starts it.
	own.state, own.id = libvirt.DOMAIN_SHUTOFF, 0

	return h.start(ctx, own)
}

// markRebooting says in the domain's mark since when it reboots; the zero time is that it does not.
func (h *Host) markRebooting(ctx context.Context, own *domain, since time.Time) error {
	m := own.mark
	if m.SetRebooting(since); m.Rebooting == own.mark.Rebooting {
		return nil
	}

	element, err := m.Element()
	if err != nil {
		return err
	}

	err = h.change(ctx, m.Ref(), "mark the reboot of", func(dom connection.Domain) error {
		flags := libvirt.DOMAIN_AFFECT_CONFIG

		active, err := dom.IsActive()
		if err != nil {
			return err
		}

		if active {
			flags |= libvirt.DOMAIN_AFFECT_LIVE
		}

		return dom.SetMetadata(libvirt.DOMAIN_METADATA_ELEMENT, element, machine.MarkPrefix, machine.MarkNamespace, flags)
	})
	if err == nil {
		own.mark = m
	}

	return err
}

// start makes the domain run, and run again when its host comes up if its class wants that.
func (h *Host) start(ctx context.Context, own *domain) error {
	ref := own.mark.Ref()

	if own.state != libvirt.DOMAIN_SHUTDOWN && !own.failedToWrite() {
		h.settle(ref)
	}

	switch {
	case own.dead():
		if err := h.cutOff(ctx, ref); err != nil {
			return err
		}

		fallthrough
	case !own.active():
		if err := h.boot(ctx, own); err != nil {
			return err
		}
	case own.state == libvirt.DOMAIN_SHUTDOWN:
		return h.startAfterwards(ctx, own)
	case own.hears():
	case own.failedToWrite():
		return h.goOn(ctx, own)
	case own.state == libvirt.DOMAIN_PMSUSPENDED || own.state == libvirt.DOMAIN_PAUSED && !own.passing():
		if err := h.wake(ctx, own); err != nil {
			return err
		}
	default:
		return driver.Pending(askPause, "domain %q is in the state %q; it is started after that", own.name, own.condition)
	}

	if err := h.autostart(ctx, ref, own.mark.StartsWithHost()); err != nil {
		return err
	}

	return h.markRebooting(ctx, own, time.Time{})
}

// boot starts a domain that is off, from its disk.
//
// Memory that somebody has saved (virsh managedsave, or libvirt-guests when the host went down) is thrown away. libvirt would go on
// from it, with the description, devices and clock of then: a node that takes itself for the leader it was, with certificates and
// leases that have run out, on disks that may have been written to, reverted or restored since. Talos and etcd are made to come up
// from their disks after a power cut, and whoever switches a machine on expects that it boots.
func (h *Host) boot(ctx context.Context, own *domain) error {
	ref := own.mark.Ref()

	saved, err := domainCall(ctx, h, ref, "look for saved memory of", func(_ connection.Connect, dom connection.Domain) (bool, error) {
		return dom.HasManagedSaveImage(0)
	})

	switch {
	case connection.Is(err, libvirt.ERR_NO_SUPPORT):
	case err != nil:
		return err
	case saved:
		h.config.Logger.Warn("the saved memory of a machine is thrown away: it boots from its disk", zap.String("domain", own.name))

		if err := h.change(ctx, ref, "throw away saved memory of", func(dom connection.Domain) error { return dom.ManagedSaveRemove(0) }); err != nil {
			return err
		}
	}

	return h.withFreeMemory(ctx, ref, h.change(ctx, ref, "start", connection.Domain.Create))
}

// startAfterwards starts a domain that is shutting down, for which it gets Config.ShutdownTimeout.
func (h *Host) startAfterwards(ctx context.Context, own *domain) error {
	if l, _ := h.leave(own, wantShutdown); time.Since(l.since) <= h.config.ShutdownTimeout {
		return driver.Pending(askPause, "domain %q is shutting down; it is started after that, at the latest in %s", own.name, h.left(l))
	}

	if err := h.cutOff(ctx, own.mark.Ref()); err != nil {
		return err
	}

	h.settle(own.mark.Ref())

	return h.boot(ctx, own)
}

// goOn resumes a guest that was paused as it could not write. Whether it can now shows when it writes again.
func (h *Host) goOn(ctx context.Context, own *domain) error {
	_, first := h.leave(own, wantToGoOn)
	stopped := own.condition

	if err := h.wake(ctx, own); err != nil {
		return err
	}

	if first {
		return driver.Pending(askPause, "domain %q is told to go on after it could not write to a disk", own.name)
	}

	if err := h.look(ctx, own.mark.Pool); err != nil {
		return err
	}

	return h.withFreeSpace(ctx, own.mark.Pool, driver.Capacity(fmt.Errorf(
		"domain %q is %s: it cannot write to a disk, as when a storage pool is full; it tries again when there is room", own.name, stopped)))
}

// look makes libvirt look at how much room a pool has.
func (h *Host) look(ctx context.Context, pool string) error {
	release, err := h.lockPool(ctx, pool)
	if err != nil {
		return err
	}

	defer release()

	return h.refresh(ctx, pool)
}

// wake makes a guest go on that was paused or went to sleep.
func (h *Host) wake(ctx context.Context, own *domain) error {
	verb, wake := "resume", connection.Domain.Resume

	switch own.state { //nolint:exhaustive // All others run, or do not run at all.
	case libvirt.DOMAIN_PAUSED:
	case libvirt.DOMAIN_PMSUSPENDED:
		verb, wake = "wake", func(dom connection.Domain) error { return dom.PMWakeup(0) }
	default:
		return nil
	}

	err := h.change(ctx, own.mark.Ref(), verb, wake)
	if err == nil {
		own.state = libvirt.DOMAIN_RUNNING
	}

	return err
}

// autostart says whether the machine starts with its host: one that was switched off on purpose must not.
func (h *Host) autostart(ctx context.Context, ref driver.Ref, on bool) error {
	return h.change(ctx, ref, "set autostart of", func(dom connection.Domain) error {
		if is, err := dom.GetAutostart(); err != nil || is == on {
			return err
		}

		return dom.SetAutostart(on)
	})
}

// keep makes a domain persistent that was undefined while it ran: libvirt would forget it, and leave its firmware's variables
// behind, as soon as it stops.
func (h *Host) keep(ctx context.Context, own *domain) error {
	if !own.active() {
		return nil
	}

	desc, err := domainCall(ctx, h, own.mark.Ref(), "look at", func(_ connection.Connect, dom connection.Domain) (string, error) {
		if persistent, err := dom.IsPersistent(); err != nil || persistent {
			return "", err
		}

		return dom.GetXMLDesc(libvirt.DOMAIN_XML_INACTIVE)
	})
	if err != nil || desc == "" {
		return err
	}

	return connection.Do(ctx, h.conn, fmt.Sprintf("define domain %q, which was undefined while it runs", own.name), func(c connection.Connect) error {
		dom, err := c.DomainDefineXML(desc)
		if err != nil {
			return err
		}

		return dom.Free()
	})
}

func (h *Host) shutDown(ctx context.Context, own *domain) error {
	ref := own.mark.Ref()

	if err := h.keep(ctx, own); err != nil {
		return err
	}

	if err := h.autostart(ctx, ref, false); err != nil {
		return err
	}

	if !own.active() {
		h.settle(ref)

		return h.markRebooting(ctx, own, time.Time{})
	}

	l, first := h.leave(own, wantShutdown)

	off, err := h.askToLeave(ctx, own, l, first)
	if err != nil {
		return err
	}

	if !off {
		return driver.Pending(askPause, "waiting for the guest of domain %q to shut down; it is cut off in %s", own.name, h.left(l))
	}

	h.settle(ref)

	return h.markRebooting(ctx, own, time.Time{})
}

// askToLeave asks the guest of a running domain to shut down, and cuts it off if it has had its time or cannot hear. It returns
// whether the domain is off.
func (h *Host) askToLeave(ctx context.Context, own *domain, l *leaving, first bool) (off bool, err error) {
	ref := own.mark.Ref()

	// Only a guest that runs can obey.
	if (own.hears() || own.passing()) && time.Since(l.since) <= h.config.ShutdownTimeout {
		if !own.hears() {
			return false, nil
		}

		if err := h.askToShutDown(ctx, ref, first); err != nil && !gone(err) {
			return false, err
		}

		return false, nil
	}

	return true, h.cutOff(ctx, ref)
}

// askToShutDown asks the guest's agent, where there is one, for the first time, and presses the power button from then on: a guest
// that was still booting has not heard it yet.
func (h *Host) askToShutDown(ctx context.Context, ref driver.Ref, first bool) error {
	if first {
		return h.ask(ctx, ref, wantShutdown, connection.Domain.Shutdown)
	}

	return h.ask(ctx, ref, wantShutdown, func(dom connection.Domain) error {
		err := dom.ShutdownFlags(libvirt.DOMAIN_SHUTDOWN_ACPI_POWER_BTN)
		if connection.Is(err, libvirt.ERR_INVALID_ARG, libvirt.ERR_NO_SUPPORT) {
			return dom.Shutdown()
		}

		return err
	})
}

// ask makes a call that may wait for the guest. That it has not been answered in askPatience is no error.
func (h *Host) ask(ctx context.Context, ref driver.Ref, verb string, f func(connection.Domain) error) error {
	brief, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()

	err := h.change(brief, ref, verb, f)
	if brief.Err() != nil && ctx.Err() == nil {
		return nil
	}

	return err
}

// cutOff stops the domain at once. One that does not run is no error.
func (h *Host) cutOff(ctx context.Context, ref driver.Ref) error {
	err := h.change(ctx, ref, "stop", func(dom connection.Domain) error { return dom.DestroyFlags(libvirt.DOMAIN_DESTROY_DEFAULT) })
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
func (h *Host) leave(own *domain, want string) (l *leaving, first bool) {
	ref := own.mark.Ref()

	h.mu.Lock()
	defer h.mu.Unlock()

	now := time.Now()

	if l = h.leaving[ref]; l != nil && l.want == want && now.Sub(l.seen) < forgetAfter {
		l.seen = now

		return l, false
	}

	l = &leaving{want: want, since: now, seen: now}
	h.leaving[ref] = l

	return l, true
}

// settle forgets that a guest was asked to leave.
func (h *Host) settle(ref driver.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()

	delete(h.leaving, ref)
}

func (h *Host) left(l *leaving) time.Duration {
	return max(0, h.config.ShutdownTimeout-time.Since(l.since)).Round(time.Second)
}

// withFreeMemory adds to an error that says that memory ran out how much is needed and how much there is. nil stays nil.
func (h *Host) withFreeMemory(ctx context.Context, ref driver.Ref, err error) error {
	if err == nil || driver.KindOf(err) != driver.KindCapacity {
		return err
	}

	text, textErr := domainCall(ctx, h, ref, "look at", func(c connection.Connect, dom connection.Domain) (string, error) {
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
