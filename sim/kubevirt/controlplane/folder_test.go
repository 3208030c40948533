package controlplane

import (
	"context"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMemoryIsUsedOnlyIfThereIsRoomInIt(t *testing.T) {
	dir := t.TempDir()

	require.Equal(t, dir, parent(dir, 1))
	require.Equal(t, os.TempDir(), parent(dir, math.MaxUint64))
	require.Equal(t, os.TempDir(), parent(filepath.Join(dir, "missing"), 1))
	require.Equal(t, os.TempDir(), parent("", 0))
}

// leavesFolderIn makes the test's own executable a process that makes a folder, starts a program and is killed.
const leavesFolderIn = "TEST_LEAVES_FOLDER_IN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(leavesFolderIn); dir != "" {
		f, err := newFolder(dir)
		if err != nil {
			panic(err)
		}

		program := exec.CommandContext(context.Background(), "sleep", "600")
		if _, err := StartProgram(program); err != nil {
			panic(err)
		}

		if err := os.WriteFile(filepath.Join(f.path, "pid"), []byte(strconv.Itoa(program.Process.Pid)), 0o600); err != nil {
			panic(err)
		}

		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			panic(err)
		}

		_ = self.Kill()

		select {}
	}

	os.Exit(m.Run())
}

func TestKilledProcessTakesItsProgramsWithItAndTheNextRemovesItsFolder(t *testing.T) {
	if !locks {
		t.Skip("folders are not locked on this system")
	}

	dir := t.TempDir()
	strange := filepath.Join(dir, "kube-of-somebody-else")
	require.NoError(t, os.Mkdir(strange, 0o700))

	executable, err := os.Executable()
	require.NoError(t, err)

	cmd := exec.CommandContext(t.Context(), executable)
	cmd.Env = append(os.Environ(), leavesFolderIn+"="+dir)
	require.ErrorContains(t, cmd.Run(), "killed")

	left, err := filepath.Glob(filepath.Join(dir, folderPrefix+"*", "pid"))
	require.NoError(t, err)
	require.Len(t, left, 1)

	pid, err := os.ReadFile(left[0])
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", string(pid), "stat"))

		return err != nil || strings.Fields(string(stat))[2] == "Z"
	}, time.Minute, 10*time.Millisecond, "its program lives on")

	first, err := newFolder(dir)
	require.NoError(t, err)
	require.NoFileExists(t, left[0])

	second, err := newFolder(dir)
	require.NoError(t, err)
	require.DirExists(t, first.path, "it is in use")
	require.DirExists(t, strange)

	require.NoError(t, first.remove())
	require.NoError(t, second.remove())
	require.NoDirExists(t, first.path)
}

func TestFoldersMadeAtTheSameTimeAreAllThere(t *testing.T) {
	dir := t.TempDir()
	made := make(chan *folder, 50)

	for range cap(made) {
		go func() {
			f, err := newFolder(dir)
			if err != nil {
				t.Error(err)
			}

			made <- f
		}()
	}

	for range cap(made) {
		f := <-made
		require.NotNil(t, f)
		require.DirExists(t, f.path)
	}
}
