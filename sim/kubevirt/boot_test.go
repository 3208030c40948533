package kubevirt_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

func blank() *cdiv1.DataVolumeSource {
	return &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}}
}

// twoDisks is a machine whose disks are filled from these sources, with these boot orders; 0 is none.
func twoDisks(first, second *cdiv1.DataVolumeSource, orders ...uint) *kubevirtv1.VirtualMachine {
	return machine("a", func(vm *kubevirtv1.VirtualMachine) {
		vm.Spec.DataVolumeTemplates = []kubevirtv1.DataVolumeTemplateSpec{template("a", first), template("b", second)}

		spec := &vm.Spec.Template.Spec
		spec.Volumes = append(spec.Volumes, kubevirtv1.Volume{
			Name: "more", VolumeSource: kubevirtv1.VolumeSource{DataVolume: &kubevirtv1.DataVolumeSource{Name: "b"}},
		})

		for i, name := range []string{"disk", "more"} {
			disk := kubevirtv1.Disk{Name: name, DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: "virtio"}}}
			if orders[i] > 0 {
				disk.BootOrder = &orders[i]
			}

			spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, disk)
		}
	})
}

func TestMachineBootsFromTheFirstDiskThatHasAnImage(t *testing.T) {
	for name, tt := range map[string]struct {
		first, second *cdiv1.DataVolumeSource
		orders        []uint
		boots         bool
	}{
		"the first":                         {imported(), blank(), []uint{0, 0}, true},
		"the second, as the first is blank": {blank(), imported(), []uint{0, 0}, true},
		"by order":                          {blank(), imported(), []uint{2, 1}, true},
		"after a blank one":                 {blank(), imported(), []uint{1, 2}, true},
		"none has one":                      {blank(), blank(), []uint{0, 0}, false},
		"the one with it is not asked":      {blank(), imported(), []uint{1, 0}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuests()
				nothing := 0
				opts := kubevirt.Options{}
				opts.Virt.Boot = g.boot
				opts.Virt.Unbootable = func(virt.Guest) { nothing++ }

				w := start(t, opts)
				w.create(twoDisks(tt.first, tt.second, tt.orders...))
				after(time.Minute)

				require.Equal(t, "Running", w.status("a"), "KubeVirt does not see that a guest does not boot")
				require.True(t, w.Machines()[0].On)

				if tt.boots {
					require.Equal(t, imageURL, (<-g.booted).Image)
					require.Zero(t, nothing)
				} else {
					require.Empty(t, g.booted)
					require.Equal(t, 1, nothing)
				}
			})
		})
	}
}

// A machine of a claim that nobody filled stays at its firmware, also when it is reset.
func TestClaimThatNobodyFilledDoesNotBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuests()
		opts := kubevirt.Options{}
		opts.Virt.Boot = g.boot

		w := start(t, opts)

		_, err := w.AddForeign("claim", "theirs")
		require.NoError(t, err)
		w.create(machine("a", func(vm *kubevirtv1.VirtualMachine) {
			vm.Spec.DataVolumeTemplates = nil
			vm.Spec.Template.Spec.Volumes[0].VolumeSource = kubevirtv1.VolumeSource{
				PersistentVolumeClaim: &kubevirtv1.PersistentVolumeClaimVolumeSource{
					PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "theirs"},
				},
			}
		}))
		after(time.Minute)
		require.Equal(t, "Running", w.status("a"))

		code, message := w.call("virtualmachineinstances", "a", "reset", "")
		require.Equal(t, 200, code, message)
		after(time.Minute)
		require.Empty(t, g.booted)
		require.Equal(t, 2, w.Machines()[0].Boots)

		// It can be switched off none the less.
		require.NoError(t, w.virt.KubevirtV1().VirtualMachines(ns).Delete(t.Context(), "a", metav1.DeleteOptions{}))
		after(time.Minute)
		require.Nil(t, w.instance("a"))
	})
}
