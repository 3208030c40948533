package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
)

// setting is a key of the configuration, set to a value that is not its default, and what the driver is made of then.
type setting struct {
	// flag is the flag of the key, empty where there is none, given is its value.
	flag, given string
	// value is that of the configuration file.
	value string
	// field is the one field of the driver's configuration that follows from it.
	field string
	want  any
}

// mapping are all keys.
var mapping = map[string]setting{
	"kubeconfig_file":       {"kubeconfig-file", "/k/config", "/k/config", "Cluster.Kubeconfig", "/k/config"},
	"kubeconfig_context":    {"kubeconfig-context", "rack", "rack", "Cluster.Context", "rack"},
	"token_file":            {"token-file", "/k/token", "/k/token", "Cluster.TokenFile", "/k/token"},
	"as":                    {"as", "machines", "machines", "Cluster.ImpersonateUser", "machines"},
	"as_groups":             {"as-group", "a,b", "[a, b]", "Cluster.ImpersonateGroups", []string{"a", "b"}},
	"namespaces":            {"namespace", "one,two", "[one, two]", "Operator.Namespaces", []string{"one", "two"}},
	"data_volume_mode":      {"data-volume-mode", "Block", "Block", "Operator.VolumeMode", "Block"},
	"storage_class_name":    {"storage-class", "fast", "fast", "Operator.StorageClassName", "fast"},
	"image_cert_config_map": {"image-cert-config-map", "factory-ca", "factory-ca", "Operator.ImageCertConfigMap", "factory-ca"},
	"keep_images":           {"keep-images", "true", "true", "KeepImages", true},
	"image_max_age_hours":   {"", "", "7", "ImageMaxAge", 7 * time.Hour},
	"qps":                   {"kube-api-qps", "7", "7", "Cluster.QPS", float32(7)},
	"burst":                 {"kube-api-burst", "9", "9", "Cluster.Burst", 9},
	"call_timeout_seconds":  {"", "", "11", "Cluster.CallTimeout", 11 * time.Second},
}

// elsewhere are the fields of the driver's configuration that no setting gives: the program sets some, and tests the others.
var elsewhere = []string{"Cluster.UserAgent", "Cluster.Transport", "Cluster.Rest", "Version", "SweepInterval", "Logger"}

func configOf(t *testing.T, text string) config {
	t.Helper()

	c, err := classdata.DecodeAs[config]("configuration", text)
	require.NoError(t, err)

	return c
}

// fields are those of the driver's configuration, by their paths.
func fields(t *testing.T, c config) map[string]any {
	t.Helper()

	dc, err := c.driverConfig()
	require.NoError(t, err)

	all := map[string]any{}
	whole := reflect.ValueOf(dc)

	for i := range whole.NumField() {
		name, value := whole.Type().Field(i).Name, whole.Field(i)
		if value.Kind() != reflect.Struct {
			all[name] = value.Interface()

			continue
		}

		for j := range value.NumField() {
			all[name+"."+value.Type().Field(j).Name] = value.Field(j).Interface()
		}
	}

	return all
}

// requireOnly checks that the configuration differs from that of nothing in the setting's field, and in no other.
func (s setting) requireOnly(t *testing.T, c config) {
	t.Helper()

	want := fields(t, configOf(t, ""))
	require.Contains(t, want, s.field)
	require.NotEqual(t, s.want, want[s.field], "the value is the default, which shows nothing")

	want[s.field] = s.want
	assert.Equal(t, want, fields(t, c))
}

func TestEveryKeyReachesTheDriver(t *testing.T) {
	keys := reflect.TypeFor[config]()
	for i := range keys.NumField() {
		key := keys.Field(i).Tag.Get("json")
		require.Contains(t, mapping, key, "say what it does to the driver")

		t.Run(key, func(t *testing.T) {
			mapping[key].requireOnly(t, configOf(t, fmt.Sprintf("{%s: %s}", key, mapping[key].value)))
		})
	}
}

func TestEveryFlagReachesTheDriver(t *testing.T) {
	byFlag := map[string]setting{}

	for _, s := range mapping {
		if s.flag != "" {
			byFlag[s.flag] = s
		}
	}

	var known []string

	c := configOf(t, "")
	all := pflag.NewFlagSet("all", pflag.ContinueOnError)
	flags(all, &c)
	all.VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	require.ElementsMatch(t, known, slices.Collect(maps.Keys(byFlag)), "say what each does to the driver")

	for name, s := range byFlag {
		t.Run(name, func(t *testing.T) {
			c := configOf(t, "")
			one := pflag.NewFlagSet("one", pflag.ContinueOnError)
			flags(one, &c)
			require.NoError(t, one.Parse([]string{"--" + name + "=" + s.given}))

			s.requireOnly(t, c)
		})
	}
}

func TestEveryFieldOfTheDriverIsSetByAKey(t *testing.T) {
	set := slices.Clone(elsewhere)
	for _, s := range mapping {
		set = append(set, s.field)
	}

	assert.ElementsMatch(t, slices.Collect(maps.Keys(fields(t, configOf(t, "")))), set)
}

func TestProgramSaysWhoItIs(t *testing.T) {
	dc, err := configOf(t, "").driverConfig()
	require.NoError(t, err)
	assert.Regexp(t, `^omni-infra-provider-kubevirt/.+`, dc.Cluster.UserAgent)
	assert.NotEmpty(t, dc.Version)
	assert.Equal(t, provider.Config{}.SweepInterval, dc.SweepInterval, "the driver's own default")
}

func TestEveryVariableReachesItsFlag(t *testing.T) {
	t.Parallel()

	server, endpoint := serveOmni(t)
	key, err := server.CreateProvider(t.Context(), "kubevirt")
	require.NoError(t, err)

	for variable, test := range map[string]struct{ value, want string }{
		"KUBECONFIG_FILE":    {filepath.Join(t.TempDir(), "nothing"), "nothing: no such file"},
		"KUBEVIRT_NAMESPACE": {"Omni_Machines", `--namespace "Omni_Machines" is no namespace`},
		"DATA_VOLUME_MODE":   {"block", `--data-volume-mode "block": want Block or Filesystem`},
	} {
		t.Run(variable, func(t *testing.T) {
			t.Parallel()

			got := execute(t, []string{"OMNI_ENDPOINT=" + endpoint, "OMNI_SERVICE_ACCOUNT_KEY=" + key, variable + "=" + test.value})
			requireOneError(t, got, key, test.want)
		})
	}
}
