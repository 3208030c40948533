package kubevirt_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiclient "kubevirt.io/client-go/containerizeddataimporter"
	kubevirtclient "kubevirt.io/client-go/kubevirt"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

// world is a cluster with the real clients.
type world struct {
	*testing.T
	*kubevirt.Cluster
	core kubernetes.Interface
	virt kubevirtclient.Interface
	cdi  cdiclient.Interface
}

func start(t *testing.T, opts kubevirt.Options) *world {
	t.Helper()

	c, err := kubevirt.New(opts)
	require.NoError(t, err)
	t.Cleanup(c.Close)

	config := c.RESTConfig(c.Ledger().Session())
	config.QPS = -1
	w := &world{T: t, Cluster: c}

	w.core, err = kubernetes.NewForConfig(config)
	require.NoError(t, err)
	w.virt, err = kubevirtclient.NewForConfig(config)
	require.NoError(t, err)
	w.cdi, err = cdiclient.NewForConfig(config)
	require.NoError(t, err)

	return w
}

const ns = metav1.NamespaceDefault

// after lets time pass until everything that has to happen by then has.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"userdata": []byte("#cloud-config")}}
}

func template(name string, source *cdiv1.DataVolumeSource) kubevirtv1.DataVolumeTemplateSpec {
	return kubevirtv1.DataVolumeTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: cdiv1.DataVolumeSpec{Source: source, Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
		}}},
	}
}

const imageURL = "https://factory.test/image/s/v1.13.5/nocloud-amd64.raw.xz"

func imported() *cdiv1.DataVolumeSource {
	return &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: imageURL}}
}

func machine(name string, change ...func(*kubevirtv1.VirtualMachine)) *kubevirtv1.VirtualMachine {
	vm := &kubevirtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kubevirtv1.VirtualMachineSpec{
			RunStrategy:         new(kubevirtv1.RunStrategyAlways),
			DataVolumeTemplates: []kubevirtv1.DataVolumeTemplateSpec{template(name, imported())},
			Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: kubevirtv1.VirtualMachineInstanceSpec{
				Domain: kubevirtv1.DomainSpec{
					CPU: &kubevirtv1.CPU{Cores: 2}, Memory: &kubevirtv1.Memory{Guest: new(resource.MustParse("2Gi"))},
				},
				Volumes: []kubevirtv1.Volume{
					{Name: "disk", VolumeSource: kubevirtv1.VolumeSource{DataVolume: &kubevirtv1.DataVolumeSource{Name: name}}},
					{Name: "seed", VolumeSource: kubevirtv1.VolumeSource{CloudInitNoCloud: &kubevirtv1.CloudInitNoCloudSource{
						UserDataSecretRef: &corev1.LocalObjectReference{Name: name},
					}}},
				},
			}},
		},
	}

	for _, f := range change {
		f(vm)
	}

	return vm
}

// create makes a machine with its secret.
func (w *world) create(vm *kubevirtv1.VirtualMachine) *kubevirtv1.VirtualMachine {
	w.Helper()

	_, err := w.core.CoreV1().Secrets(ns).Create(w.Context(), secret(vm.Name), metav1.CreateOptions{})
	require.NoError(w, err)

	vm, err = w.virt.KubevirtV1().VirtualMachines(ns).Create(w.Context(), vm, metav1.CreateOptions{})
	require.NoError(w, err)

	return vm
}

func (w *world) machine(name string) *kubevirtv1.VirtualMachine {
	w.Helper()

	vm, err := w.virt.KubevirtV1().VirtualMachines(ns).Get(w.Context(), name, metav1.GetOptions{})
	require.NoError(w, err)

	return vm
}

// status returns printableStatus, empty if there is no such machine.
func (w *world) status(name string) string {
	vm, err := w.virt.KubevirtV1().VirtualMachines(ns).Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		return ""
	}

	return string(vm.Status.PrintableStatus)
}

// guests remembers who booted.
type guests struct{ booted chan virt.Guest }

func newGuests() *guests { return &guests{booted: make(chan virt.Guest, 100)} }

func (g *guests) boot(ctx context.Context, guest virt.Guest) {
	g.booted <- guest

	<-ctx.Done()
}

func TestMachineGoesThroughItsPhasesAndTheGuestSeesItsSeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuests()
		opts := kubevirt.Options{}
		opts.Virt.Boot = g.boot
		opts.Virt.Times = virt.Times{Pull: 10 * time.Second, Start: 5 * time.Second}
		opts.CDI.Times.Schedule, opts.CDI.Times.Import = 5*time.Second, time.Minute

		w := start(t, opts)
		w.create(machine("a"))

		after(time.Second)
		require.Equal(t, "Provisioning", w.status("a"))

		dv, err := w.cdi.CdiV1beta1().DataVolumes(ns).Get(t.Context(), "a", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, cdiv1.ImportScheduled, dv.Status.Phase)

		after(30 * time.Second)

		dv, err = w.cdi.CdiV1beta1().DataVolumes(ns).Get(t.Context(), "a", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, cdiv1.ImportInProgress, dv.Status.Phase)
		require.Equal(t, "25.00%", string(dv.Status.Progress))

		after(35 * time.Second)
		require.Equal(t, "Starting", w.status("a"))
		after(15 * time.Second)
		require.Equal(t, "Running", w.status("a"))

		guest := <-g.booted
		vm := w.machine("a")
		require.Equal(t, string(vm.Spec.Template.Spec.Domain.Firmware.UUID), guest.UUID)
		require.Equal(t, "#cloud-config", string(guest.UserData))
		require.Equal(t, imageURL, guest.Image)
		require.True(t, vm.Status.Ready)
		require.Len(t, w.Machines(), 1)
		require.True(t, w.Machines()[0].On)

		require.NoError(t, w.virt.KubevirtV1().VirtualMachines(ns).Delete(t.Context(), "a", metav1.DeleteOptions{}))
		require.NoError(t, w.core.CoreV1().Secrets(ns).Delete(t.Context(), "a", metav1.DeleteOptions{}))
		after(time.Minute)
		require.Empty(t, w.Ledger().Leaks(), w.Ledger().History())
	})
}
