package provider_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

// Without virt-api a machine cannot be switched; whoever tries is told where to look, and that is no failure for good.
func TestPowerWithoutVirtAPISaysWhatIsWrong(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")

		restore := l.Server().Cut(virt.SubresourceVersion)

		for _, want := range []string{"connection refused", "service unavailable"} {
			for what, f := range map[string]func() error{
				"power":  func() error { return l.driver.SetPower(t.Context(), ref("r-1"), driver.PowerOff) },
				"reboot": func() error { return l.driver.Reboot(t.Context(), ref("r-1")) },
			} {
				err := f()
				require.ErrorContains(t, err, want, what)
				require.ErrorContains(t, err, "virt-api", what)
				require.NotEqual(t, driver.KindTerminal, driver.KindOf(err), what)
			}

			time.Sleep(time.Minute)
		}

		restore()
		require.NoError(t, l.driver.SetPower(t.Context(), ref("r-1"), driver.PowerOff))
		time.Sleep(time.Minute)
		synctest.Wait()

		m, err := l.driver.Find(t.Context(), ref("r-1"))
		require.NoError(t, err)
		require.Equal(t, driver.PowerOff, m.Power)
	})
}
