package kubevirt_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/cdi"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

// volume is a DataVolume of that source and size in spec.storage.
func volume(name, size string, source *cdiv1.DataVolumeSource, change ...func(*cdiv1.DataVolume)) *cdiv1.DataVolume {
	dv := &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Spec:       cdiv1.DataVolumeSpec{Source: source, Storage: &cdiv1.StorageSpec{}},
	}

	if size != "" {
		dv.Spec.Storage.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}

	for _, f := range change {
		f(dv)
	}

	return dv
}

func cloned(name string) *cdiv1.DataVolumeSource {
	return &cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: ns, Name: name}}
}

func (w *world) createVolume(dv *cdiv1.DataVolume) error {
	_, err := w.cdi.CdiV1beta1().DataVolumes(ns).Create(w.Context(), dv, metav1.CreateOptions{})

	return err
}

func (w *world) volume(name string) *cdiv1.DataVolume {
	w.Helper()

	dv, err := w.cdi.CdiV1beta1().DataVolumes(ns).Get(w.Context(), name, metav1.GetOptions{})
	require.NoError(w, err)

	return dv
}

func (w *world) claim(name string) *corev1.PersistentVolumeClaim {
	w.Helper()

	pvc, err := w.core.CoreV1().PersistentVolumeClaims(ns).Get(w.Context(), name, metav1.GetOptions{})
	require.NoError(w, err)

	return pvc
}

// told returns reason and message of a condition.
func told(dv *cdiv1.DataVolume, t cdiv1.DataVolumeConditionType) (reason, message string) {
	for _, c := range dv.Status.Conditions {
		if c.Type == t {
			return c.Reason, c.Message
		}
	}

	return "", ""
}

// onClass puts a volume on a storage class.
func onClass(name string) func(*cdiv1.DataVolume) {
	return func(dv *cdiv1.DataVolume) { dv.Spec.Storage.StorageClassName = &name }
}

// found is an image of that size at every URL.
func found(size int64) func(context.Context, cdi.Source) (cdi.Image, error) {
	return func(context.Context, cdi.Source) (cdi.Image, error) { return cdi.Image{VirtualSize: size}, nil }
}

func TestClaimIsLargerThanItsDiskByTheFileSystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		require.NoError(t, w.createVolume(volume("files", "10Gi", imported())))
		require.NoError(t, w.createVolume(volume("device", "10Gi", imported(), func(dv *cdiv1.DataVolume) {
			dv.Spec.Storage.VolumeMode = new(corev1.PersistentVolumeBlock)
		})))
		require.NoError(t, w.createVolume(volume("claim", "", imported(), func(dv *cdiv1.DataVolume) {
			dv.Spec.Storage = nil
			dv.Spec.PVC = &corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")}},
			}
		})))
		after(time.Second)

		size := func(name string) int64 { return w.claim(name).Spec.Resources.Requests.Storage().Value() }
		require.EqualValues(t, 11381663335, size("files"), "10 GiB and 6 % of it")
		require.EqualValues(t, 10<<30, size("device"))
		require.EqualValues(t, 10<<30, size("claim"), "spec.pvc is taken as it is")

		for _, name := range []string{"files", "device", "claim"} {
			require.Equal(t, cdiv1.Succeeded, w.volume(name).Status.Phase, name)
			require.Equal(t, corev1.ClaimBound, w.claim(name).Status.Phase, name)
			require.Equal(t, imageURL, w.CDI.Content(ns, name))
		}
	})
}

func TestImageThatDoesNotFitIsTriedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.CDI.Fetch = found(10<<30 + 1<<20)
		w := start(t, opts)
		require.NoError(t, w.createVolume(volume("a", "10Gi", imported())))
		after(15 * time.Minute)

		dv := w.volume("a")
		require.Equal(t, cdiv1.ImportInProgress, dv.Status.Phase)
		require.Greater(t, dv.Status.RestartCount, int32(4))

		reason, message := told(dv, cdiv1.DataVolumeRunning)
		require.Equal(t, "Error", reason)
		require.Equal(t, "DataVolume too small to contain image", message)
	})
}

