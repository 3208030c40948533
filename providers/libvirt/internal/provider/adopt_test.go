package provider

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connectiontest"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

func TestMachineThatTheOfficialLibraryMadeIsAdopted(t *testing.T) {
	inLab(t, func(l *lab) {
		stop := l.startOfficial()

		l.request("workers-a")
		l.wait(time.Minute)
		stop()

		before := l.status("workers-a")
		require.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, before.Stage)
		started := l.is("workers-a", libvirt.DOMAIN_RUNNING)

		stop = l.start()
		l.wait(10 * time.Minute)

		after := l.status("workers-a")
		assert.Equal(t, before.Stage, after.Stage)
		assert.Equal(t, before.Id, after.Id)
		assert.Empty(t, after.Error)
		assert.Equal(t, started, l.is("workers-a", libvirt.DOMAIN_RUNNING), "it was not restarted")

		told := l.logs.FilterMessage("machine of an official provider adopted").All()
		require.Len(t, told, 1)
		assert.Equal(t, map[string]any{
			"request": "workers-a", "machine": "workers-a", "uuid": before.Id, "objects": map[string]string{
				"domain": "workers-a", "volume-1": "default/workers-a.qcow2", "volume-2": "default/workers-a-0-sata.qcow2", "volume-3": "default/workers-a-cidata.iso",
			},
		}, told[0].ContextMap())

		infos, err := lifecycle.NewOperator(l.omni.State(), officialID).Machines(l.ctx)
		require.NoError(t, err)
		require.Len(t, infos, 1)
		require.Len(t, infos[0].Interfaces, 1)
		assert.Equal(t, "lease", infos[0].Interfaces[0].Source)
		assert.True(t, infos[0].Joined)
		assert.Equal(t, "on", infos[0].Power)

		l.annotate("workers-a", lifecycle.PowerAnnotation, "off")
		l.wait(5 * time.Minute)
		l.is("workers-a", libvirt.DOMAIN_SHUTOFF)
		l.annotate("workers-a", lifecycle.PowerAnnotation, "on")
		l.wait(5 * time.Minute)
		l.is("workers-a", libvirt.DOMAIN_RUNNING)

		l.teardown("workers-a")
		l.wait(5 * time.Minute)
		l.nothingLeft("workers-a")
		stop()
	})
}

func TestAdoptedMachineGoesBackToTheOfficialProvider(t *testing.T) {
	inLab(t, func(l *lab) {
		stop := l.startOfficial()

		l.request("workers-a")
		l.wait(time.Minute)
		stop()

		started := l.is("workers-a", libvirt.DOMAIN_RUNNING)

		stop = l.start()
		l.wait(10 * time.Minute)
		require.Equal(t, 1, l.logs.FilterMessage("machine of an official provider adopted").Len())
		stop()

		stop = l.startOfficial()
		l.wait(10 * time.Minute)
		assert.Equal(t, started, l.is("workers-a", libvirt.DOMAIN_RUNNING))

		l.teardown("workers-a")
		l.wait(5 * time.Minute)
		l.nothingLeft("workers-a")
		stop()
	})
}

func TestWhatTheOfficialLibraryHadNotFinishedIsFinishedOrBegunAnew(t *testing.T) {
	inLab(t, func(l *lab) {
		stop := l.startOfficial()

		l.request("begun-a")
		l.request("defined-a")
		l.wait(10 * time.Second)
		stop()

		domains, volumes := l.objects()
		require.Equal(t, []string{"defined-a"}, domains)
		require.Len(t, volumes, 6)
		l.is("defined-a", libvirt.DOMAIN_SHUTOFF)

		stop = l.start()
		l.wait(time.Minute)
		l.is("defined-a", libvirt.DOMAIN_RUNNING)
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, l.status("defined-a").Stage)

		// It has no class, and goes no further than its plan.
		_, volumes = l.objects()
		assert.Len(t, volumes, 3, "what was only begun is cleared away")
		assert.Contains(t, l.status("begun-a").Error, "cores")

		l.teardown("begun-a")
		l.teardown("defined-a")
		l.wait(5 * time.Minute)
		l.nothingLeft("begun-a")
		l.nothingLeft("defined-a")
		stop()
	})
}

// Whatever call to libvirt this provider dies at, the next process ends with the same machine. A reply is lost where it matters: of
// calls that change something.
func TestCrashAtAnyCallOfAnAdoptionOfTheOfficialLibrarysMachine(t *testing.T) {
	for at := 1; ; at++ {
		made := ""

		if !t.Run(fmt.Sprintf("call %d", at), func(t *testing.T) { made = crashOfAdoption(t, at, false) }) || made == "" {
			require.Greater(t, at, 8, "an adoption makes calls")

			break
		}

		for _, verb := range []string{"mark", "stop", "delete", "undefine"} {
			if strings.HasPrefix(made, verb) {
				t.Run(fmt.Sprintf("reply %d", at), func(t *testing.T) { crashOfAdoption(t, at, true) })
			}
		}
	}
}

