package conformance

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

func TestHookMayPrintLinesOrAnArray(t *testing.T) {
	two := 2
	want := []hookMachine{
		{ID: "vm-1", Power: "on", Name: "a", UUID: "7C", Request: "r-1", Boots: &two},
		{ID: "vm-2", Power: "off"},
	}

	for name, text := range map[string]string{
		"lines": `{"id": "vm-1", "power": "on", "name": "a", "uuid": "7C", "request": "r-1", "boots": 2, "other": []}` + "\n" + `{"id": "vm-2", "power": "off"}` + "\n",
		"array": ` [{"id": "vm-1", "power": "on", "name": "a", "uuid": "7C", "request": "r-1", "boots": 2}, {"id": "vm-2", "power": "off"}]`,
	} {
		got, err := parseMachines([]byte(text))
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}

	none, err := parseMachines(nil)
	require.NoError(t, err)
	require.Empty(t, none)
}

func TestWhatAHookShouldNotPrintIsNamed(t *testing.T) {
	for want, text := range map[string]string{
		"machine 1: want a JSON object":         `no machines`,
		"want a JSON array of machines":         `[{"id": "vm-1"`,
		"machine 1: id is missing":              `{"power": "on"}`,
		`machine 2: id "vm-1" is there twice`:   `{"id": "vm-1", "power": "on"} {"id": "vm-1", "power": "on"}`,
		`machine "vm-1": power is "", want on`:  `{"id": "vm-1"}`,
		`machine "vm-1": power is "running"`:    `{"id": "vm-1", "power": "running"}`,
		`machine "vm-1": boots is -1, want a n`: `{"id": "vm-1", "power": "on", "boots": -1}`,
	} {
		_, err := parseMachines([]byte(text))
		require.ErrorContains(t, err, want)
	}
}

func FuzzHookOutput(f *testing.F) {
	f.Add([]byte(`{"id": "vm-1", "power": "on", "boots": 1}`))
	f.Add([]byte(`[{"id": "vm-1", "power": "off"}] {"id": "vm-2", "power": "off"}`))

	f.Fuzz(func(t *testing.T, text []byte) {
		machines, err := parseMachines(text)
		if err != nil {
			return
		}

		for _, m := range machines {
			require.NotEmpty(t, m.machine().ID)
		}
	})
}

// testHook returns a hook that is a shell script.
func testHook(t *testing.T, script string) *hook {
	t.Helper()

	program := filepath.Join(t.TempDir(), "hook")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"+script), 0o700))

	e := newEnv("example")
	e.asked = t.Context()
	e.open(ledger.New())
	e.providers["example"], e.providers["example-2"] = true, true

	return &hook{program: program, env: e}
}

func TestHookIsAskedForTheMachinesOfEachProvider(t *testing.T) {
	t.Setenv("OMNI_SERVICE_ACCOUNT_KEY", "not for hooks")

	h := testHook(t, `echo '{"id": "vm-'$PROVIDER_ID$OMNI_SERVICE_ACCOUNT_KEY'", "power": "on"} {"id": "shared", "power": "off"}'`)

	var ids []string
	for _, m := range h.Machines() {
		ids = append(ids, m.ID)
	}

	require.ElementsMatch(t, []string{"vm-example", "vm-example-2", "shared"}, ids)
}

func TestHookThatFailsIsNotTheProvidersFault(t *testing.T) {
	h := testHook(t, `echo the cloud is away >&2; exit 3`)

	require.ErrorContains(t, catch(func() { h.Machines() }), "list: exit status 3: the cloud is away")
	require.ErrorContains(t, h.SwitchOff("vm-1"), "power vm-1 off: exit status 3: the cloud is away")
	require.ErrorContains(t, h.DeleteMachine("vm-1"), "remove vm-1: exit status 3: the cloud is away")

	h = testHook(t, `echo '{"id": "vm-1", "power": "on"}'`)
	h.countsBoots = true

	require.ErrorIs(t, catch(func() { h.Machines() }), errUnseen)
}

func TestHookEndsWithTheRun(t *testing.T) {
	h := testHook(t, `sleep 1000`)

	var cancel context.CancelFunc

	h.env.asked, cancel = context.WithCancel(t.Context())
	cancel()

	require.Error(t, catch(func() { h.Machines() }))
}

func TestWhatAHookHasStartedEndsWithTheRun(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	h := testHook(t, `sleep 1000 & echo $! >`+pid+`; wait`)

	var cancel context.CancelFunc

	h.env.asked, cancel = context.WithCancel(t.Context())

	go func() {
		defer cancel()

		for text := []byte(nil); len(text) == 0 && t.Context().Err() == nil; time.Sleep(10 * time.Millisecond) {
			text, _ = os.ReadFile(pid)
		}
	}()

	require.Error(t, catch(func() { h.Machines() }))

	number, err := os.ReadFile(pid)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := os.Readlink("/proc/" + strings.TrimSpace(string(number)) + "/exe")

		return err != nil
	}, 10*time.Second, 10*time.Millisecond, "the script's child still runs")
}

func TestHookThatPrintsTooMuchIsRefused(t *testing.T) {
	h := testHook(t, `head -c 5000000 /dev/zero; head -c 5000000 /dev/zero >&2`)
	require.ErrorContains(t, catch(func() { h.Machines() }), "list: prints more than 4194304 bytes")

	h = testHook(t, `head -c 5000000 /dev/zero >&2; exit 3`)
	require.Less(t, len(catch(func() { h.Machines() }).Error()), 2*maxHookErrors)
}

func TestOwnMistakesOfTheSuiteAreErrors(t *testing.T) {
	require.ErrorContains(t, catch(func() { _ = (*env)(nil).provider }), "the suite itself fails")
	require.ErrorContains(t, catch(func() { panic("text") }), "the suite itself fails: text")
	require.ErrorIs(t, catch(func() { panic(errInterrupted) }), errInterrupted)
	require.NoError(t, catch(func() {}))
}
