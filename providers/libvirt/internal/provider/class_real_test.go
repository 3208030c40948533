//go:build real

package provider

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
)

func TestANetworkKeepsAnAddressAsLongAsItsMachineExists(t *testing.T) {
	pool, _ := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	name := "kept-" + nameHash(t)[:6]
	file := filepath.Join(t.TempDir(), "network.xml")

	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `<network><name>%s</name><bridge name='%s'/><ip address='192.168.177.1' netmask='255.255.255.248'><dhcp>
		<range start='192.168.177.2' end='192.168.177.6'/><host mac='52:54:00:00:00:99' name='printer' ip='192.168.177.6'/></dhcp></ip></network>`, name, name), 0o600))
	virsh(t, "net-define", file)
	virsh(t, "net-start", name)
	t.Cleanup(func() {
		virsh(t, "net-destroy", name)
		virsh(t, "net-undefine", name)
	})

	class := strings.Replace(classData(pool, "autostart: false", "console_log: true", "labels: [{name: role, value: db}]"),
		"type: user", "network_name: "+name+", dhcp_reservation: true", 1)
	one, two := newRequest(t, "one", class), newRequest(t, "two", class)

	for range 2 {
		require.NoError(t, provision(t.Context(), d, one, new(testImage)))
		require.NoError(t, provision(t.Context(), d, two, new(testImage)))
	}

	for _, which := range []string{"", "--inactive"} {
		desc := virsh(t, strings.Fields("net-dumpxml "+name+" "+which)...)
		require.Equal(t, 3, strings.Count(desc, "<host "), desc)
		require.Contains(t, desc, fmt.Sprintf("<host mac='%s' name='one' ip='192.168.177.5'>", one.Identity.MAC(0)))
		require.Contains(t, desc, fmt.Sprintf("<host mac='%s' name='two' ip='192.168.177.4'>", two.Identity.MAC(0)))
	}

	found, err := d.Find(t.Context(), one.Ref)
	require.NoError(t, err)
	require.Equal(t, "db", found.Labels["role"])
	require.Equal(t, pool, found.Labels["pool"])

	domain := machine.NamesOf(one.Ref).Domain
	require.Contains(t, virsh(t, "dominfo", domain), "Autostart:      disable")
	require.FileExists(t, "/var/log/libvirt/qemu/"+domain+"-console.log")

	remove(t, d, one.Ref)
	remove(t, d, two.Ref)

	for _, which := range []string{"", "--inactive"} {
		desc := virsh(t, strings.Fields("net-dumpxml "+name+" "+which)...)
		require.Equal(t, 1, strings.Count(desc, "<host "), desc)
		require.Contains(t, desc, "printer")
	}
}
