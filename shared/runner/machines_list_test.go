package runner

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func TestListShowsTheAddressOfEachInterface(t *testing.T) {
	infos := []lifecycle.MachineInfo{
		{Request: "a", Interfaces: []lifecycle.InterfaceInfo{{MAC: "02:00:00:00:00:01", IPs: []string{"192.168.1.7"}, Source: "lease"}}},
		{Request: "b", Interfaces: []lifecycle.InterfaceInfo{
			{MAC: "02:00:00:00:00:02", IPs: []string{"10.0.0.9", "fd00::9"}, Source: "agent"}, {MAC: "02:00:00:00:00:03", Missing: "no lease"},
		}},
		{Request: "c"},
	}

	var table bytes.Buffer
	require.NoError(t, writeTable(&table, infos))

	lines := strings.Split(table.String(), "\n")
	column := strings.Index(lines[0], "ADDRESS")
	require.Positive(t, column)

	for i, want := range []string{"192.168.1.7 ", "10.0.0.9,fd00::9, no lease ", "- "} {
		assert.True(t, strings.HasPrefix(lines[i+1][column:], want), lines[i+1])
	}

	var yaml, json bytes.Buffer
	require.NoError(t, writeYAML(&yaml, infos))
	require.NoError(t, writeJSON(&json, infos))
	assert.Contains(t, yaml.String(), "source: lease")
	assert.Contains(t, yaml.String(), "missing: no lease")
	assert.Contains(t, json.String(), `"fd00::9"`)
}
