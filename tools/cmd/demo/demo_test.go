package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDemoTellsItsStoryAndLeavesNothing(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer

	start := time.Now()

	require.NoError(t, run(t.Context(), config{out: &out, machines: 3, plain: true}), "%s", &out)
	assert.Less(t, time.Since(start), 30*time.Second)

	for _, want := range []string{
		"[2/11] a set is requested", "[11/11] nothing is left in the cloud", "3 machines of provider", "calls to Omni",
	} {
		assert.Contains(t, out.String(), want)
	}
}
