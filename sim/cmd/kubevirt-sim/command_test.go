package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirtclient "kubevirt.io/client-go/kubevirt"
)

// await waits until a program of its own has done something.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, time.Minute, 20*time.Millisecond, what)
}

func call(t *testing.T, args ...string) string {
	t.Helper()

	var out bytes.Buffer

	cmd := newCommand(&out, &out)
	cmd.SetArgs(args)
	require.NoError(t, cmd.ExecuteContext(t.Context()))

	return out.String()
}

func TestClusterIsReachedWithTheKubeconfigAndSeenByItsOwner(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "cluster")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	go func() {
		cmd := newCommand(&bytes.Buffer{}, &bytes.Buffer{})
		cmd.SetArgs([]string{"serve", "--kubeconfig", kubeconfig, "--namespace", "omni", "--factory", "127.0.0.1:0"})
		ended <- cmd.ExecuteContext(ctx)
	}()

	await(t, "the kubeconfig", func() bool { _, err := os.Stat(kubeconfig); return err == nil })

	info, err := os.Stat(kubeconfig)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	client, err := kubevirtclient.NewForConfig(config)
	require.NoError(t, err)

	vm, err := client.KubevirtV1().VirtualMachines("omni").Create(t.Context(), &kubevirtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{markProvider: "kubevirt", markRequest: "request"}},
		Spec: kubevirtv1.VirtualMachineSpec{
			RunStrategy: new(kubevirtv1.RunStrategyAlways),
			Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: kubevirtv1.VirtualMachineInstanceSpec{
				Domain: kubevirtv1.DomainSpec{Memory: &kubevirtv1.Memory{Guest: new(resource.MustParse("1Gi"))}},
				Volumes: []kubevirtv1.Volume{{Name: "disk", VolumeSource: kubevirtv1.VolumeSource{
					ContainerDisk: &kubevirtv1.ContainerDiskSource{Image: "registry.example/talos:v1"},
				}}},
			}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	t.Setenv("PROVIDER_ID", "kubevirt")

	list := func() (m listed) {
		_ = json.Unmarshal([]byte(call(t, "list", "--kubeconfig", kubeconfig)), &m)

		return m
	}

	await(t, "the machine is on", func() bool { return list().Power == "on" })
	require.Equal(t, listed{
		ID: string(vm.UID), Request: "request", Name: "a", UUID: string(vm.Spec.Template.Spec.Domain.Firmware.UUID), Power: "on", Boots: 1,
	}, list())

	call(t, "power", string(vm.UID), "off", "--kubeconfig", kubeconfig)
	await(t, "the machine is off", func() bool { return list().Power == "off" })
	call(t, "remove", string(vm.UID), "--kubeconfig", kubeconfig)
	await(t, "the machine is gone", func() bool { return list().ID == "" })

	stop()
	require.NoError(t, <-ended)
	require.NoFileExists(t, kubeconfig)
}

func TestKubeconfigThatIsThereIsNotReplaced(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "cluster")
	require.NoError(t, os.WriteFile(kubeconfig, []byte("kept"), 0o600))

	cmd := newCommand(&bytes.Buffer{}, &bytes.Buffer{})
	cmd.SetArgs([]string{"serve", "--kubeconfig", kubeconfig, "--factory", ""})
	require.ErrorContains(t, cmd.ExecuteContext(t.Context()), "is there already")

	kept, err := os.ReadFile(kubeconfig)
	require.NoError(t, err)
	require.Equal(t, "kept", string(kept))
}

// The file comes between the look and the writing.
func TestKubeconfigThatComesMeanwhileIsNotReplaced(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "cluster")

	var (
		wrote atomic.Int32
		work  sync.WaitGroup
	)

	for range 20 {
		work.Go(func() {
			if writeKubeconfig(options{kubeconfig: kubeconfig}, "https://127.0.0.1:1", nil, "token") == nil {
				wrote.Add(1)
			}
		})
	}

	work.Wait()
	require.Equal(t, int32(1), wrote.Load())

	left, err := os.ReadDir(filepath.Dir(kubeconfig))
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing is left of the others")
}

func TestServerIsReachedOnTheLoopbackIfItListensEverywhere(t *testing.T) {
	for listens, want := range map[string]string{
		"0.0.0.0:6443": "https://127.0.0.1:6443", "[::]:6443": "https://127.0.0.1:6443", "127.0.0.2:6443": "https://127.0.0.2:6443",
		"[::1]:6443": "https://[::1]:6443",
	} {
		address, err := net.ResolveTCPAddr("tcp", listens)
		require.NoError(t, err)
		require.Equal(t, want, serverURL(address))
	}

	kubeconfig := filepath.Join(t.TempDir(), "cluster")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	go func() {
		cmd := newCommand(&bytes.Buffer{}, &bytes.Buffer{})
		cmd.SetArgs([]string{"serve", "--kubeconfig", kubeconfig, "--listen", "0.0.0.0:0", "--factory", ""})
		ended <- cmd.ExecuteContext(ctx)
	}()

	await(t, "the kubeconfig", func() bool { _, err := os.Stat(kubeconfig); return err == nil })
	require.Empty(t, call(t, "list", "--kubeconfig", kubeconfig))

	stop()
	require.NoError(t, <-ended)
}

func TestBadCallsAreNamed(t *testing.T) {
	t.Setenv(kubeconfigEnv, "")

	for want, args := range map[string][]string{
		"--kubeconfig or " + kubeconfigEnv + " is required": {"list"},
		"--kubeconfig": {"list", "--kubeconfig", filepath.Join(t.TempDir(), "none")},
	} {
		var out bytes.Buffer

		cmd := newCommand(&out, &out)
		cmd.SetArgs(args)
		require.ErrorContains(t, cmd.ExecuteContext(t.Context()), want)
	}
}
