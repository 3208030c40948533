//go:build real

package provider

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// awaitState waits until virsh says that the domain is in a state for a reason, as "paused (I/O error)".
func awaitState(t *testing.T, domain, want string) {
	t.Helper()

	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, want, virsh(t, "domstate", "--reason", domain)) }, time.Minute, 100*time.Millisecond)
}

// redefine changes a domain's description as an operator does.
func redefine(t *testing.T, domain string, oldNew ...string) {
	t.Helper()

	before := virsh(t, "dumpxml", "--inactive", domain)
	after := strings.NewReplacer(oldNew...).Replace(before)
	require.NotEqual(t, before, after)

	file := filepath.Join(t.TempDir(), "domain.xml")
	require.NoError(t, os.WriteFile(file, []byte(after), 0o600))
	virsh(t, "define", file)
}

// qemuPID is the process of a domain.
func qemuPID(t *testing.T, domain string) int {
	t.Helper()

	text, err := os.ReadFile("/run/libvirt/qemu/" + domain + ".pid")
	require.NoError(t, err)

	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)

	return pid
}

// TestMachineIsSwitchedFromAnyState brings a machine into each state in which QEMU can have it, and sees it switched on, switched off and
// removed from there.
func TestMachineIsSwitchedFromAnyState(t *testing.T) {
	for _, test := range []struct {
		name  string
		guest []byte
		// prepare is done once, with the machine off; enter brings the running machine into the state.
		prepare, enter func(t *testing.T, domain string)
		// reason is virsh's word, state ours.
		reason, state string
		power         driver.Power
		// boots says that the machine boots when it is switched on, rather than goes on.
		boots bool
	}{
		{name: "running", guest: halt, reason: "running (booted)", state: "running", power: driver.PowerOn},
		{
			name: "paused", guest: halt, enter: func(t *testing.T, domain string) { virsh(t, "suspend", domain) },
			reason: "paused (user)", state: "paused (user)", power: driver.PowerOn,
		},
		{name: "asleep", guest: sleeps, reason: "pmsuspended (unknown)", state: "pmsuspended", power: driver.PowerOn},
		{
			name: "crashed, kept for a look at it", guest: panics,
			prepare: func(t *testing.T, domain string) {
				redefine(t, domain, "<on_crash>restart", "<on_crash>preserve", "</devices>", "<panic model='isa'/></devices>")
			},
			reason: "crashed (panicked)", state: "crashed", power: driver.PowerOff, boots: true,
		},
		{
			name: "crashed", guest: panics,
			prepare: func(t *testing.T, domain string) {
				redefine(t, domain, "<on_crash>restart", "<on_crash>destroy", "</devices>", "<panic model='isa'/></devices>")
			},
			reason: "shut off (crashed)", state: "shut off (crashed)", power: driver.PowerOff, boots: true,
		},
		{
			name: "emulator killed", guest: halt,
			enter: func(t *testing.T, domain string) {
				require.NoError(t, syscall.Kill(qemuPID(t, domain), syscall.SIGKILL))
			},
			reason: "shut off (crashed)", state: "shut off (crashed)", power: driver.PowerOff, boots: true,
		},
		{name: "switched off by itself", guest: switchesOff, reason: "shut off (shutdown)", state: "shut off", power: driver.PowerOff, boots: true},
		{
			name: "saved", guest: halt, enter: func(t *testing.T, domain string) { virsh(t, "managedsave", domain) },
			reason: "shut off (saved)", state: "shut off (saved)", power: driver.PowerOff, boots: true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool, dir := newPool(t)
			d := newDriver(t, hypervisor.Config{})
			req := newRequest(t, "state", classData(pool))
			domain := machine.NamesOf(req.Ref).Domain

			require.NoError(t, provision(t.Context(), d, req, booting(test.guest)))

			if test.prepare != nil {
				virsh(t, "destroy", domain)
				test.prepare(t, domain)
				virsh(t, "start", domain)
			}

			enter := func() driver.Machine {
				t.Helper()

				if test.enter != nil {
					test.enter(t, domain)
				}

				awaitState(t, domain, test.reason)

				found, err := d.Find(t.Context(), req.Ref)
				require.NoError(t, err)
				require.Equal(t, test.state, found.State)
				require.Equal(t, test.state, found.Labels["state"])
				require.Equal(t, test.power, found.Power)

				return found
			}

			before := bootNumber(t, d, req.Ref)
			enter()
			settled(t, func() error { return d.SetPower(t.Context(), req.Ref, driver.PowerOn) })

			after := bootNumber(t, d, req.Ref)
			if after == "" {
				// The guest does it again at once.
				require.Equal(t, test.state, enter().State)
			} else {
				require.Equal(t, test.boots, before != after, "booted: %s, %s", before, after)
			}

			settled(t, func() error { return d.SetPower(t.Context(), req.Ref, driver.PowerOff) })
			require.Contains(t, virsh(t, "domstate", domain), "shut off")
			require.NoError(t, d.SetPower(t.Context(), req.Ref, driver.PowerOff), "it is off already")

			virsh(t, "start", domain)

			if found := enter(); found.Power == driver.PowerOff {
				require.ErrorContains(t, d.Reboot(t.Context(), req.Ref), fmt.Sprintf("reboot domain %q: it is %s", domain, test.state))
			}

			remove(t, d, req.Ref)
			require.Empty(t, domainNames(t))
			require.Empty(t, files(t, dir))
			require.Empty(t, files(t, "/var/lib/libvirt/qemu/save"))
			require.Empty(t, files(t, "/var/lib/libvirt/qemu/snapshot/"+domain))
		})
	}
}