// crashOfAdoption kills a provider at a call of an adoption, and another at the same call of a removal. It returns what the call of
// one of them was for, or nothing if there are not so many calls.
func crashOfAdoption(t *testing.T, at int, loseReply bool) (made string) {
	inLab(t, func(l *lab) {
		stop := l.startOfficial()

		l.request("workers-a")
		l.wait(10 * time.Second)
		stop()

		started := l.is("workers-a", libvirt.DOMAIN_RUNNING)

		made = l.crashIn(at, loseReply, func() { l.wait(20 * time.Second) })

		stop = l.start()
		l.wait(5 * time.Minute)
		assert.Equal(t, started, l.is("workers-a", libvirt.DOMAIN_RUNNING))
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, l.status("workers-a").Stage)
		assert.Empty(t, l.status("workers-a").Error)

		domains, volumes := l.objects()
		assert.Equal(t, []string{"workers-a"}, domains)
		assert.Len(t, volumes, 3)
		stop()

		removing := l.crashIn(at, loseReply, func() {
			l.teardown("workers-a")
			l.wait(20 * time.Second)
		})
		if !strings.HasPrefix(made, "mark") {
			made = cmp.Or(removing, made)
		}

		stop = l.start()
		l.wait(10 * time.Minute)
		l.nothingLeft("workers-a")
		stop()
	})

	return made
}

// crashIn runs a provider that dies at a call, while f runs, and returns what the call was for, if it came to it.
func (l *lab) crashIn(at int, loseReply bool, f func()) (made string) {
	var (
		mu    sync.Mutex
		calls int
	)

	stop := l.start(hypervisor.Config{Config: connection.Config{
		Open: connectiontest.Open(l.hv.Client()),
		Intercept: func(what string, next func() error) error {
			mu.Lock()
			calls++
			dead, now := calls >= at, calls == at

			if now {
				made = what
			}
			mu.Unlock()

			if !dead {
				return next()
			}

			if now && loseReply {
				_ = next()
			}

			return errors.New("the process is dead")
		},
	}})
	f()
	stop()

	return made
}

// inTwoHosts runs a test with two hypervisors of one provider, "a" and "b", without an Omni. The first has the machine of the state.
func inTwoHosts(t *testing.T, test func(t *testing.T, d *Driver, f driver.Foreign, a, b *sim.Hypervisor, define func(*sim.Hypervisor))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, b := sim.New(sim.Options{Hostname: "a"}), sim.New(sim.Options{Hostname: "b"})
		defer a.Close()
		defer b.Close()

		s := officialSpec{
			UUID: "8a4b7c1e-5a3d-4a0e-9d43-2f0c6b1e7a55", PoolName: "default", VMName: "workers-a",
			VolumeName: "workers-a.qcow2", CidataVolName: "workers-a-cidata.iso", Disks: []officialDisk{{VolName: "workers-a-0-sata.qcow2"}},
		}

		define := func(h *sim.Hypervisor) {
			c, err := h.Connect()
			require.NoError(t, err)

			steps := officialSteps{&lab{libvirt: c}}
			require.NoError(t, steps.makeVolumes(&s))
			require.NoError(t, steps.define(&s))

			_, err = c.Close()
			require.NoError(t, err)
		}
		define(a)

		stored, err := s.MarshalProto()
		require.NoError(t, err)

		host := func(name string, h *sim.Hypervisor) hypervisor.Config {
			return hypervisor.Config{Name: name, Config: connection.Config{Open: connectiontest.Open(h.Client()), CallTimeout: 10 * time.Second}}
		}

		d := New(Config{Hosts: []hypervisor.Config{host("a", a), host("b", b)}})
		defer d.Close()

		test(t, d, driver.Foreign{Ref: driver.Ref{ProviderID: "libvirt", RequestID: "workers-a"}, State: stored}, a, b, define)
	})
}

func TestAdoptedMachineHasItsHostForAPlace(t *testing.T) {
	inTwoHosts(t, func(t *testing.T, d *Driver, f driver.Foreign, _, b *sim.Hypervisor, _ func(*sim.Hypervisor)) {
		adoption, err := d.Adopt(t.Context(), f)
		require.NoError(t, err)
		assert.Equal(t, "a", adoption.Machine.Place)

		// Its place is recorded, and no other is asked.
		b.StopDaemon()

		f.Place = "a"
		done, err := d.RemoveFrom(t.Context(), f.Ref, "a")
		require.NoError(t, err)
		require.True(t, done)
		done, err = d.Discard(t.Context(), f)
		require.NoError(t, err)
		require.True(t, done)
	})
}

func TestHostThatIsOutOfReachMayHaveTheMachine(t *testing.T) {
	inTwoHosts(t, func(t *testing.T, d *Driver, f driver.Foreign, a, _ *sim.Hypervisor, _ func(*sim.Hypervisor)) {
		a.StopDaemon()

		for _, f := range []driver.Foreign{f, {Ref: f.Ref, State: f.State, Unfinished: true}} {
			_, err := d.Adopt(t.Context(), f)
			require.NotNil(t, driver.UnseenOf(err), "%v", err)
			assert.False(t, driver.IsNotFound(err))
		}

		done, err := d.Discard(t.Context(), f)
		require.Error(t, err)
		assert.False(t, done)
	})
}

func TestMachineOnTwoHostsIsAdoptedOnNeither(t *testing.T) {
	inTwoHosts(t, func(t *testing.T, d *Driver, f driver.Foreign, _, b *sim.Hypervisor, define func(*sim.Hypervisor)) {
		define(b)

		_, err := d.Adopt(t.Context(), f)
		require.ErrorContains(t, err, "is on several hosts (a, b)")

		listed, err := d.List(t.Context(), "libvirt")
		require.NoError(t, err)
		assert.Empty(t, listed)
	})
}
