package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	api "github.com/oxidecomputer/oxide.go/oxide"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// command runs one command of the program to its end.
func command(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer

	cmd := newCommand(&out, os.Stderr)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)

	return out.String(), err
}

// serving runs the rack, and sets the variables that it tells.
func serving(t *testing.T) {
	t.Helper()

	env := filepath.Join(t.TempDir(), "rack.env")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)

	go func() {
		_, err := command(ctx, "serve", "--env-file", env, "--project", "a,b")
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoFileExists(t, env)
	})

	require.Eventually(t, func() bool { _, err := os.Stat(env); return err == nil }, time.Minute, 5*time.Millisecond)

	info, err := os.Stat(env)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	text, err := os.ReadFile(env)
	require.NoError(t, err)

	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "export ")), "=")
		t.Setenv(name, value)
	}
}

func TestClientAndOperatorFindTheRackByItsVariables(t *testing.T) {
	serving(t)

	c, err := api.NewClient()
	require.NoError(t, err)

	projects, err := c.ProjectListAllPages(t.Context(), api.ProjectListParams{})
	require.NoError(t, err)
	require.Len(t, projects, 2)

	i, err := c.InstanceCreate(t.Context(), api.InstanceCreateParams{Project: "a", Body: &api.InstanceCreate{
		Name: "one", Description: `mark/1 {"provider":"mine","request":"r-1"}`, Hostname: "one", Ncpus: 1, Memory: 1 << 30,
	}})
	require.NoError(t, err)

	out, err := command(t.Context(), "list")
	require.NoError(t, err)

	var m listed
	require.NoError(t, json.Unmarshal([]byte(out), &m))
	require.Equal(t, listed{ID: i.Id, Request: "r-1", UUID: i.Id, Name: "one", Power: "on", Boots: 1}, m)

	t.Setenv("PROVIDER_ID", "another")

	out, err = command(t.Context(), "list")
	require.NoError(t, err)
	require.Empty(t, out)

	_, err = command(t.Context(), "power", i.Id, "off")
	require.NoError(t, err)
	_, err = command(t.Context(), "power", i.Id, "on")
	require.NoError(t, err)
	_, err = command(t.Context(), "remove", i.Id)
	require.NoError(t, err)
	_, err = command(t.Context(), "remove", i.Id)
	require.ErrorContains(t, err, "there is none")

	t.Setenv(tokenEnv, "wrong")

	_, err = command(t.Context(), "list")
	require.ErrorContains(t, err, "401")
}

func TestBadCallsAreNamed(t *testing.T) {
	t.Setenv(hostEnv, "")

	_, err := command(t.Context(), "list")
	require.ErrorContains(t, err, "OXIDE_HOST and OXIDE_TOKEN are required")

	t.Setenv(hostEnv, "http://127.0.0.1:1")
	t.Setenv(tokenEnv, "t")

	_, err = command(t.Context(), "power", "x", "up")
	require.ErrorContains(t, err, `power "up": want on or off`)

	_, err = command(t.Context(), "serve", "--listen", "nowhere:-1")
	require.ErrorContains(t, err, "--listen")
}

func TestDescriptionsWithoutAMarkAreNobodys(t *testing.T) {
	for _, description := range []string{"", "a machine", "mark {", `mark {"provider": 1}`} {
		provider, request := owner(ledger.Machine{Tags: map[string]string{"description": description}})
		require.Empty(t, provider+request)
	}
}
