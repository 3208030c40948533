package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/deploy"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
)

func deployFile(t *testing.T, name string) []byte {
	t.Helper()

	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", name))
	require.NoError(t, err)

	return text
}

func TestExamplesOfMachinesAreGood(t *testing.T) {
	for _, name := range []string{"class.yaml", "trial.yaml"} {
		_, data, found := strings.Cut(string(deployFile(t, name)), "providerdata: |\n")
		require.True(t, found, name)

		_, err := classdata.Decode[machine.ClassData](data)
		assert.NoError(t, err, name)
	}
}

func TestErrorsNameAManifestThatExists(t *testing.T) {
	assert.Equal(t, deploy.RBAC, deployFile(t, strings.TrimPrefix(cluster.Manifest, "deploy/")))
}

// documents decodes the parts of the provider's manifest, strictly.
func documents(t *testing.T) (config corev1.ConfigMap, provider appsv1.Deployment) {
	t.Helper()

	parts := bytes.Split(deployFile(t, "provider.yaml"), []byte("---\n"))
	require.Len(t, parts, 2)
	require.NoError(t, yaml.UnmarshalStrict(parts[0], &config))
	require.NoError(t, yaml.UnmarshalStrict(parts[1], &provider))

	return config, provider
}

func TestConfigurationOfTheDeploymentIsGood(t *testing.T) {
	configMap, _ := documents(t)

	_, section, found := strings.Cut(configMap.Data["provider.yaml"], "\nkubevirt:\n")
	require.True(t, found)

	c, err := classdata.DecodeAs[config]("configuration", section)
	require.NoError(t, err)
	assert.Equal(t, []string{deploy.Namespace}, c.Namespaces)
}

func TestDeploymentHasNoMoreRightsThanItNeeds(t *testing.T) {
	configMap, provider := documents(t)
	pod := provider.Spec.Template.Spec
	container := pod.Containers[0]

	assert.Equal(t, deploy.Namespace, provider.Namespace)
	assert.Equal(t, deploy.Namespace, configMap.Namespace)
	assert.Equal(t, deploy.Account, pod.ServiceAccountName)
	assert.True(t, *pod.SecurityContext.RunAsNonRoot)
	assert.True(t, *container.SecurityContext.ReadOnlyRootFilesystem)
	assert.False(t, *container.SecurityContext.AllowPrivilegeEscalation)
	assert.Equal(t, []corev1.Capability{"ALL"}, container.SecurityContext.Capabilities.Drop)

	help := execute(t, nil, "--help")
	require.Zero(t, help.code)

	for _, arg := range container.Args {
		if strings.HasPrefix(arg, "--") {
			assert.Contains(t, help.stdout, arg+" ")
		}
	}

	// The key is where the configuration says.
	assert.Equal(t, "/run/secrets/omni", container.VolumeMounts[1].MountPath)
	assert.Contains(t, configMap.Data["provider.yaml"], "service_account_key_file: /run/secrets/omni/key")
}

// Health is that of the cluster and of Omni too, for whose troubles a new process is no remedy.
func TestDeploymentIsNotStartedAnewForTroublesOfTheCluster(t *testing.T) {
	_, provider := documents(t)
	container := provider.Spec.Template.Spec.Containers[0]

	require.NotNil(t, container.LivenessProbe)
	require.Nil(t, container.LivenessProbe.HTTPGet)
	require.Equal(t, container.Ports[0].Name, container.LivenessProbe.TCPSocket.Port.StrVal)

	require.NotNil(t, container.ReadinessProbe)
	require.Equal(t, "/healthz", container.ReadinessProbe.HTTPGet.Path)
	require.Equal(t, container.Ports[0].Name, container.ReadinessProbe.HTTPGet.Port.StrVal)
}
