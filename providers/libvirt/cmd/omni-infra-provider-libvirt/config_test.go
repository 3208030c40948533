package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
)

func TestConfigurationNamesItsHosts(t *testing.T) {
	for _, test := range []struct {
		name, text string
		// want has name, URI and storage pools of each host.
		want [][]string
	}{
		{"nothing", "", [][]string{{"default", "qemu:///system"}}},
		{"one URI", "{uri: 'test:///default', storage_pools: [a, b]}", [][]string{{"default", "test:///default", "a", "b"}}},
		{
			"hosts", "{storage_pools: [a], hosts: [{name: one, uri: 'qemu+tls://one/system'}, {name: two, uri: 'qemu+tls://two/system', storage_pools: [b]}]}",
			[][]string{{"one", "qemu+tls://one/system", "a"}, {"two", "qemu+tls://two/system", "b"}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := classdata.DecodeAs[config]("configuration", test.text)
			require.NoError(t, err)

			dc, err := c.driverConfig()
			require.NoError(t, err)

			var got [][]string
			for _, host := range dc.Hosts {
				got = append(got, append([]string{host.Name, host.URI}, host.StoragePools...))
			}

			assert.Equal(t, test.want, got)
		})
	}
}

func TestHostsThatCannotBeToldApartAreRefused(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"no name", "{hosts: [{uri: x}]}", "hosts[0].name: required"},
		{"no URI", "{hosts: [{name: a}]}", "hosts[0].uri: required"},
		{"name that is none", "{hosts: [{name: 'a b', uri: x}]}", "hosts[0].name"},
		{"label that is none", "{hosts: [{name: a, uri: x, labels: [rack]}]}", "hosts[0].labels[0]"},
		{"one name twice", "{hosts: [{name: a, uri: x}, {name: b, uri: y}, {name: a, uri: z}]}", `hosts[2].name: "a" is the name of hosts[0] already`},
		{"one host twice", "{hosts: [{name: a, uri: x}, {name: b, uri: x}]}", "hosts[1].uri: it is that of hosts[0] already"},
		{"URI and hosts", "{uri: 'qemu+ssh://a/system', hosts: [{name: b, uri: y}]}", "libvirt.uri and libvirt.hosts are both set"},
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

func TestLabelsOfAHostAreThoseOfItsMachines(t *testing.T) {
	c, err := classdata.DecodeAs[config]("configuration", "{hosts: [{name: a, uri: x, labels: [rack=r1, site=cellar=old]}]}")
	require.NoError(t, err)

	dc, err := c.driverConfig()
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"rack": "r1", "site": "cellar=old"}, dc.Hosts[0].Labels)
}
