package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/go-api-signature/pkg/pgp"
	"github.com/siderolabs/go-api-signature/pkg/serviceaccount"
	"github.com/siderolabs/omni/client/pkg/access"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// asProgram makes the test's own executable the program.
const asProgram = "TEST_RUN_AS_PROVIDER"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}

	os.Exit(m.Run())
}

// outcome is how a run of the program ended.
type outcome struct {
	stdout, stderr string
	code           int
}

// execute runs the program as a user does, with nothing in its environment but env.
func execute(t *testing.T, env []string, args ...string) outcome {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	executable, err := os.Executable()
	require.NoError(t, err)

	var stdout, stderr bytes.Buffer

	cmd := exec.CommandContext(ctx, executable, args...)
	cmd.Env = append([]string{asProgram + "=1", "HOME=" + t.TempDir()}, env...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr

	err = cmd.Run()
	require.NoError(t, ctx.Err(), "it does not end: %s", stderr.String())

	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}

	return outcome{stdout: stdout.String(), stderr: stderr.String(), code: cmd.ProcessState.ExitCode()}
}

// newKey is a service account key in the right form, which no Omni knows.
func newKey(t *testing.T) string {
	t.Helper()

	pair, err := pgp.GenerateKey("kubevirt", "test", "kubevirt@infra-provider.serviceaccount.omni.sidero.dev", time.Hour)
	require.NoError(t, err)

	key, err := serviceaccount.Encode(access.InfraProviderServiceAccountPrefix+"kubevirt", pair)
	require.NoError(t, err)

	return key
}

// requireOneError checks that the program failed with one line for its user, and that neither a stack trace nor the secret is
// in what it wrote. Lines of its log may come before that line.
func requireOneError(t *testing.T, got outcome, secret string, wants ...string) {
	t.Helper()

	require.Equal(t, 1, got.code, got.stderr)

	lines := strings.Split(strings.TrimSuffix(got.stderr, "\n"), "\n")
	last := lines[len(lines)-1]
	require.True(t, strings.HasPrefix(last, "error: "), got.stderr)
	require.Equal(t, 1, strings.Count("\n"+got.stderr, "\nerror: "), got.stderr)

	for _, want := range wants {
		assert.Contains(t, last, want)
	}

	for _, trace := range []string{"goroutine ", "panic", ".go:"} {
		assert.NotContains(t, got.stderr, trace)
	}

	assert.Empty(t, got.stdout)

	if secret != "" {
		assert.NotContains(t, got.stderr, secret)
	}
}

func TestHelpNamesEverySettingAndNoSecret(t *testing.T) {
	t.Parallel()

	key := newKey(t)
	got := execute(t, []string{"OMNI_SERVICE_ACCOUNT_KEY=" + key, "KUBECONFIG_FILE=/home/secret/config"}, "--help")

	require.Zero(t, got.code, got.stderr)
	require.Empty(t, got.stderr)

	for _, want := range []string{
		"OMNI_ENDPOINT", "OMNI_SERVICE_ACCOUNT_KEY", "PROVIDER_ID", "KUBECONFIG_FILE", "KUBEVIRT_NAMESPACE", "DATA_VOLUME_MODE",
		"--kubeconfig-file", "--kubeconfig-context", "--token-file", "--as", "--as-group", "--namespace", "--data-volume-mode", "--storage-class", "--keep-images",
		"--kube-api-qps", "--config-file", "schema", "validate",
	} {
		assert.Contains(t, got.stdout, want)
	}

	assert.NotContains(t, got.stdout, key)
	assert.NotContains(t, got.stdout, "/home/secret")
}

func TestWrongSettingEndsInOneLine(t *testing.T) {
	t.Parallel()

	key := newKey(t)
	good := []string{"OMNI_ENDPOINT=http://127.0.0.1:1", "OMNI_SERVICE_ACCOUNT_KEY=" + key}

	// What is wrong with the cloud is only known once Omni has said whether it has another configuration.
	server, endpoint := serveOmni(t)
	known, err := server.CreateProvider(t.Context(), "kubevirt")
	require.NoError(t, err)

	omni := []string{"OMNI_ENDPOINT=" + endpoint, "OMNI_SERVICE_ACCOUNT_KEY=" + known}

	folder := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))

		return path
	}

	for _, test := range []struct {
		name string
		env  []string
		args []string
		want []string
	}{
		{"no endpoint", good[1:], nil, []string{"OMNI_ENDPOINT"}},
		{"endpoint that is no URL", []string{"OMNI_ENDPOINT=omni.example", good[1]}, nil, []string{"omni endpoint", "https://omni.example.org"}},
		{"no key", good[:1], nil, []string{"OMNI_SERVICE_ACCOUNT_KEY"}},
		{"key that is none", []string{good[0], "OMNI_SERVICE_ACCOUNT_KEY=c2VjcmV0LWtleQ"}, nil, []string{"service account key"}},
		{"id that is none", good, []string{"--id", "Lib_Virt"}, []string{"--id", "DNS label"}},
		{"unknown flag", good, []string{"--kubeconfig", "x"}, []string{"--kubeconfig"}},
		{"unknown key in the file", good, []string{"--config-file", write("misspelt.yaml", "kubevirt: {namespace: x}")}, []string{"misspelt.yaml", "namespace: unknown", `"namespaces"`}},
		{"file that is missing", good, []string{"--config-file", folder + "/nothing.yaml"}, []string{"nothing.yaml", "no such file"}},
		{"namespace that is none", omni, []string{"--namespace", "Omni_Machines"}, []string{"--namespace", "Omni_Machines"}},
		{"no name of a ConfigMap", omni, []string{"--image-cert-config-map", "My CA"}, []string{"--image-cert-config-map", "no name of a ConfigMap"}},
		{"volume mode that is none", omni, []string{"--data-volume-mode", "block"}, []string{"--data-volume-mode", "Block or Filesystem"}},
		{"kubeconfig that is missing", omni, []string{"--kubeconfig-file", folder + "/nothing"}, []string{"kubeconfig", "no such file"}},
		{"no cluster at all", omni, nil, []string{"no kubeconfig is given", "service account"}},
		{"cluster that does not answer", omni, []string{"--kubeconfig-file", write("cluster", dead)}, []string{"no answer from the Kubernetes API at 127.0.0.1:1", "connection refused"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			got := execute(t, test.env, test.args...)
			requireOneError(t, got, key, test.want...)
			assert.Equal(t, 1, strings.Count(got.stderr, "\n"), got.stderr)
			assert.NotContains(t, got.stderr, "c2VjcmV0LWtleQ")
		})
	}
}

// dead is a cluster at whose address nobody listens.
const dead = `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: u, user: {token: c2VjcmV0LWtleQ}}]}`

func TestClassDataIsValidatedWithoutOmniAndACluster(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "class.yaml")
	require.NoError(t, os.WriteFile(file, []byte("cores: 2\nmemroy: 2048\ndisk_size: 20\n"), 0o600))

	requireOneError(t, execute(t, nil, "validate", file), "", "memroy", `"memory"`)

	require.NoError(t, os.WriteFile(file, []byte("cores: 2\nmemory: 2048\ndisk_size: 20\n"), 0o600))

	got := execute(t, nil, "validate", file)
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, file+": class data: ok\n", got.stdout)
}
