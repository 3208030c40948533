package runner

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/go-api-signature/pkg/pgp"
	"github.com/siderolabs/go-api-signature/pkg/serviceaccount"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

type cloudConfig struct {
	URI string `json:"uri" doc:"Where the cloud is." default:"cloud:///default"`
}

func program() Program[cloudConfig] {
	return Program[cloudConfig]{
		Name: "cloud", Title: "Cloud", Description: "Machines in a cloud.", Schema: `{"type":"object"}`,
		Flags: func(flags *pflag.FlagSet, config *cloudConfig) {
			flags.StringVar(&config.URI, "cloud-uri", config.URI, "where the cloud is ($CLOUD_URI)")
		},
		Env:      map[string]string{"cloud-uri": "CLOUD_URI"},
		Validate: func(data string) error { return driver.Terminalf("memroy: unknown field %q", data) },
		New: func(context.Context, cloudConfig, *zap.Logger) (driver.Driver, func() error, error) {
			return nil, nil, os.ErrNotExist
		},
	}
}

func key(t testing.TB, name string) string {
	t.Helper()

	k, err := pgp.GenerateKey("x", "test", "x@infra-provider.serviceaccount.omni.sidero.dev", time.Hour)
	require.NoError(t, err)

	encoded, err := serviceaccount.Encode(name, k)
	require.NoError(t, err)

	return encoded
}

func load(t *testing.T, env map[string]string, args ...string) (*settings[cloudConfig], error) {
	t.Helper()

	p := program()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	p.defaults().bind(flags, p)
	require.NoError(t, flags.Parse(args))

	l, err := p.read(flags, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		return nil, err
	}

	return l.settings("")
}

