package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSocketIsForItsUserAlone(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cloud")

	l, err := listen(t.Context(), socket)
	require.NoError(t, err)

	defer l.Close() //nolint:errcheck // the test is over

	info, err := os.Lstat(socket)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, info.Mode())

	files, err := os.ReadDir(filepath.Dir(socket))
	require.NoError(t, err)
	require.Len(t, files, 1)
}

func TestSocketThatIsThereIsNotTakenAway(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cloud")
	require.NoError(t, os.WriteFile(socket, []byte("kept"), 0o600))

	_, err := listen(t.Context(), socket)
	require.ErrorContains(t, err, "is there already")

	kept, err := os.ReadFile(socket)
	require.NoError(t, err)
	require.Equal(t, "kept", string(kept))
}

func TestBadCallsAreNamed(t *testing.T) {
	t.Setenv(socketEnv, "")

	for want, args := range map[string][]string{
		"--socket or " + socketEnv + " is required": {"list"},
		`power "up": want on or off`:                {"power", "vm-1", "up", "--socket", filepath.Join(t.TempDir(), "none")},
	} {
		var out bytes.Buffer

		cmd := newCommand(&out, &out)
		cmd.SetArgs(args)
		require.ErrorContains(t, cmd.ExecuteContext(t.Context()), want)
	}
}
