package provider

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

func TestVolumesOfTheSameNamesOnAnotherHostAreLeftAlone(t *testing.T) {
	inTwoHosts(t, func(t *testing.T, d *Driver, f driver.Foreign, a, b *sim.Hypervisor, _ func(*sim.Hypervisor)) {
		f.Unfinished = true

		volumes := func(h *sim.Hypervisor) []string {
			c, err := h.Connect()
			require.NoError(t, err)

			p, err := c.LookupStoragePoolByName("default")
			require.NoError(t, err)

			names, err := p.ListStorageVolumes()
			require.NoError(t, err)

			if len(names) == 0 && h == b {
				v, err := p.StorageVolCreateXML("<volume><name>workers-a.qcow2</name><capacity unit='MiB'>1</capacity></volume>", 0)
				require.NoError(t, err)
				require.NoError(t, v.Free())
			}

			require.NoError(t, p.Free())

			_, err = c.Close()
			require.NoError(t, err)

			return names
		}

		require.Empty(t, volumes(b))

		done, err := d.Discard(t.Context(), f)
		require.NoError(t, err)
		require.True(t, done)
		require.Empty(t, volumes(a))
		require.Equal(t, []string{"workers-a.qcow2"}, volumes(b))
	})
}

// A record that cannot be read is all that is known of a machine: it is not thrown away as long as the machine may be there.
func TestUnreadableRecordIsKeptWhileThereIsSomethingOfItsNames(t *testing.T) {
	inTwoHosts(t, func(t *testing.T, d *Driver, f driver.Foreign, a, _ *sim.Hypervisor, _ func(*sim.Hypervisor)) {
		readable := f
		f.State = []byte("?")

		done, err := d.Discard(t.Context(), f)
		require.False(t, done)
		require.ErrorContains(t, err, `read the official provider's state`)
		require.ErrorContains(t, err, `domain "workers-a", volume "workers-a-0-sata.qcow2" in storage pool "default", volume "workers-a-cidata.iso" in storage pool "default"`)
		require.Equal(t, driver.KindTerminal, driver.KindOf(err))
		require.NotEmpty(t, a.Machines())

		readable.Unfinished = true
		done, err = d.Discard(t.Context(), readable)
		require.NoError(t, err)
		require.True(t, done)

		done, err = d.Discard(t.Context(), f)
		require.NoError(t, err)
		require.True(t, done, "nothing has its names any more")
	})
}