func write(t *testing.T, text string) string {
	t.Helper()

	name := filepath.Join(t.TempDir(), "provider.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))

	return name
}

func TestFlagBeatsEnvironmentBeatsFileBeatsDefault(t *testing.T) {
	env := map[string]string{"OMNI_ENDPOINT": "https://env.test", "OMNI_SERVICE_ACCOUNT_KEY": key(t, "infra-provider:cloud")}

	s, err := load(t, env)
	require.NoError(t, err)
	assert.Equal(t, "cloud:///default", s.config.URI)
	assert.Equal(t, "cloud", s.Provider.ID)
	assert.Equal(t, 8, s.Provider.Concurrency)

	assert.Equal(t, 30, s.Provider.LeaseSeconds)

	file := write(t, "omni:\n  endpoint: https://file.test\nprovider:\n  name: From file\n  concurrency: 3\n  lease_seconds: 60\ncloud:\n  uri: cloud:///file\n")

	s, err = load(t, env, "--config-file", file)
	require.NoError(t, err)
	assert.Equal(t, "cloud:///file", s.config.URI)
	assert.Equal(t, "https://env.test", s.Omni.Endpoint)
	assert.Equal(t, "From file", s.Provider.Name)
	assert.Equal(t, 3, s.Provider.Concurrency)

	assert.Equal(t, 60, s.Provider.LeaseSeconds)

	env["CLOUD_URI"], env["PROVIDER_LEASE_DURATION"] = "cloud:///env", "45s"
	s, err = load(t, env, "--config-file", file)
	require.NoError(t, err)
	assert.Equal(t, "cloud:///env", s.config.URI)
	assert.Equal(t, 45, s.Provider.LeaseSeconds)

	s, err = load(t, env, "--config-file", file, "--cloud-uri", "cloud:///flag", "--omni-api-endpoint", "https://flag.test", "--lease-duration", "1m30s")
	require.NoError(t, err)
	assert.Equal(t, 90, s.Provider.LeaseSeconds)
	assert.Equal(t, "cloud:///flag", s.config.URI)
	assert.Equal(t, "https://flag.test", s.Omni.Endpoint)
}

func TestWrongSettingIsOneClearLine(t *testing.T) {
	good := key(t, "infra-provider:cloud")

	for _, tt := range []struct {
		name string
		env  map[string]string
		args []string
		want string
	}{
		{"no endpoint", map[string]string{"OMNI_SERVICE_ACCOUNT_KEY": good}, nil, "OMNI_ENDPOINT is required"},
		{"endpoint without scheme", map[string]string{"OMNI_ENDPOINT": "omni.test", "OMNI_SERVICE_ACCOUNT_KEY": good}, nil, "https://omni.example.org"},
		{"no key", map[string]string{"OMNI_ENDPOINT": "https://omni.test"}, nil, "OMNI_SERVICE_ACCOUNT_KEY"},
		{"broken key", map[string]string{"OMNI_ENDPOINT": "https://omni.test", "OMNI_SERVICE_ACCOUNT_KEY": good[:len(good)-40]}, nil, "damaged or incomplete"},
		{"a user's key", map[string]string{"OMNI_ENDPOINT": "https://omni.test", "OMNI_SERVICE_ACCOUNT_KEY": key(t, "admin")}, nil, `"admin"`},
		{"another provider's key", map[string]string{"OMNI_ENDPOINT": "https://omni.test", "OMNI_SERVICE_ACCOUNT_KEY": good, "PROVIDER_ID": "other"}, nil, `of provider "cloud", but the provider id is "other"`},
		{"provider id", nil, []string{"--id", "My_Prov"}, "DNS label"},
		{"log level", map[string]string{"OMNI_ENDPOINT": "https://omni.test", "OMNI_SERVICE_ACCOUNT_KEY": good}, []string{"--log-level", "loud"}, "--log-level"},
		{"lease", map[string]string{"OMNI_ENDPOINT": "https://omni.test", "OMNI_SERVICE_ACCOUNT_KEY": good}, []string{"--lease-duration", "2s"}, "--lease-duration 2s: want 5s to 10m"},
		{"lease in the environment", map[string]string{"OMNI_ENDPOINT": "https://omni.test", "OMNI_SERVICE_ACCOUNT_KEY": good, "PROVIDER_LEASE_DURATION": "5500ms"}, nil, "want whole seconds, as 30s"},
		{"factory", map[string]string{"OMNI_ENDPOINT": "https://omni.test", "OMNI_SERVICE_ACCOUNT_KEY": good}, []string{"--image-factory", "factory"}, "image factory"},
		{"endpoint with a password", map[string]string{"OMNI_ENDPOINT": "https://me:canary@omni.test", "OMNI_SERVICE_ACCOUNT_KEY": good}, nil, "user and password"},
		{"factory with a password", map[string]string{"OMNI_ENDPOINT": "https://omni.test", "OMNI_SERVICE_ACCOUNT_KEY": good}, []string{"--image-factory", "https://me:canary@fac tory"}, "user and password"},
		{"missing file", nil, []string{"--config-file", "/nonexistent/provider.yaml"}, "/nonexistent/provider.yaml"},
		{"unknown key in file", nil, []string{"--config-file", write(t, "cloud:\n  url: x\n")}, "uri"},
		{"unknown section in file", nil, []string{"--config-file", write(t, "clouds:\n  uri: x\n")}, "clouds"},
		{"no mapping in file", nil, []string{"--config-file", write(t, "- a\n")}, "configuration file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(t, tt.env, tt.args...)
			require.ErrorContains(t, err, tt.want)
			assert.NotContains(t, err.Error(), good[:30], "no error quotes the key")
			assert.NotContains(t, err.Error(), "canary")
		})
	}
}

func TestKeyFileGivenAsAFlagBeatsTheEnvironment(t *testing.T) {
	env := map[string]string{"OMNI_ENDPOINT": "https://env.test", "OMNI_SERVICE_ACCOUNT_KEY": key(t, "infra-provider:other")}

	s, err := load(t, env, "--omni-service-account-key-file", write(t, key(t, "infra-provider:cloud")+"\n"))
	require.NoError(t, err)
	assert.NotEqual(t, env["OMNI_SERVICE_ACCOUNT_KEY"], s.key)
}