func TestImportGoesOnAfterTroubleAndFailsOnlyForGood(t *testing.T) {
	for name, tt := range map[string]struct {
		fault        cdi.Fault
		early, late  cdiv1.DataVolumePhase
		reason, text string
		machine      string
	}{
		"passing": {
			cdi.Fault{Message: "connection reset by peer", Times: 2}, cdiv1.ImportInProgress, cdiv1.Succeeded,
			"Error", "connection reset by peer", "DataVolumeError",
		},
		"lasting": {
			cdi.Fault{Message: "404 Not Found"}, cdiv1.ImportInProgress, cdiv1.ImportInProgress, "Error", "404 Not Found", "DataVolumeError",
		},
		"for good": {
			cdi.Fault{Message: "checksum mismatch", Fatal: true}, cdiv1.Failed, cdiv1.Failed, "ChecksumError", "checksum mismatch", "DataVolumeError",
		},
		"without a node": {
			cdi.Fault{Unschedulable: true}, cdiv1.ImportScheduled, cdiv1.ImportScheduled, "Unschedulable", "Importer pod cannot be scheduled", "Provisioning",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, kubevirt.Options{})
				w.CDI.Inject(tt.fault)
				w.create(machine("a"))
				after(5 * time.Second)

				dv := w.volume("a")
				require.Equal(t, tt.early, dv.Status.Phase)

				reason, text := told(dv, cdiv1.DataVolumeRunning)
				require.Equal(t, tt.reason, reason)
				require.Equal(t, tt.text, text)
				require.Equal(t, tt.machine, w.status("a"))
				after(time.Hour)
				require.Equal(t, tt.late, w.volume("a").Status.Phase)
				require.Equal(t, tt.late == cdiv1.Succeeded, w.status("a") == "Running")
			})
		})
	}
}

func TestErrorsOfTheImageFactoryAreThoseOfTheImporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool

		opts := kubevirt.Options{}
		opts.CDI.Fetch = func(context.Context, cdi.Source) (cdi.Image, error) {
			if !up.Load() {
				return cdi.Image{}, errors.New("no route to host")
			}

			return cdi.Image{VirtualSize: 1 << 30}, nil
		}
		w := start(t, opts)
		require.NoError(t, w.createVolume(volume("a", "10Gi", imported())))
		after(15 * time.Minute)

		_, text := told(w.volume("a"), cdiv1.DataVolumeRunning)
		require.Equal(t, "no route to host", text)

		up.Store(true)
		after(6 * time.Minute)
		require.Equal(t, cdiv1.Succeeded, w.volume("a").Status.Phase)
	})
}

func TestCloneHasTheImageOfItsSource(t *testing.T) {
	for name, tt := range map[string]struct {
		class string
		want  cdiv1.DataVolumePhase
	}{
		"same class, snapshots": {"snapshots", cdiv1.SnapshotForSmartCloneInProgress},
		"same class, driver":    {"driver", cdiv1.CSICloneInProgress},
		"same class, plain":     {"plain", cdiv1.CloneInProgress},
		"another class":         {"", cdiv1.CloneInProgress},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := kubevirt.Options{}
				opts.Classes = []kubevirt.StorageClass{
					{Name: "standard", Default: true}, {Name: "snapshots"}, {Name: "driver", Clone: cdiv1.CloneStrategyCsiClone}, {Name: "plain", Plain: true},
				}
				opts.CDI.Times.Clone, opts.CDI.Times.Import = time.Minute, time.Minute
				w := start(t, opts)

				source := tt.class
				if source == "" {
					source = "snapshots"
				}

				target := onClass("standard")
				if tt.class != "" {
					target = onClass(tt.class)
				}

				require.NoError(t, w.createVolume(volume("image", "2Gi", imported(), onClass(source))))
				after(time.Second)
				require.NoError(t, w.createVolume(volume("a", "10Gi", cloned("image"), target)))
				after(time.Second)
				require.Equal(t, cdiv1.CloneScheduled, w.volume("a").Status.Phase, "the source is still imported")
				after(time.Minute)
				require.Equal(t, tt.want, w.volume("a").Status.Phase)
				after(time.Minute)
				require.Equal(t, cdiv1.Succeeded, w.volume("a").Status.Phase)
				require.Equal(t, imageURL, w.CDI.Content(ns, "a"))
			})
		})
	}
}

func TestCloneNeedsASourceThatFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		require.NoError(t, w.createVolume(volume("a", "10Gi", cloned("image"))))
		after(time.Second)

		reason, text := told(w.volume("a"), cdiv1.DataVolumeBound)
		require.Equal(t, "CloneWithoutSource", reason)
		require.Equal(t, "The source pvc image doesn't exist", text)

		require.NoError(t, w.createVolume(volume("image", "5Gi", imported())))
		require.NoError(t, w.createVolume(volume("small", "4Gi", cloned("image"))))
		require.NoError(t, w.createVolume(volume("same", "", cloned("image"))))
		after(time.Second)
		require.Equal(t, cdiv1.Succeeded, w.volume("a").Status.Phase)
		require.Equal(t, cdiv1.Succeeded, w.volume("same").Status.Phase)
		require.Equal(t, w.claim("image").Spec.Resources.Requests, w.claim("same").Spec.Resources.Requests)

		reason, text = told(w.volume("small"), cdiv1.DataVolumeBound)
		require.Equal(t, "CloneValidationFailed", reason)
		require.Contains(t, text, "target resources requests storage size is smaller than the source")
	})
}

func TestClaimThatWaitsForItsConsumerIsFilledWhenAMachineWantsIt(t *testing.T) {
	for name, tt := range map[string]struct {
		class kubevirt.StorageClass
		phase cdiv1.DataVolumePhase
	}{
		"populated": {kubevirt.StorageClass{Name: "late", Default: true, WaitForFirstConsumer: true}, cdiv1.PendingPopulation},
		"plain":     {kubevirt.StorageClass{Name: "late", Default: true, WaitForFirstConsumer: true, Plain: true}, cdiv1.WaitForFirstConsumer},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := kubevirt.Options{}
				opts.Classes = []kubevirt.StorageClass{tt.class}
				w := start(t, opts)

				require.NoError(t, w.createVolume(volume("image", "2Gi", imported())))
				require.NoError(t, w.createVolume(volume("now", "2Gi", imported(), func(dv *cdiv1.DataVolume) {
					dv.Annotations["cdi.kubevirt.io/storage.bind.immediate.requested"] = "true"
				})))
				w.create(machine("off", func(vm *kubevirtv1.VirtualMachine) { vm.Spec.RunStrategy = new(kubevirtv1.RunStrategyHalted) }))
				w.create(machine("on"))
				after(time.Minute)
				require.Equal(t, tt.phase, w.volume("image").Status.Phase)
				require.Equal(t, cdiv1.Succeeded, w.volume("now").Status.Phase)
				require.Equal(t, tt.phase, w.volume("off").Status.Phase)
				require.Equal(t, "Stopped", w.status("off"))
				require.Equal(t, cdiv1.Succeeded, w.volume("on").Status.Phase)
				require.Equal(t, "Running", w.status("on"))
			})
		})
	}
}

func TestQuotaIsShownUntilThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		_, err := w.core.CoreV1().ResourceQuotas(ns).Create(t.Context(), &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "quota"},
			Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.storage": resource.MustParse("5Gi"), "requests.memory": resource.MustParse("1Gi")}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)

		w.create(machine("a"))
		w.create(diskless("b", "Always"))
		after(5 * time.Second)

		reason, text := told(w.volume("a"), cdiv1.DataVolumeBound)
		require.Equal(t, "ErrExceededQuota", reason)
		require.Contains(t, text, "exceeded quota: quota, requested: requests.storage=")

		trouble := ""

		for _, c := range w.machine("b").Status.Conditions {
			if c.Type == "Synchronized" {
				trouble = c.Message
			}
		}

		require.Contains(t, trouble, `is forbidden: exceeded quota: quota, requested: requests.memory=2288Mi, used: requests.memory=0, limited: requests.memory=1Gi`)

		require.NoError(t, w.core.CoreV1().ResourceQuotas(ns).Delete(t.Context(), "quota", metav1.DeleteOptions{}))
		after(5 * time.Minute)
		require.Equal(t, "Running", w.status("a"))
		require.Equal(t, "Running", w.status("b"))
	})
}

