package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// run runs the go command in dir as it works for someone who has no workspace.
func run(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()

	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")

	out, err := cmd.CombinedOutput()

	return string(out), err
}

// verdicts runs cases of a provider's conformance suite and returns what each case that failed said, and which ones passed.
func verdicts(t *testing.T, dir, cases string) (failed map[string]string, passed []string) {
	t.Helper()

	out, err := run(t, dir, "test", "-json", "-run", "^TestConformance$/"+cases, "./internal/provider")

	text := map[string]string{}
	failed = map[string]string{}

	for lines := bufio.NewScanner(bytes.NewReader([]byte(out))); lines.Scan(); {
		var event struct{ Action, Test, Output string }
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue
		}

		name, ours := strings.CutPrefix(event.Test, "TestConformance/")

		switch {
		case !ours:
		case event.Action == "output":
			text[name] += event.Output
		case event.Action == "fail":
			failed[name] = text[name]
		case event.Action == "pass":
			passed = append(passed, name)
		}
	}

	require.NotEmpty(t, text, "the suite did not run: %v\n%s", err, out)
	require.Equal(t, len(failed) > 0, err != nil, out)

	return failed, passed
}

// TestSuiteLeadsFromANewProviderToACompleteOne goes the way of an author: what is missing fails, with its name; what is written
// passes.
func TestSuiteLeadsFromANewProviderToACompleteOne(t *testing.T) {
	dir, err := generate(config{Root: repository(t), Name: "acme", Dir: filepath.Join(t.TempDir(), "acme"), Module: "example.org/acme"})
	require.NoError(t, err)

	fill := func(files ...string) {
		for _, name := range files {
			data, err := os.ReadFile(filepath.Join("testdata", "filled", name))
			require.NoError(t, err)
			require.NoError(t, writeFile(filepath.Join(dir, "internal", "provider", name), data))
		}
	}

	out, err := run(t, dir, "vet", "./...")
	require.NoError(t, err, out)

	out, err = run(t, dir, "test", "./cmd/...")
	require.NoError(t, err, out)

	failed, _ := verdicts(t, dir, "")
	assert.Contains(t, failed["provision"], "not implemented yet: createVM in phases.go")
	assert.Contains(t, failed["provision"], "not implemented yet: List in find.go")
	assert.Contains(t, failed["deprovision/while-provisioning"], "createVM in phases.go")
	assert.Contains(t, failed["class-data/unknown-field"], "not implemented yet: Remove in remove.go")

	for _, name := range []string{"provision/ten-at-once", "idempotency/restarts", "ownership/two-providers", "replace/machine-vanished", "crash/after-each-cloud-call"} {
		assert.Contains(t, failed, name)
	}

	for name, text := range failed {
		assert.Contains(t, text, "not implemented yet: ", name)
	}

	fill("find.go", "phases.go", "remove.go")

	failed, passed := verdicts(t, dir, "")
	assert.Empty(t, failed)
	assert.Subset(t, passed, []string{"provision", "deprovision", "ownership/two-providers", "replace/machine-vanished", "crash/after-each-cloud-call"})
}
