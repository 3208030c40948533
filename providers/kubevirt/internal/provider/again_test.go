package provider_test

import (
	"fmt"
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

func TestSecretThatGoesBeforeTheStartIsMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		opts := kubevirt.Options{Enter: keepImages}
		opts.CDI.Times.Import, opts.CDI.Times.Clone = 10*time.Second, 5*time.Minute
		l := newLab(t, opts)
		o := l.provision(requestOf("r-1", classData), 2*time.Minute)
		require.Error(t, o.err)
		name := machine.NamesOf(ref("r-1")).Secret
		require.NoError(t, l.admin().Core.CoreV1().Secrets(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
		o = l.provision(requestOf("r-1", classData), time.Hour)
		require.NoError(t, o.err, "%v", o.said)

		_, err := l.admin().Secrets().Get(t.Context(), namespace, name)
		assert.NoError(t, err)
	})
}

func TestRunStrategyThatChangesBeforeTheFirstRunIsTaken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		opts := kubevirt.Options{Enter: keepImages}
		l := newLab(t, opts)

		require.Eventually(t, func() bool { return l.attemptTo(requestOf("r-1", classData), "create-machine") == nil }, time.Hour, 5*time.Second)
		synctest.Wait()
		require.Equal(t, kubevirtv1.RunStrategyHalted, *l.vm("r-1").Spec.RunStrategy)
		o := l.provision(requestOf("r-1", "{cores: 2, memory: 2048, disk_size: 10, run_strategy: Manual}"), time.Hour)
		require.NoError(t, o.err)
		assert.Equal(t, kubevirtv1.RunStrategyManual, *l.vm("r-1").Spec.RunStrategy)
	})
}

func TestImagesOfTwoSnapshotClassesAreKeptApart(t *testing.T) {
	i := machine.ImageVolume{ProviderID: "p", Namespace: "n", Key: "k", TalosVersion: "v1", Arch: "amd64", SnapshotClass: "a"}
	j := i
	j.SnapshotClass = "b"
	assert.NotEqual(t, i.Snapshot().Name, j.Snapshot().Name)
}

// attemptTo runs the phases up to one, which there has to be.
func (l *lab) attemptTo(req driver.Request, last string) error {
	plan, err := l.driver.Plan(l.t.Context(), req)
	if err != nil {
		return err
	}
	task := driver.Task{Request: req, Join: driver.Join{UserData: joinConfig}, Progress: func(string) {}, Image: l.image}
	for _, p := range plan.Phases {
		if err := p.Ensure(l.t.Context(), task); err != nil {
			return err
		}
		if p.Name == last {
			return nil
		}
	}

	return fmt.Errorf("there is no phase %q", last)
}