func TestDataVolumesAreCollectedAndTheirClaimsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.CDI.CollectAfter = time.Minute
		w := start(t, opts)
		require.NoError(t, w.createVolume(volume("image", "2Gi", imported())))
		require.NoError(t, w.createVolume(volume("kept", "2Gi", imported(), func(dv *cdiv1.DataVolume) {
			dv.Annotations["cdi.kubevirt.io/storage.deleteAfterCompletion"] = "false"
		})))
		w.create(machine("a"))
		after(5 * time.Minute)

		_, err := w.cdi.CdiV1beta1().DataVolumes(ns).Get(t.Context(), "image", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		require.Equal(t, corev1.ClaimBound, w.claim("image").Status.Phase)
		require.Equal(t, cdiv1.Succeeded, w.volume("kept").Status.Phase)
		require.Equal(t, "Running", w.status("a"))

		require.NoError(t, w.createVolume(volume("b", "2Gi", cloned("image"))))
		after(30 * time.Second)
		require.Equal(t, imageURL, w.CDI.Content(ns, "b"), "a claim is a source without its DataVolume")

		require.NoError(t, w.virt.KubevirtV1().VirtualMachines(ns).Delete(t.Context(), "a", metav1.DeleteOptions{}))
		after(time.Minute)

		_, err = w.core.CoreV1().PersistentVolumeClaims(ns).Get(t.Context(), "a", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "the claim belongs to the machine: %v", err)
	})
}

func TestWebhookOfCDIRefusesInItsWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		require.NoError(t, w.createVolume(volume("there", "2Gi", imported())))
		_, err := w.AddForeign("claim", "taken")
		require.NoError(t, err)

		for want, dv := range map[string]*cdiv1.DataVolume{
			"Missing Data volume PVC":                                                        volume("a", "", imported(), func(dv *cdiv1.DataVolume) { dv.Spec.Storage = nil }),
			"Storage size is missing":                                                        volume("a", "", imported()),
			"Storage size should be at least 1MiB":                                           volume("a", "1Ki", imported()),
			"Storage size can't be equal or less than zero":                                  volume("a", "0", imported()),
			"Data volume should have either Source or SourceRef, or be externally populated": volume("a", "1Gi", nil),
			"Missing Data volume source":                                                     volume("a", "1Gi", &cdiv1.DataVolumeSource{}),
			"Multiple Data volume sources":                                                   volume("a", "1Gi", &cdiv1.DataVolumeSource{PVC: cloned("b").PVC, HTTP: imported().HTTP}),
			"spec.source source URL is empty":                                                volume("a", "1Gi", &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{}}),
			"Invalid source URL scheme: ftp://a/b":                                           volume("a", "1Gi", &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "ftp://a/b"}}),
			"spec.source.PVC source PVC is not valid":                                        volume("a", "1Gi", &cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Name: "a"}}),
			"Destination PVC default/taken already exists":                                   volume("taken", "1Gi", imported()),
		} {
			err := w.createVolume(dv)
			require.ErrorContains(t, err, `admission webhook "datavolume-validate.cdi.kubevirt.io" denied the request: `)
			require.ErrorContains(t, err, want)
		}

		time.Sleep(time.Hour) // Nobody writes it any more.

		dv := w.volume("there")
		dv.Spec.Source = cloned("other")
		_, err = w.cdi.CdiV1beta1().DataVolumes(ns).Update(t.Context(), dv, metav1.UpdateOptions{})
		require.ErrorContains(t, err, "Cannot update DataVolume Spec")
	})
}

