package provider_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
)

// report makes what the cluster reports of a machine's interfaces what is given.
func (l *lab) report(request string, nics []kubevirtv1.VirtualMachineInstanceNetworkInterface) {
	l.t.Helper()

	k := l.admin()

	instance, err := k.Instances().Get(l.t.Context(), namespace, machine.NamesOf(ref(request)).VM)
	require.NoError(l.t, err)

	instance.Status.Interfaces = nics
	_, err = k.KubeVirt.KubevirtV1().VirtualMachineInstances(namespace).Update(l.t.Context(), instance, metav1.UpdateOptions{})
	require.NoError(l.t, err)
	synctest.Wait()
}

func TestAddressesAreThoseThatKubeVirtReports(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.furnish()

		const data = "{cores: 2, memory: 2048, disk_size: 10, networks: [{binding: masquerade}, {type: multus, network: vlan7}, {type: multus, network: vlan7}, {type: multus, network: vlan7}]}"

		require.NoError(t, l.provision(requestOf("r-1", data), time.Hour).err)

		ask := func() map[driver.Ref][]driver.Interface {
			synctest.Wait()

			got, err := l.driver.Addresses(t.Context(), providerID)
			require.NoError(t, err)

			return got
		}

		// As KubeVirt knows them from the machine itself.
		first := ask()[ref("r-1")]
		require.Len(t, first, 4)
		assert.Equal(t, "lease", first[0].Source)
		assert.Len(t, first[0].IPs, 1)
		assert.Empty(t, first[0].Missing)

		for _, nic := range first[1:] {
			assert.Equal(t, driver.Interface{MAC: nic.MAC, Missing: "KubeVirt reports none"}, nic)
			assert.Regexp(t, "^([0-9a-f]{2}:){5}[0-9a-f]{2}$", nic.MAC)
		}

		l.report("r-1", []kubevirtv1.VirtualMachineInstanceNetworkInterface{
			{Name: "default", MAC: "02:AB:CD:00:00:01", IP: "10.0.2.2", IPs: []string{"10.0.2.2", "fd00::2", "no address"}, InfoSource: "domain, guest-agent, multus-status"},
			// One of the guest's own, as a bridge of its containers.
			{MAC: "02:ab:cd:00:00:02", IP: "10.244.0.1", IPs: []string{"10.244.0.1"}, InfoSource: "guest-agent"},
			{Name: "net-2", MAC: "02:ab:cd:00:00:03", IPs: []string{"10.0.7.3"}, InfoSource: "domain, multus-status"},
			{Name: "net-3", MAC: "02:AB:CD:00:00:04", InfoSource: "domain, guest-agent"},
		})

		assert.Equal(t, map[driver.Ref][]driver.Interface{ref("r-1"): {
			{MAC: "02:ab:cd:00:00:01", IPs: []netip.Addr{netip.MustParseAddr("10.0.2.2"), netip.MustParseAddr("fd00::2")}, Source: "agent"},
			{MAC: "02:ab:cd:00:00:03", IPs: []netip.Addr{netip.MustParseAddr("10.0.7.3")}, Source: "lease"},
			{MAC: "02:ab:cd:00:00:04", Missing: "KubeVirt reports none"},
		}}, ask())

		// Another provider's, and a machine that is off, are not asked for.
		other, err := l.driver.Addresses(t.Context(), "another")
		require.NoError(t, err)
		assert.Empty(t, other)

		require.NoError(t, l.driver.SetPower(t.Context(), ref("r-1"), driver.PowerOff))
		time.Sleep(5 * time.Minute)
		assert.Empty(t, ask())
	})
}

func TestAddressesOfOneNamespaceAreToldThoughAnotherFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newTwins(t)
		require.NoError(t, l.provision(requestOf("r-1", classData), time.Hour).err)
		l.forbid(second, "virtualmachineinstances")
		l.restart(l.tune)

		got, err := l.driver.Addresses(t.Context(), providerID)
		require.ErrorContains(t, err, second)
		require.Len(t, got[ref("r-1")], 1)
		assert.True(t, strings.HasPrefix(got[ref("r-1")][0].IPs[0].String(), "10."))
	})
}
