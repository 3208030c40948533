package controlplane_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/controlplane"
)

// programs puts scripts in the place of etcd and kube-apiserver, and returns a file to which each may add its process id.
func programs(t *testing.T, etcd, server string) (ids string) {
	t.Helper()

	dir := t.TempDir()
	t.Setenv(controlplane.ProgramsEnv, dir)
	t.Setenv("IDS", filepath.Join(dir, "ids"))

	for name, script := range map[string]string{"etcd": etcd, "kube-apiserver": server} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o700)) //nolint:gosec // It is run.
	}

	return filepath.Join(dir, "ids")
}

// requireEnded checks that so many processes have noted their ids, and that none of them is there any more.
func requireEnded(t *testing.T, ids string, want int) {
	t.Helper()

	text, err := os.ReadFile(ids)
	require.NoError(t, err)

	noted := strings.Fields(string(text))
	require.Len(t, noted, want)

	for _, id := range noted {
		pid, err := strconv.Atoi(id)
		require.NoError(t, err)
		assert.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, "process %d lives on", pid)
	}
}

const runs = "echo $$ >> $IDS; exec sleep 600"

func TestEndOfEtcdIsTheEndOfTheStart(t *testing.T) {
	ids := programs(t, "while [ ! -e $IDS ]; do sleep 0.01; done; echo no space left on device; exit 3", runs)

	_, err := controlplane.Start(t.Context())
	require.ErrorContains(t, err, "etcd has ended: exit status 3: no space left on device")
	requireEnded(t, ids, 1)
}

func TestServerThatEndsIsStartedThreeTimes(t *testing.T) {
	ids := programs(t, runs, "echo $$ >> $IDS; echo address already in use; exit 1")

	_, err := controlplane.Start(t.Context())
	require.ErrorContains(t, err, "kube-apiserver has ended: exit status 1: address already in use")
	requireEnded(t, ids, 4)
}

func TestStartThatTakesTooLongLeavesNothing(t *testing.T) {
	ids := programs(t, runs, runs)

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()

	_, err := controlplane.Start(ctx)
	require.ErrorContains(t, err, "kube-apiserver is not ready")
	requireEnded(t, ids, 2)
}
