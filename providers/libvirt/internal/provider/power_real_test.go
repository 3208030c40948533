//go:build real

package provider

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func TestPausedMachineEndsWhereItIsWanted(t *testing.T) {
	pool, dir := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	req := newRequest(t, "paused", classData(pool))
	domain := machine.NamesOf(req.Ref).Domain

	require.NoError(t, provision(t.Context(), d, req, new(testImage)))

	virsh(t, "suspend", domain)
	require.NoError(t, provision(t.Context(), d, req, new(testImage)))
	require.Equal(t, "running", virsh(t, "domstate", domain))

	virsh(t, "suspend", domain)

	found, err := d.Find(t.Context(), req.Ref)
	require.NoError(t, err)
	require.Equal(t, driver.PowerOn, found.Power)
	require.Equal(t, "paused (user)", found.State)

	settled(t, func() error { return d.Reboot(t.Context(), req.Ref) })
	require.Equal(t, "running", virsh(t, "domstate", domain))

	rebooted, err := d.Find(t.Context(), req.Ref)
	require.NoError(t, err)
	require.NotEqual(t, found.Boot, rebooted.Boot)

	virsh(t, "suspend", domain)
	require.NoError(t, d.SetPower(t.Context(), req.Ref, driver.PowerOff), "a guest that cannot hear is not waited for")
	require.Equal(t, "shut off", virsh(t, "domstate", domain))

	require.NoError(t, d.SetPower(t.Context(), req.Ref, driver.PowerOn))
	virsh(t, "suspend", domain)
	remove(t, d, req.Ref)
	require.Empty(t, domainNames(t))
	require.Empty(t, files(t, dir))
}
