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

func key(t *testing.T, name string) string {
	t.Helper()

	k, err := pgp.GenerateKey("x", "test", "x@infra-provider.serviceaccount.omni.sidero.dev", time.Hour)
	require.NoError(t, err)

	encoded, err := serviceaccount.Encode(name, k)
	require.NoError(t, err)

	return encoded
}

func load(t *testing.T, env map[string]string, args ...string) (*settings[cloudConfig], error) {
	t.Helper()

	s := &settings[cloudConfig]{program: program(), config: cloudConfig{URI: "cloud:///default"}}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	s.bind(flags)
	require.NoError(t, flags.Parse(args))

	return s, s.load(flags, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
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
	assert.Equal(t, "cloud", s.id)
	assert.Equal(t, 8, s.concurrency)

	file := write(t, "omni:\n  endpoint: https://file.test\nprovider:\n  name: From file\n  concurrency: 3\ncloud:\n  uri: cloud:///file\n")

	s, err = load(t, env, "--config-file", file)
	require.NoError(t, err)
	assert.Equal(t, "cloud:///file", s.config.URI)
	assert.Equal(t, "https://env.test", s.endpoint)
	assert.Equal(t, "From file", s.name)
	assert.Equal(t, 3, s.concurrency)

	env["CLOUD_URI"] = "cloud:///env"
	s, err = load(t, env, "--config-file", file)
	require.NoError(t, err)
	assert.Equal(t, "cloud:///env", s.config.URI)

	s, err = load(t, env, "--config-file", file, "--cloud-uri", "cloud:///flag", "--omni-api-endpoint", "https://flag.test")
	require.NoError(t, err)
	assert.Equal(t, "cloud:///flag", s.config.URI)
	assert.Equal(t, "https://flag.test", s.endpoint)
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

func TestSchemaIsPrinted(t *testing.T) {
	var out bytes.Buffer

	require.NoError(t, Execute(t.Context(), program(), []string{"schema"}, &out, &out))
	assert.Equal(t, `{"type":"object"}`, strings.TrimSpace(out.String()))
}
