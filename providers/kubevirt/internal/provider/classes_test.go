package provider_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
)

// furnish makes what classes name: the network vlan7 and the instance type medium, in the machines' namespace.
func (l *lab) furnish() {
	l.t.Helper()

	client, err := dynamic.NewForConfig(l.Server().Admin())
	require.NoError(l.t, err)

	networks := client.Resource(schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"})
	_, err = networks.Namespace(namespace).Create(l.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": map[string]any{"name": "vlan7"},
		"spec": map[string]any{"config": `{"cniVersion": "0.3.1", "type": "bridge", "bridge": "br7"}`},
	}}, metav1.CreateOptions{})
	require.NoError(l.t, err)

	_, err = l.admin().KubeVirt.InstancetypeV1beta1().VirtualMachineInstancetypes(namespace).Create(l.t.Context(), &instancetypev1beta1.VirtualMachineInstancetype{
		ObjectMeta: metav1.ObjectMeta{Name: "medium"},
		Spec: instancetypev1beta1.VirtualMachineInstancetypeSpec{
			CPU: instancetypev1beta1.CPUInstancetype{Guest: 2}, Memory: instancetypev1beta1.MemoryInstancetype{Guest: resource.MustParse("4Gi")},
		},
	}, metav1.CreateOptions{})
	require.NoError(l.t, err)
}

func TestMachineOfEachClassIsMadeRebootedAndRemoved(t *testing.T) {
	const size = "cores: 2, memory: 4096, disk_size: 20"

	for name, data := range map[string]string{
		"network":        "{" + size + ", networks: [{binding: masquerade}, {type: multus, network: vlan7}]}",
		"only network":   "{" + size + ", networks: [{type: multus, network: vlan7}]}",
		"disks":          "{" + size + ", additional_disks: [{size: 5}, {size: 7, name: etcd, serial: etcd-disk, volume_mode: Block, bus: scsi}]}",
		"secure boot":    "{" + size + ", secure_boot: true, tpm: true}",
		"block":          "{" + size + ", volume_mode: Block}",
		"instance type":  "{disk_size: 20, instancetype: {name: medium, kind: namespace}}",
		"container disk": "{" + size + ", image: {source: container_disk, reference: registry.test/talos}}",
		"all": "{disk_size: 20, instancetype: {name: medium, kind: namespace}, image: {source: snapshot, snapshot_class: snapshots}, " +
			"networks: [{binding: masquerade}, {type: multus, network: vlan7}], additional_disks: [{size: 5}], secure_boot: true, " +
			"run_strategy: RerunOnFailure}",
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				opts := kubevirt.Options{Enter: keepImages}
				opts.Virt.Times.Start = 5 * time.Second
				l := newLab(t, opts)
				l.furnish()

				o := l.provision(requestOf("r-1", data), time.Hour)
				require.NoError(t, o.err, "%v", o.said)

				find := func() driver.Machine {
					time.Sleep(2 * time.Minute)

					m, err := l.driver.Find(t.Context(), ref("r-1"))
					require.NoError(t, err)

					return m
				}

				first := find()
				require.Equal(t, driver.PowerOn, first.Power)
				require.Equal(t, string(kubevirtv1.VirtualMachineStatusRunning), first.State)
				require.NoError(t, l.driver.Reboot(t.Context(), ref("r-1")))

				second := find()
				assert.Equal(t, driver.PowerOn, second.Power)
				assert.NotEqual(t, first.Boot, second.Boot)
				assert.Equal(t, driver.NewIdentity(ref("r-1")).UUID, second.UUID)

				l.mustRemove("r-1")
				assert.Empty(t, l.left())
			})
		})
	}
}
