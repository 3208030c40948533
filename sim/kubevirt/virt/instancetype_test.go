package virt

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	kubevirt "kubevirt.io/api/core/v1"
	instancetype "kubevirt.io/api/instancetype/v1beta1"
)

func TestInstanceTypeLeavesAloneWhatItSaysNothingOf(t *testing.T) {
	numa := &kubevirt.NUMA{GuestMappingPassthrough: &kubevirt.NUMAGuestMappingPassthrough{}}
	most := resource.MustParse("8Gi")
	spec := func() *kubevirt.VirtualMachineInstanceSpec {
		return &kubevirt.VirtualMachineInstanceSpec{Domain: kubevirt.DomainSpec{
			CPU: &kubevirt.CPU{NUMA: numa.DeepCopy(), MaxSockets: 8}, Memory: &kubevirt.Memory{MaxGuest: new(most.DeepCopy())},
		}}
	}
	size := &instancetype.VirtualMachineInstancetypeSpec{
		CPU: instancetype.CPUInstancetype{Guest: 2}, Memory: instancetype.MemoryInstancetype{Guest: resource.MustParse("4Gi")},
	}

	silent := spec()
	require.Empty(t, expandSpec(size, nil, silent))
	require.Equal(t, numa, silent.Domain.CPU.NUMA)
	require.EqualValues(t, 8, silent.Domain.CPU.MaxSockets)
	require.Equal(t, "8Gi", silent.Domain.Memory.MaxGuest.String())
	require.EqualValues(t, 2, silent.Domain.CPU.Sockets)
	require.Equal(t, "4Gi", silent.Domain.Memory.Guest.String())

	size.CPU.NUMA = numa
	require.Equal(t, [][]string{{"domain", "cpu", "numa"}}, expandSpec(size, nil, spec()), "what both say is a conflict")

	size.Memory.MaxGuest = new(resource.MustParse("6Gi"))
	open := &kubevirt.VirtualMachineInstanceSpec{}
	require.Empty(t, expandSpec(size, nil, open))
	require.Equal(t, numa, open.Domain.CPU.NUMA)
	require.Equal(t, "6Gi", open.Domain.Memory.MaxGuest.String())
}
