package provider_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

// find returns the request's machine.
func (l *lab) find(request string) driver.Machine {
	l.t.Helper()

	m, err := l.driver.Find(l.t.Context(), ref(request))
	require.NoError(l.t, err)

	return m
}

// switchTo switches the machine as the library does: again and again until it is as it should be, and no more after that.
func (l *lab) switchTo(request string, want driver.Power, limit time.Duration) (said []string) {
	l.t.Helper()

	for end := time.Now().Add(limit); l.find(request).Power != want; {
		require.True(l.t, time.Now().Before(end), "the machine is %+v: %v\n%s", l.find(request), said, tail(l.Ledger().History()))

		err := l.driver.SetPower(l.t.Context(), ref(request), want)
		if err != nil {
			said = append(said, err.Error())
		}

		if l.find(request).Power == want {
			break
		}

		time.Sleep(max(driver.PauseOf(err), 5*time.Second))
	}

	return said
}

// TestMachineThatCrashesAllTheTimeIsSwitchedOff has an instance only for moments, between pauses of KubeVirt that grow to minutes.
func TestMachineThatCrashesAllTheTimeIsSwitchedOff(t *testing.T) {
	for _, strategy := range []kubevirtv1.VirtualMachineRunStrategy{kubevirtv1.RunStrategyAlways, kubevirtv1.RunStrategyRerunOnFailure, kubevirtv1.RunStrategyManual} {
		// after is how long it has crashed when it is switched off.
		for _, after := range []time.Duration{time.Second, 30 * time.Second, 20 * time.Minute} {
			t.Run(fmt.Sprintf("%s after %s", strategy, after), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					opts := kubevirt.Options{Enter: keepImages}
					opts.Virt.Times.Pull, opts.Virt.Times.Start = time.Second, 2*time.Second
					l := newLab(t, opts)
					o := l.provision(requestOf("r-1", fmt.Sprintf("{cores: 2, memory: 2048, disk_size: 10, run_strategy: %s}", strategy)), time.Hour)
					require.NoError(t, o.err, "%v", o.said)

					mend := l.Virt.Inject(virt.Fault{Crash: true})
					require.NoError(t, l.driver.Reboot(t.Context(), ref("r-1")))
					time.Sleep(after)

					patches := l.Ledger().CallsOf("patch virtualmachines")
					l.switchTo("r-1", driver.PowerOff, 7*time.Minute)
					assert.LessOrEqual(t, l.Ledger().CallsOf("patch virtualmachines")-patches, 2, "it is not switched to and fro")

					for range 60 {
						time.Sleep(time.Minute)
						require.Equal(t, driver.PowerOff, l.find("r-1").Power, "it stays off")
					}

					mend()
					l.switchTo("r-1", driver.PowerOn, 2*time.Minute)
					time.Sleep(time.Minute)
					assert.Equal(t, driver.PowerOn, l.find("r-1").Power)
					assert.Equal(t, strategy, *l.vm("r-1").Spec.RunStrategy)
				})
			})
		}
	}
}

// TestMachineThatIsToStartByItselfIsNotAskedTo asks while KubeVirt has noted to start it again after a pause.
func TestMachineThatIsToStartByItselfIsNotAskedTo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		o := l.provision(requestOf("r-1", "{cores: 2, memory: 2048, disk_size: 10, run_strategy: RerunOnFailure}"), time.Hour)
		require.NoError(t, o.err, "%v", o.said)

		defer l.Virt.Inject(virt.Fault{Crash: true})()

		require.NoError(t, l.driver.Reboot(t.Context(), ref("r-1")))
		time.Sleep(20 * time.Minute)

		before := l.vm("r-1").Status
		require.Len(t, before.StateChangeRequests, 1)
		require.NotNil(t, before.StartFailure)
		require.NoError(t, l.driver.SetPower(t.Context(), ref("r-1"), driver.PowerOn))
		assert.Zero(t, l.Ledger().CallsOf("update virtualmachines/start"))
		assert.Equal(t, before.StartFailure, l.vm("r-1").Status.StartFailure)
	})
}

// TestMachineThatSomebodyHaltsStaysOff looks at a machine that is made as the library does, for a day.
func TestMachineThatSomebodyHaltsStaysOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")
		l.patchVM("r-1", `{"spec":{"runStrategy":"Halted"}}`)

		for range 24 {
			time.Sleep(time.Hour)

			_, err := l.driver.List(t.Context(), providerID)
			require.NoError(t, err)
			require.Equal(t, driver.PowerOff, l.find("r-1").Power)
		}
	})
}
