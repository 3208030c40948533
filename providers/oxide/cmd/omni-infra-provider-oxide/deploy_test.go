package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
)

func deployFile(t *testing.T, name string) string {
	t.Helper()

	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", name))
	require.NoError(t, err)

	return string(text)
}

func TestExamplesOfMachinesAreGood(t *testing.T) {
	for _, name := range []string{"class.yaml", "trial.yaml"} {
		_, data, found := strings.Cut(deployFile(t, name), "providerdata: |\n")
		require.True(t, found, name)

		_, err := classdata.Decode[machine.ClassData](data)
		assert.NoError(t, err, name)
	}
}

func TestExampleOfTheConfigurationIsGood(t *testing.T) {
	_, section, found := strings.Cut(deployFile(t, "provider.yaml"), "\noxide:\n")
	require.True(t, found)

	c, err := classdata.DecodeAs[config]("configuration", section)
	require.NoError(t, err)
	assert.Equal(t, "https://silo.sys.rack.example.org", c.Host)
	assert.Equal(t, []string{"kubernetes"}, c.Projects)
}

func TestExampleForKubernetesIsGood(t *testing.T) {
	_, section, found := strings.Cut(deployFile(t, "kubernetes.yaml"), "\n    oxide:\n")
	require.True(t, found)

	section, _, found = strings.Cut(section, "---")
	require.True(t, found)

	c, err := classdata.DecodeAs[config]("configuration", section)
	require.NoError(t, err)
	assert.Equal(t, "/run/secrets/provider/oxide-token", c.TokenFile)
}

// Health is that of the rack and of Omni too, for whose troubles a new process is no remedy.
func TestDeploymentIsNotStartedAnewForTroublesOfTheRack(t *testing.T) {
	_, liveness, found := strings.Cut(deployFile(t, "kubernetes.yaml"), "livenessProbe:\n")
	require.True(t, found)

	liveness, readiness, found := strings.Cut(liveness, "readinessProbe:\n")
	require.True(t, found)
	assert.Contains(t, liveness, "tcpSocket: {port: metrics}")
	assert.NotContains(t, liveness, "httpGet")
	assert.Contains(t, readiness, "httpGet: {path: /healthz, port: metrics}")
}

func TestServiceIsStartedWithFlagsThatExist(t *testing.T) {
	help := execute(t, nil, "--help")
	require.Zero(t, help.code)

	flags := regexp.MustCompile(`--[a-z-]+`).FindAllString(deployFile(t, "omni-infra-provider-oxide.service"), -1)
	require.Len(t, flags, 3)

	for _, flag := range flags {
		assert.Contains(t, help.stdout, flag+" ")
	}
}
