package provider_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
)

func TestMachineIsMadeOnEachKindOfStorage(t *testing.T) {
	for name, class := range map[string]kubevirt.StorageClass{
		"plain":                        {Plain: true},
		"plain, bound by its consumer": {Plain: true, WaitForFirstConsumer: true},
		"bound by its consumer":        {WaitForFirstConsumer: true},
		"cloned by the driver":         {Clone: cdiv1.CloneStrategyCsiClone},
		"cloned by snapshots":          {Clone: cdiv1.CloneStrategySnapshot},
		"copied":                       {Clone: cdiv1.CloneStrategyHostAssisted},
		"unknown to CDI":               {Unknown: true},
		"block devices":                {Block: true, Shared: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				class.Name, class.Default = "of-the-test", true

				opts := kubevirt.Options{Enter: keepImages}
				opts.Classes = []kubevirt.StorageClass{class}
				opts.CDI.Times.Import, opts.CDI.Times.Clone, opts.Virt.Times.Start = 20*time.Second, 10*time.Second, 5*time.Second
				l := newLab(t, opts)

				for _, request := range []string{"r-1", "r-2"} {
					o := l.provision(requestOf(request, "{cores: 2, memory: 2048, disk_size: 10, additional_disks: [{size: 5}]}"), time.Hour)
					require.NoError(t, o.err, "%v", o.said)
					assert.Equal(t, l.image.URL(), l.CDI.Content(namespace, machine.NamesOf(ref(request)).Root))
					assert.NotContains(t, strings.Join(o.said, "\n"), "gets no storage", "nothing is wrong with it")
				}

				assert.Equal(t, 1, l.image.opened, "one import serves both")

				for _, request := range []string{"r-1", "r-2"} {
					m, err := l.driver.Find(t.Context(), ref(request))
					require.NoError(t, err)
					assert.Equal(t, driver.PowerOn, m.Power)

					l.mustRemove(request)
				}

				assert.Empty(t, l.left())
			})
		})
	}
}

// Kubernetes tells of both in Events that are no warnings.
func TestStorageThatNobodyProvidesIsSaidWithinAMinute(t *testing.T) {
	for name, test := range map[string]struct {
		class kubevirt.StorageClass
		want  string
	}{
		"no class that is the default": {kubevirt.StorageClass{Name: "other"}, "gets no storage: no persistent volumes available for this claim and no storage class is set"},
		"a provisioner that does not answer": {
			kubevirt.StorageClass{Name: "silent", Default: true, Silent: true}, "please verify that the provisioner is running and correctly registered",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				opts := kubevirt.Options{Enter: keepImages}
				opts.Classes = []kubevirt.StorageClass{test.class}

				newLab(t, opts).says(requestOf("r-1", classData), test.want)
			})
		})
	}
}

func TestQuotaThatIsUsedUpIsSaidOfWhatItRefuses(t *testing.T) {
	for _, test := range []struct {
		name     string
		resource corev1.ResourceName
		hard     string
		// want begins the sentence, and names what was refused.
		want string
	}{
		{"storage of an image", corev1.ResourceRequestsStorage, "512Mi", `talos-v1-11-0-amd64-`},
		{"storage of a disk", corev1.ResourceRequestsStorage, "4Gi", `volume omni/` + machine.NamesOf(ref("r-1")).Root + " gets no storage for lack of room"},
		{"claims", "persistentvolumeclaims", "1", `volume omni/` + machine.NamesOf(ref("r-1")).Root + " gets no storage for lack of room"},
		{"pods", corev1.ResourcePods, "0", `virtual machine omni/` + machine.NamesOf(ref("r-1")).VM + " cannot start for lack of room"},
		{"memory", corev1.ResourceRequestsMemory, "2Gi", `virtual machine omni/` + machine.NamesOf(ref("r-1")).VM + " cannot start for lack of room"},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newLab(t, kubevirt.Options{Enter: keepImages})
				quotas := l.admin().Core.CoreV1().ResourceQuotas(namespace)

				_, err := quotas.Create(t.Context(), &corev1.ResourceQuota{
					ObjectMeta: metav1.ObjectMeta{Name: "of-the-team"},
					Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{test.resource: resource.MustParse(test.hard)}},
				}, metav1.CreateOptions{})
				require.NoError(t, err)

				o := l.provision(requestOf("r-1", classData), 5*time.Minute)
				require.Equal(t, driver.KindCapacity, driver.KindOf(o.err), "%v", o.said)
				require.ErrorContains(t, o.err, test.want)
				require.ErrorContains(t, o.err, "exceeded quota: of-the-team")
				require.ErrorContains(t, o.err, string(test.resource)+"="+test.hard, "what it has room for")
				assert.NotContains(t, o.err.Error(), "\n")

				require.NoError(t, quotas.Delete(t.Context(), "of-the-team", metav1.DeleteOptions{}))
				o = l.provision(requestOf("r-1", classData), time.Hour)
				require.NoError(t, o.err, "it goes on by itself: %v", o.said)

				l.mustRemove("r-1")
				assert.Empty(t, l.left())
			})
		})
	}
}
