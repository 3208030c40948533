package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
)

func TestConfigurationOfNothingIsThatOfTheOfficialProvider(t *testing.T) {
	c, err := classdata.DecodeAs[config]("configuration", "")
	require.NoError(t, err)

	dc, err := c.driverConfig()
	require.NoError(t, err)
	assert.Equal(t, []string{"default"}, dc.Operator.Namespaces)
	assert.Empty(t, dc.Operator.VolumeMode)
	assert.Empty(t, dc.Cluster.Kubeconfig)
	assert.Equal(t, 24*time.Hour, dc.ImageMaxAge)
	assert.Equal(t, 20*time.Second, dc.Cluster.CallTimeout)
	assert.InDelta(t, 50, dc.Cluster.QPS, 0)
}

func TestImageThatIsNotKeptAtAllHasNoDefaultAge(t *testing.T) {
	c, err := classdata.DecodeAs[config]("configuration", "{image_max_age_hours: 0}")
	require.NoError(t, err)

	dc, err := c.driverConfig()
	require.NoError(t, err)
	assert.Negative(t, dc.ImageMaxAge)
}

func TestConfigurationThatCannotWorkIsRefused(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"no namespace", "{namespaces: []}", "namespace"},
		{"namespace that is none", "{namespaces: [Omni_Machines]}", `"Omni_Machines" is no namespace`},
		{"namespace twice", "{namespaces: [a, b, a]}", `"a" is given twice`},
		{"volume mode that is none", "{data_volume_mode: block}", "data_volume_mode"},
		{"no name of a ConfigMap", "{image_cert_config_map: My CA}", "image_cert_config_map"},
		{"unknown key", "{namespace: a}", `"namespaces"`},
		{"no calls", "{qps: 0}", "qps"},
		{"a time without end", "{call_timeout_seconds: 3600}", "call_timeout_seconds"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := classdata.DecodeAs[config]("configuration", test.text)
			if err == nil {
				_, err = c.driverConfig()
			}

			require.ErrorContains(t, err, test.want)
		})
	}
}
