package kubevirt_test

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirtclient "kubevirt.io/client-go/kubevirt"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
)

// warned remembers the warnings of answers.
type warned struct {
	mu  sync.Mutex
	all []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warned) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.all = append(w.all, text)
}

func TestWarningsOfWebhooksReachTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, got := start(t, kubevirt.Options{}), &warned{}
		config := rest.CopyConfig(w.RESTConfig(w.Ledger().Session()))
		config.WarningHandler = got

		client, err := kubevirtclient.NewForConfig(config)
		require.NoError(t, err)

		machines := client.KubevirtV1().VirtualMachines(ns)
		running := machine("a", func(vm *kubevirtv1.VirtualMachine) { vm.Spec.RunStrategy, vm.Spec.Running = nil, new(false) })

		_, err = machines.Create(t.Context(), running, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(t, err)
		require.Equal(t, []string{"spec.running is deprecated, please use spec.runStrategy instead."}, got.all)

		_, err = machines.Create(t.Context(), machine("a"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(t, err)
		require.Len(t, got.all, 1, "there is nothing to warn of")
	})
}
