package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: lab
clusters:
  - {name: lab, cluster: {server: "https://lab.example:6443"}}
  - {name: rack, cluster: {server: "https://rack.example:6443"}}
contexts:
  - {name: lab, context: {cluster: lab, user: me}}
  - {name: rack, context: {cluster: rack, user: me}}
users:
  - {name: me, user: {token: canary-token}}
`

// at puts a kubeconfig into a file below an empty home directory, in which nothing else tells of a cluster.
func at(t *testing.T, name string) (home, file string) {
	t.Helper()

	home = t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")

	file = filepath.Join(home, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte(kubeconfig), 0o600))

	return home, file
}

func TestClusterIsFoundWhereItIsSaidToBe(t *testing.T) {
	for _, test := range []struct {
		name   string
		file   string
		config func(file string) Config
		env    bool
		want   string
	}{
		{"by a path", "lab.yaml", func(file string) Config { return Config{Kubeconfig: file} }, false, "https://lab.example:6443"},
		{"below the home directory", "lab.yaml", func(string) Config { return Config{Kubeconfig: "~/lab.yaml"} }, false, "https://lab.example:6443"},
		{"by KUBECONFIG", "lab.yaml", func(string) Config { return Config{} }, true, "https://lab.example:6443"},
		{"at the usual place", ".kube/config", func(string) Config { return Config{} }, false, "https://lab.example:6443"},
		{"at the usual place as the official provider says it", ".kube/config", func(string) Config { return Config{Kubeconfig: "~/.kube/config"} }, false, "https://lab.example:6443"},
		{"in another context", "lab.yaml", func(file string) Config { return Config{Kubeconfig: file, Context: "rack"} }, false, "https://rack.example:6443"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, file := at(t, test.file)

			if test.env {
				t.Setenv("KUBECONFIG", file)
			}

			got, err := test.config(file).restConfig()
			require.NoError(t, err)
			assert.Equal(t, test.want, got.Host)
			assert.Equal(t, "canary-token", got.BearerToken)
			assert.Zero(t, got.Timeout, "it would end watches")
			assert.NotNil(t, got.RateLimiter)
		})
	}
}

func TestClusterThatIsNotFoundIsSaidInOneLine(t *testing.T) {
	for _, test := range []struct {
		name   string
		config Config
		want   string
	}{
		{"file that is missing", Config{Kubeconfig: "~/nothing"}, "nothing: no such file"},
		{"context that is missing", Config{Kubeconfig: "~/lab.yaml", Context: "mars"}, "mars"},
		{"nothing at all", Config{}, "this is no pod with a service account"},
	} {
		t.Run(test.name, func(t *testing.T) {
			at(t, "lab.yaml")

			_, err := New(test.config)
			require.ErrorContains(t, err, test.want)
			assert.NotContains(t, err.Error(), "\n")
			assert.NotContains(t, err.Error(), "canary")
		})
	}
}

func TestTokenFileReplacesAllOtherCredentials(t *testing.T) {
	home, _ := at(t, "lab.yaml")
	require.NoError(t, os.WriteFile(filepath.Join(home, "token"), []byte("t"), 0o600))

	got, err := Config{
		Rest:      &rest.Config{Host: "https://k8s", BearerToken: "old", Username: "me", Password: "old", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("ca"), CertData: []byte("old")}},
		TokenFile: "~/token",
	}.restConfig()
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(home, "token"), got.BearerTokenFile)
	assert.Empty(t, got.BearerToken+got.Username+got.Password+string(got.CertData))
	assert.Equal(t, "ca", string(got.CAData))
}

func TestHomeDirectoryIsMeantByATildeAlone(t *testing.T) {
	t.Setenv("HOME", "/home/me")

	for in, want := range map[string]string{"~": "/home/me", "~/x": "/home/me/x", "~other/x": "~other/x", "/a/~/b": "/a/~/b", "": ""} {
		got, err := expand(in)
		require.NoError(t, err)
		assert.Equal(t, want, got, in)
	}
}
