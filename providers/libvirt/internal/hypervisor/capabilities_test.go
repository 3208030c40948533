package hypervisor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

func TestHardwareAddressThatADomainHasIsRefusedBeforeAnythingIsMade(t *testing.T) {
	inImageLab(t, sim.Options{Pools: []sim.Pool{{Name: "one"}, {Name: "two"}}}, func(l *imageLab) {
		t, h := l.t, l.host(Config{})
		class := "network_interfaces: [{type: user, physical_address: '52:54:00:aa:bb:01'}]\nstorage_pool: "

		require.NoError(t, l.make(t.Context(), h, l.request("first"), class+"one", &diskImage{}, quiet))
		require.NoError(t, l.make(t.Context(), h, l.request("first"), class+"one", &diskImage{}, quiet), "its own address is in nobody's way")

		err := l.make(t.Context(), h, l.request("second"), class+"two", &diskImage{}, quiet)
		require.ErrorContains(t, err, `network_interfaces[0].physical_address: domain "first-`)
		require.Equal(t, driver.KindCapacity, driver.KindOf(err))
		require.Empty(t, l.volumes("two"))
	})
}
