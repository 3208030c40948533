//go:build real

package main

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test's program be the one that the lab starts again beside its libvirtd.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-inside") {
		main()

		return
	}

	os.Exit(m.Run())
}

func TestLabTellsItsStoryAndLeavesNothing(t *testing.T) {
	t.Chdir("../../..")

	require.NoError(t, run(config{machines: 1, firmware: "uefi", patience: 8 * time.Minute, plain: true}))
}
