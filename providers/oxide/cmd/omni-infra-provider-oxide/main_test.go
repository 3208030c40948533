package main

import (
	"bufio"
	"bytes"
	"context"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/siderolabs/go-api-signature/pkg/pgp"
	"github.com/siderolabs/go-api-signature/pkg/serviceaccount"
	"github.com/siderolabs/omni/client/pkg/access"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	sim "github.com/omni-infra/omni-infra-providers/sim/oxide"
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

	pair, err := pgp.GenerateKey("oxide", "test", "oxide@infra-provider.serviceaccount.omni.sidero.dev", time.Hour)
	require.NoError(t, err)

	key, err := serviceaccount.Encode(access.InfraProviderServiceAccountPrefix+"oxide", pair)
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
	got := execute(t, []string{"OMNI_SERVICE_ACCOUNT_KEY=" + key, "OXIDE_TOKEN=canary-token", "OXIDE_HOST=https://rack.test"}, "--help")

	require.Zero(t, got.code, got.stderr)
	require.Empty(t, got.stderr)

	for _, want := range []string{
		"OMNI_ENDPOINT", "OMNI_SERVICE_ACCOUNT_KEY", "PROVIDER_ID", "OXIDE_HOST", "OXIDE_TOKEN", "--oxide-host", "--oxide-profile", "--project", "--max-calls", "--config-file", "schema", "validate",
	} {
		assert.Contains(t, got.stdout, want)
	}

	assert.NotContains(t, got.stdout, key)
	assert.NotContains(t, got.stdout, "canary")
}

func TestWrongSettingEndsInOneLine(t *testing.T) {
	t.Parallel()

	key := newKey(t)
	good := []string{"OMNI_ENDPOINT=http://127.0.0.1:1", "OMNI_SERVICE_ACCOUNT_KEY=" + key}

	// What is wrong with the rack is only known once Omni has said whether it has another configuration.
	server, endpoint := serveOmni(t)
	known, err := server.CreateProvider(t.Context(), "oxide")
	require.NoError(t, err)

	omni := func(more ...string) []string {
		return append([]string{"OMNI_ENDPOINT=" + endpoint, "OMNI_SERVICE_ACCOUNT_KEY=" + known}, more...)
	}

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
		{"id that is none", good, []string{"--id", "Ox_Ide"}, []string{"--id", "DNS label"}},
		{"id by its other name", good, []string{"--provider-id", "Ox_Ide"}, []string{"--id", "DNS label"}},
		{"concurrency by its other name", append([]string{"PROVISIONER_CONCURRENCY=0"}, good...), nil, []string{"--concurrency 0"}},
		{"unknown flag", good, []string{"--oxide-hots", "x"}, []string{"--oxide-hots"}},
		{"unknown key in the file", good, []string{"--config-file", write("misspelt.yaml", "oxide: {hots: x}")}, []string{"misspelt.yaml", "hots: unknown", `"host"`}},
		{"no rack", omni(), nil, []string{"no rack is given", "--oxide-host", "OXIDE_TOKEN"}},
		{"no token", omni("OXIDE_HOST=https://rack.test"), nil, []string{"OXIDE_TOKEN"}},
		{"token and profile", omni("OXIDE_TOKEN=canary-token"), []string{"--oxide-profile", "lab"}, []string{"both a profile and a host or token"}},
		{"no rack there", omni("OXIDE_HOST=http://127.0.0.1:1", "OXIDE_TOKEN=canary-token"), nil, []string{"ask the rack who we are", "connection refused"}},
		{"no such certificates", omni("OXIDE_HOST=https://rack.test", "OXIDE_TOKEN=canary-token"), []string{"--oxide-ca-file", folder + "/none"}, []string{"certificate authority"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			got := execute(t, test.env, test.args...)
			requireOneError(t, got, key, test.want...)
			assert.Equal(t, 1, strings.Count(got.stderr, "\n"), got.stderr)
			assert.NotContains(t, got.stderr, "canary")
		})
	}
}

// The official provider's own flags and variables start this one.
func TestTheOfficialProvidersSettingsWork(t *testing.T) {
	t.Parallel()

	r := sim.New(sim.Options{Token: "canary-token"})
	defer r.Close()

	rack := httptest.NewServer(r.Handler())
	defer rack.Close()

	server, endpoint := serveOmni(t)
	key, err := server.CreateProvider(t.Context(), "ox-2")
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	executable, err := os.Executable()
	require.NoError(t, err)

	cmd := exec.CommandContext(ctx, executable, "--omni-endpoint", endpoint, "--provider-id", "ox-2", "--provisioner-concurrency", "3", "--oxide-host", rack.URL)
	cmd.Env = []string{asProgram + "=1", "HOME=" + t.TempDir(), "OMNI_SERVICE_ACCOUNT_KEY=" + key, "OXIDE_TOKEN=canary-token"}

	logs, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	var said strings.Builder

	for lines := bufio.NewScanner(logs); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")

		if strings.Contains(lines.Text(), "provider is running") {
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		}
	}

	began := time.Now()
	require.NoError(t, cmd.Wait(), said.String())
	require.Less(t, time.Since(began), 20*time.Second)
	require.Contains(t, said.String(), "provider has stopped")
	require.NotContains(t, said.String(), "canary")
}

func TestClassDataIsValidatedWithoutOmniAndARack(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "class.yaml")
	require.NoError(t, os.WriteFile(file, []byte("project: p\nmemroy: 4\n"), 0o600))

	requireOneError(t, execute(t, nil, "validate", file), "", "memroy", `"memory"`)

	require.NoError(t, os.WriteFile(file, []byte("project: p\nmemory: 4\n"), 0o600))

	got := execute(t, nil, "validate", file)
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, file+": class data: ok\n", got.stdout)
}