// bootNumber is the boot of a machine that runs, empty for one that is off.
func bootNumber(t *testing.T, d *Driver, ref driver.Ref) string {
	t.Helper()

	found, err := d.Find(t.Context(), ref)
	require.NoError(t, err)

	return found.Boot
}

func TestMachineOnAFullPoolSaysSoAndGoesOnWhenThereIsRoom(t *testing.T) {
	pool, dir := newPool(t)
	virsh(t, "pool-destroy", pool)
	run(t, "mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", dir)
	t.Cleanup(func() { run(t, "umount", "--lazy", dir) })
	virsh(t, "pool-start", pool)

	d := newDriver(t, hypervisor.Config{})
	req := newRequest(t, "full", classData(pool))
	domain := machine.NamesOf(req.Ref).Domain

	require.NoError(t, provision(t.Context(), d, req, booting(fillsDisk)))
	awaitState(t, domain, "paused (I/O error)")

	found, err := d.Find(t.Context(), req.Ref)
	require.NoError(t, err)
	require.Equal(t, "paused (I/O error)", found.State)
	require.Equal(t, "paused (I/O error)", found.Labels["state"])
	require.Equal(t, driver.PowerUnknown, found.Power, "neither on nor off, so that it can be switched on")

	// Without room it stops again, and that is said.
	require.Equal(t, driver.KindPending, driver.KindOf(d.SetPower(t.Context(), req.Ref, driver.PowerOn)))
	awaitState(t, domain, "paused (I/O error)")
	err = d.SetPower(t.Context(), req.Ref, driver.PowerOn)
	require.Equal(t, driver.KindCapacity, driver.KindOf(err), "%v", err)
	require.ErrorContains(t, err, fmt.Sprintf("domain %q is paused (I/O error): it cannot write to a disk", domain))
	require.ErrorContains(t, err, fmt.Sprintf("storage pool %q has 0 MiB free", pool))

	run(t, "mount", "-o", "remount,size=200m", dir)

	settled(t, func() error {
		err := d.SetPower(t.Context(), req.Ref, driver.PowerOn)
		if driver.KindOf(err) == driver.KindCapacity {
			return driver.Pending(0, "%v", err)
		}

		return err
	})
	require.Equal(t, "running", virsh(t, "domstate", domain))

	remove(t, d, req.Ref)
	require.Empty(t, files(t, dir))
}