func TestWebhooksOfKubeVirtRefuseInTheirWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})

		spec := func(f func(*kubevirtv1.VirtualMachineInstanceSpec)) *kubevirtv1.VirtualMachine {
			return machine("a", func(vm *kubevirtv1.VirtualMachine) { f(&vm.Spec.Template.Spec) })
		}
		inline := func(n int) *kubevirtv1.VirtualMachine {
			return spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
				s.Volumes[1].CloudInitNoCloud = &kubevirtv1.CloudInitNoCloudSource{UserData: strings.Repeat("x", n)}
			})
		}

		for _, tt := range []struct {
			name string
			vm   *kubevirtv1.VirtualMachine
			want string // empty is no refusal
		}{
			{"good", machine("a"), ""},
			{"2048 bytes", inline(2048), ""},
			{"2049 bytes", inline(2049), "spec.template.spec.volumes[1].cloudInitNoCloud userdata exceeds 2048 byte limit. Should use UserDataSecretRef for larger data."},
			{"no strategy", machine("a", func(vm *kubevirtv1.VirtualMachine) { vm.Spec.RunStrategy = nil }), "RunStrategy must be specified"},
			{
				"both", machine("a", func(vm *kubevirtv1.VirtualMachine) { vm.Spec.Running = new(true) }),
				"Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy instead",
			},
			{
				"strategy", machine("a", func(vm *kubevirtv1.VirtualMachine) {
					vm.Spec.RunStrategy = new(kubevirtv1.VirtualMachineRunStrategy("Sometimes"))
				}),
				"Invalid RunStrategy (Sometimes)",
			},
			{
				"disk", spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
					s.Domain.Devices.Disks = []kubevirtv1.Disk{{Name: "other"}}
				}),
				"spec.template.spec.domain.devices.disks[0].Name 'other' not found.",
			},
			{
				"template", machine("a", func(vm *kubevirtv1.VirtualMachine) { vm.Spec.DataVolumeTemplates[0].Name = "other" }),
				"DataVolumeTemplate entry spec.dataVolumeTemplate[0] must be referenced in the VMI template's 'volumes' list",
			},
			{
				"secure boot", spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
					s.Domain.Firmware = &kubevirtv1.Firmware{Bootloader: &kubevirtv1.Bootloader{EFI: &kubevirtv1.EFI{}}}
				}), "spec.template.spec.domain has EFI SecureBoot enabled. SecureBoot requires SMM, which is currently disabled.",
			},
			{
				"secure boot with SMM", spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
					s.Domain.Firmware = &kubevirtv1.Firmware{Bootloader: &kubevirtv1.Bootloader{EFI: &kubevirtv1.EFI{SecureBoot: new(true)}}}
					s.Domain.Features = &kubevirtv1.Features{SMM: &kubevirtv1.FeatureState{}}
					s.Domain.Devices.TPM = &kubevirtv1.TPMDevice{Persistent: new(true)}
				}), "",
			},
			{
				"network", spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
					s.Domain.Devices.Interfaces = []kubevirtv1.Interface{{Name: "a", InterfaceBindingMethod: kubevirtv1.InterfaceBindingMethod{Masquerade: &kubevirtv1.InterfaceMasquerade{}}}}
					s.Networks = []kubevirtv1.Network{{Name: "a", NetworkSource: kubevirtv1.NetworkSource{Multus: &kubevirtv1.MultusNetwork{NetworkName: "lan"}}}}
				}), "Masquerade interface only implemented with pod network",
			},
			{
				"interface", spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
					s.Domain.Devices.Interfaces = []kubevirtv1.Interface{{Name: "a"}}
				}), "spec.template.spec.domain.devices.interfaces[0].name 'a' not found.",
			},
			{
				"address", spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
					s.Domain.Devices.Interfaces = []kubevirtv1.Interface{{Name: "a", MacAddress: "no"}}
					s.Networks = []kubevirtv1.Network{{Name: "a", NetworkSource: kubevirtv1.NetworkSource{Pod: &kubevirtv1.PodNetwork{}}}}
				}), "has malformed MAC address (no).",
			},
			{
				"hostname", spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Hostname = strings.Repeat("a", 64) }),
				"spec.template.spec.hostname does not conform to the kubernetes DNS_LABEL rules : must be no more than 63 characters",
			},
			{
				"pages", spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
					s.Domain.Memory.Hugepages = &kubevirtv1.Hugepages{PageSize: "3Mi"}
				}),
				"is not a multiple of the page size spec.template.spec.domain.memory.hugepages.pageSize '3Mi'",
			},
			{
				"machine", spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Domain.Machine = &kubevirtv1.Machine{Type: "pc"} }),
				"spec.template.spec.domain.machine.type is not supported: pc (allowed values: [q35* pc-q35*])",
			},
			{
				"boot order", spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
					s.Domain.Devices.Disks = []kubevirtv1.Disk{{Name: "disk", BootOrder: new(uint(1))}, {Name: "seed", BootOrder: new(uint(1))}}
				}), "Boot order for spec.template.spec.domain.devices.disks[1].bootOrder already set for a different device.",
			},
		} {
			_, err := w.virt.KubevirtV1().VirtualMachines(ns).Create(w.Context(), tt.vm, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if tt.want == "" {
				require.NoError(t, err, tt.name)

				continue
			}

			require.True(t, apierrors.IsInvalid(err), "%s: %v", tt.name, err)
			require.ErrorContains(t, err, `admission webhook "virtualmachine-validator.kubevirt.io" denied the request: `, tt.name)
			require.ErrorContains(t, err, tt.want, tt.name)
		}
	})
}

func TestNamespaceTakesAllWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Namespaces = []string{"omni"}
		opts.Virt.Boot = newGuests().boot
		w := start(t, opts)
		_, err := w.virt.KubevirtV1().VirtualMachines("omni").Create(t.Context(), machine("a"), metav1.CreateOptions{})
		require.NoError(t, err)
		after(time.Minute)
		require.NoError(t, w.core.CoreV1().Namespaces().Delete(t.Context(), "omni", metav1.DeleteOptions{}))
		after(5 * time.Minute)

		_, err = w.core.CoreV1().Namespaces().Get(t.Context(), "omni", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		require.Empty(t, w.Ledger().Leaks())
	})
}

func TestDependentsFollowTheirOwnerAsTheDeletionSays(t *testing.T) {
	for policy, want := range map[metav1.DeletionPropagation]struct{ machine, volume bool }{
		metav1.DeletePropagationForeground: {}, metav1.DeletePropagationBackground: {}, metav1.DeletePropagationOrphan: {volume: true},
	} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, kubevirt.Options{})
				w.create(machine("a"))
				after(time.Minute)
				require.NoError(t, w.virt.KubevirtV1().VirtualMachines(ns).Delete(t.Context(), "a", metav1.DeleteOptions{PropagationPolicy: &policy}))
				after(time.Minute)
				require.Empty(t, w.status("a"))

				_, err := w.cdi.CdiV1beta1().DataVolumes(ns).Get(t.Context(), "a", metav1.GetOptions{})
				require.Equal(t, want.volume, err == nil)
			})
		})
	}
}

func TestDependentOfSeveralOwnersGoesWithTheLast(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationForeground, metav1.DeletePropagationBackground} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, kubevirt.Options{})
				secrets := w.core.CoreV1().Secrets(ns)
				shared := secret("shared")

				for _, name := range []string{"a", "b"} {
					vm := w.create(diskless(name, "Halted"))
					ref := *metav1.NewControllerRef(vm, kubevirtv1.VirtualMachineGroupVersionKind)
					ref.Controller = nil
					shared.OwnerReferences = append(shared.OwnerReferences, ref)
				}

				_, err := secrets.Create(t.Context(), shared, metav1.CreateOptions{})
				require.NoError(t, err)

				require.NoError(t, w.virt.KubevirtV1().VirtualMachines(ns).Delete(t.Context(), "a", metav1.DeleteOptions{PropagationPolicy: &policy}))
				after(time.Minute)
				require.Empty(t, w.status("a"), "it does not wait for what somebody else owns too")

				left, err := secrets.Get(t.Context(), "shared", metav1.GetOptions{})
				require.NoError(t, err)
				require.Equal(t, shared.OwnerReferences[1:], left.OwnerReferences, "the reference to the owner that is gone is taken away")

				require.NoError(t, w.virt.KubevirtV1().VirtualMachines(ns).Delete(t.Context(), "b", metav1.DeleteOptions{PropagationPolicy: &policy}))
				after(time.Minute)
				require.Empty(t, w.status("b"))

				_, err = secrets.Get(t.Context(), "shared", metav1.GetOptions{})
				require.True(t, apierrors.IsNotFound(err), "%v", err)
			})
		})
	}
}

func TestForeignObjectsAreNoLeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})

		for _, kind := range []string{"vm", "datavolume", "claim", "secret"} {
			_, err := w.AddForeign(kind, "foreign-"+kind)
			require.NoError(t, err)
		}

		after(time.Minute)
		require.Empty(t, w.Ledger().Leaks())
		require.Len(t, w.Machines(), 1)
		require.NoError(t, w.SwitchOn(w.Machines()[0].ID))
		after(time.Second)
		require.True(t, w.Machines()[0].On)
		require.NoError(t, w.SwitchOff(w.Machines()[0].ID))
		after(time.Minute)
		require.False(t, w.Machines()[0].On)
		require.NoError(t, w.DeleteMachine(w.Machines()[0].ID))
		after(time.Second)
		require.Empty(t, w.Machines())
		require.Error(t, w.DeleteMachine("none"))

		_, err := w.AddForeign("pod", "a")
		require.ErrorContains(t, err, `kind "pod" is none of`)
	})
}

func TestMissingSecretKeepsAMachineFromStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuests()
		opts := kubevirt.Options{}
		opts.Virt.Boot = g.boot
		w := start(t, opts)
		_, err := w.virt.KubevirtV1().VirtualMachines(ns).Create(t.Context(), diskless("a", "Always"), metav1.CreateOptions{})
		require.NoError(t, err)
		after(time.Hour)
		require.Equal(t, "Starting", w.status("a"))

		_, err = w.core.CoreV1().Secrets(ns).Create(t.Context(), secret("a"), metav1.CreateOptions{})
		require.NoError(t, err)
		after(time.Second)
		require.Equal(t, "Running", w.status("a"))
		require.Equal(t, virt.Guest{UserData: []byte("#cloud-config")}.UserData, (<-g.booted).UserData)
	})
}

func TestClaimNamesThePopulatorOfItsVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startShots(t, kubevirt.Options{})
		require.NoError(t, s.createVolume(volume("image", "2Gi", imported())))
		after(time.Second)
		s.take("image", "image")
		after(time.Second)
		require.NoError(t, s.createVolume(volume("copy", "2Gi", cloned("image"))))
		require.NoError(t, s.createVolume(volume("restored", "2Gi", shotOf("image"))))
		after(time.Second)

		for name, want := range map[string]struct{ kind, prefix string }{
			"image": {"VolumeImportSource", "volume-import-source-"}, "copy": {"VolumeCloneSource", "volume-clone-source-"},
			"restored": {"VolumeCloneSource", "volume-clone-source-"},
		} {
			ref := s.claim(name).Spec.DataSourceRef
			require.NotNil(t, ref, name)
			require.Equal(t, want.kind, ref.Kind, name)
			require.Equal(t, want.prefix+string(s.volume(name).UID), ref.Name, name)
		}
	})
}

func TestVolumeThatIsBoundAtOnceIsBoundOnANodeThatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Classes = []kubevirt.StorageClass{{Name: "late", Default: true, WaitForFirstConsumer: true}}
		opts.Virt.Nodes = []virt.Node{{Name: "rack-7"}, {Name: "rack-8"}}
		w := start(t, opts)
		require.NoError(t, w.createVolume(volume("a", "2Gi", imported(), func(dv *cdiv1.DataVolume) {
			dv.Annotations["cdi.kubevirt.io/storage.bind.immediate.requested"] = "true"
		})))
		after(time.Second)
		require.Equal(t, cdiv1.Succeeded, w.volume("a").Status.Phase)
		require.Equal(t, "rack-7", w.claim("a").Annotations["volume.kubernetes.io/selected-node"])
	})
}

func TestCloneFailsForGood(t *testing.T) {
	for _, of := range []string{"claim", "snapshot"} {
		t.Run(of, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startShots(t, kubevirt.Options{})
				require.NoError(t, s.createVolume(volume("image", "2Gi", imported())))
				after(time.Second)
				s.take("image", "image")
				after(time.Second)

				source := cloned("image")
				if of == "snapshot" {
					source = shotOf("image")
				}

				s.CDI.Inject(cdi.Fault{Volume: ns + "/a", Message: "the volume is broken", Fatal: true, Times: 1})
				require.NoError(t, s.createVolume(volume("a", "2Gi", source)))
				after(30 * time.Minute)
				require.Equal(t, cdiv1.Failed, s.volume("a").Status.Phase)

				events, err := s.core.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=CloneFailed"})
				require.NoError(t, err)
				require.Len(t, events.Items, 1)
			})
		})
	}
}