func TestHelpShowsNoSecretAndNamesTheVariables(t *testing.T) {
	secret := key(t, "infra-provider:cloud")
	t.Setenv("OMNI_SERVICE_ACCOUNT_KEY", secret)

	var out bytes.Buffer

	require.NoError(t, Execute(t.Context(), program(), []string{"--help"}, &out, &out))
	assert.NotContains(t, out.String(), secret[:30])

	for _, want := range []string{"OMNI_ENDPOINT", "OMNI_SERVICE_ACCOUNT_KEY", "PROVIDER_ID", "--config-file", "--cloud-uri", "schema", "validate", "version"} {
		assert.Contains(t, out.String(), want)
	}
}

func TestValidateNamesTheFile(t *testing.T) {
	file := write(t, "memroy: 1\n")

	var out bytes.Buffer

	err := Execute(t.Context(), program(), []string{"validate", file}, &out, &out)
	require.ErrorContains(t, err, file)
	require.ErrorContains(t, err, "memroy")
}

func TestValidateTakesWholeResources(t *testing.T) {
	p := program()
	p.Validate = func(data string) error {
		if strings.Contains(data, "memroy") {
			return driver.Terminalf("invalid class data: memroy: unknown field")
		}

		return nil
	}

	class := func(spec string) string {
		return "metadata:\n  namespace: default\n  type: MachineClasses.omni.sidero.dev\n  id: workers\nspec:\n" + spec
	}
	auto := func(data string) string {
		return class("  autoprovision:\n    providerid: cloud\n    providerdata: |\n      " + data + "\n")
	}
	set := "metadata:\n  namespace: default\n  type: MachineRequestSets.omni.sidero.dev\n  id: pool\nspec:\n  providerid: cloud\n  providerdata: |\n    cores: 2\n"

	for _, tt := range []struct{ name, text, out, err string }{
		{"class data", "cores: 2\n", "class data: ok", ""},
		{"class data as JSON", `{"cores": 2}`, "class data: ok", ""},
		{"nothing", "", "class data: ok", ""},
		{"wrong class data", "memroy: 2\n", "", "memroy"},
		{"class", auto("cores: 2"), `machine class "workers" of provider "cloud": ok`, ""},
		{"wrong class", auto("memroy: 2"), "", `machine class "workers", providerdata: invalid class data: memroy`},
		{"class and set", auto("cores: 2") + "---\n" + set, `machine request set "pool" of provider "cloud": ok`, ""},
		{"class without a provider", class("  matchlabels: [a]\n"), "", `machine class "workers" has no autoprovision`},
		{"class without an id of a provider", class("  autoprovision:\n    providerdata: x\n"), "", "providerid is required"},
		{"another resource", "metadata:\n  namespace: default\n  type: Clusters.omni.sidero.dev\n  id: c\nspec: {}\n", "", "holds no class data: want a machine class"},
		{"class and class data", auto("cores: 2") + "---\ncores: 2\n", "", "a document behind the first is no resource of Omni"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer

			file := write(t, tt.text)
			err := Execute(t.Context(), p, []string{"validate", file}, &out, &out)

			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				require.ErrorContains(t, err, file)

				return
			}

			require.NoError(t, err)
			assert.Contains(t, out.String(), file+": "+tt.out)
		})
	}
}

func TestHelpTellsTheOrderOfSettings(t *testing.T) {
	var out bytes.Buffer

	require.NoError(t, Execute(t.Context(), program(), []string{"--help"}, &out, &out))

	for _, want := range []string{ConfigAnnotation, "omni.sidero.dev/infra-provider-id", "omnictl edit infraprovider cloud", "4. Omni", "machines", "sweep"} {
		assert.Contains(t, out.String(), want)
	}
}

func TestSchemaIsPrinted(t *testing.T) {
	var out bytes.Buffer

	require.NoError(t, Execute(t.Context(), program(), []string{"schema"}, &out, &out))
	assert.Equal(t, `{"type":"object"}`, strings.TrimSpace(out.String()))
}
