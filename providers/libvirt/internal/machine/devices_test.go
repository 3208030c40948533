package machine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func TestNamedDevicesAreNotGivenToSelectorsThatAnyWillDoFor(t *testing.T) {
	h := hostOf(t, "fedora-kvm")

	got, err := ChooseDevices(decode(t, "{pci_devices: [{vendor: 10de, count: 2}, {address: '0000:3b:00.0'}], mediated_devices: [{type: nvidia-222}, {uuid: c6f3b5d2-0e55-4a8e-9f5e-1b6f6f0f3a01}]}"), h)
	require.NoError(t, err)
	require.Equal(t, []string{
		"pci 0000:3b:00.0", "pci 0000:5e:00.0", "pci 0000:86:00.0",
		"mdev c6f3b5d2-0e55-4a8e-9f5e-1b6f6f0f3a01", "mdev c6f3b5d2-0e55-4a8e-9f5e-1b6f6f0f3a02",
	}, got.IDs())
}

func TestADeviceIsGivenToOneMachineOnly(t *testing.T) {
	h := hostOf(t, "fedora-kvm")
	one := decode(t, "pci_devices: [{vendor: 10de}]")

	for _, want := range []string{"pci 0000:3b:00.0", "pci 0000:5e:00.0", "pci 0000:86:00.0"} {
		got, err := ChooseDevices(one, h)
		require.NoError(t, err)
		require.Equal(t, []string{want}, got.IDs())

		h.Taken = append(h.Taken, got.IDs()...)
	}

	_, err := ChooseDevices(one, h)
	require.ErrorContains(t, err, "pci_devices[0]: the host has 3 devices of vendor 10de, of which 0 are free: want 1")
	require.Equal(t, driver.KindCapacity, driver.KindOf(err))
	require.Equal(t, driver.KindCapacity, driver.KindOf(one.CheckHost(h)))

	// Two selectors share what there is.
	h.Taken = h.Taken[:2]
	_, err = ChooseDevices(decode(t, "pci_devices: [{vendor: 10de}, {vendor: 10de}]"), h)
	require.ErrorContains(t, err, "pci_devices[1]")
	require.Equal(t, driver.KindCapacity, driver.KindOf(err))

	// What can never work outweighs what is only taken.
	_, err = ChooseDevices(decode(t, "pci_devices: [{vendor: 10de, count: 2}, {vendor: '1002'}]"), h)
	require.Equal(t, driver.KindTerminal, driver.KindOf(err))
	require.ErrorContains(t, err, "pci_devices[0]")
	require.ErrorContains(t, err, "pci_devices[1]")

	h.Taken = []string{"mdev c6f3b5d2-0e55-4a8e-9f5e-1b6f6f0f3a03"}
	_, err = ChooseDevices(decode(t, "mediated_devices: [{type: nvidia-223}]"), h)
	require.Equal(t, driver.KindCapacity, driver.KindOf(err))
}

func TestDevicesThatShareAnIOMMUGroupWithATakenOneAreTaken(t *testing.T) {
	h := hostOf(t, "fedora-kvm")

	both, err := ChooseDevices(decode(t, "pci_devices: [{vendor: 15b3, count: 2}]"), h)
	require.NoError(t, err, "one machine can have the whole group")
	require.Equal(t, []string{"pci 0000:af:00.0", "pci 0000:af:00.1"}, both.IDs())

	h.Taken = []string{"pci 0000:af:00.0"}
	_, err = ChooseDevices(decode(t, "pci_devices: [{address: 'af:00.1'}]"), h)
	require.Equal(t, driver.KindCapacity, driver.KindOf(err))
}

func TestTakenDevicesAreThoseOfAnyDomain(t *testing.T) {
	got, err := TakenDevices(`<domain type='kvm'><devices>
		<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0x0000' bus='0x3b' slot='0x00' function='0x1'/></source></hostdev>
		<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='C6F3B5D2-0e55-4a8e-9f5e-1b6f6f0f3a01'/></source></hostdev>
		<hostdev mode='subsystem' type='usb'><source><vendor id='0x1234'/><product id='0xbeef'/></source></hostdev>
		<interface type='hostdev' managed='yes'><source><address type='pci' domain='0' bus='0xaf' slot='0x10' function='0x7'/></source></interface>
	</devices></domain>`)
	require.NoError(t, err)
	require.Equal(t, []string{"pci 0000:3b:00.1", "mdev c6f3b5d2-0e55-4a8e-9f5e-1b6f6f0f3a01", "pci 0000:af:10.7"}, got)

	got, err = TakenDevices(`<domain/>`)
	require.NoError(t, err)
	require.Empty(t, got)

	_, err = TakenDevices(`<network/>`)
	require.Error(t, err)
}
