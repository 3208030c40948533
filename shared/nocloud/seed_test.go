package nocloud_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kdomanski/iso9660"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/nocloud"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const secret = "join-token-that-nobody-may-see"

func config() nocloud.Config {
	return nocloud.Config{
		Hostname: "talos-default-7xk2p",
		UserData: "apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: grpc://omni.example.org:8090?jointoken=" + secret + "\n",
	}
}

func mac(s string) net.HardwareAddr {
	parsed, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}

	return parsed
}

func static() []nocloud.Interface {
	return []nocloud.Interface{
		{
			MAC:         mac("02:00:5E:10:00:01"),
			Addresses:   []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24"), netip.MustParsePrefix("2001:db8::7/64")},
			Gateways:    []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
			Nameservers: []netip.Addr{netip.MustParseAddr("192.0.2.53")},
			Search:      []string{"example.org"},
			MTU:         9000,
		},
		{MAC: mac("02:00:5e:10:00:02")},
	}
}

func document(t *testing.T, seed nocloud.Seed, name string) []byte {
	t.Helper()

	data, ok := seed.Document(name)
	require.True(t, ok)

	return data
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()

	path := filepath.Join("testdata", file)

	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}

	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got))
}

func TestDocumentsHaveTheShapeThatTalosReads(t *testing.T) {
	for name, interfaces := range map[string][]nocloud.Interface{"dhcp": nil, "static": static()} {
		t.Run(name, func(t *testing.T) {
			c := config()
			c.Interfaces = interfaces

			seed, err := nocloud.New(c)
			require.NoError(t, err)

			for _, doc := range []string{nocloud.MetaData, nocloud.NetworkConfig} {
				golden(t, name+"-"+doc, document(t, seed, doc))
			}

			var decoded map[string]any
			require.NoError(t, yaml.Unmarshal(document(t, seed, nocloud.NetworkConfig), &decoded))
			assert.Equal(t, 2, decoded["version"])
			assert.NotContains(t, decoded, "network")
		})
	}

	seed, err := nocloud.New(config())
	require.NoError(t, err)

	_, ok := seed.Document("vendor-data")
	assert.False(t, ok)
}

// talosMetaData holds the keys of Talos' metadata parser that a seed uses.
type talosMetaData struct {
	Hostname   string `yaml:"local-hostname"`
	InstanceID string `yaml:"instance-id"`
}

func TestHostnameIsTheRequestID(t *testing.T) {
	for _, id := range []string{"talos-default-7xk2p", "a", "null", "0x10", "1e3", "true", "12", strings.Repeat("a", 63), "a.example.org"} {
		seed, err := nocloud.New(nocloud.Config{Hostname: id, UserData: "kind: x"})
		require.NoError(t, err, id)

		var got talosMetaData
		require.NoError(t, yaml.Unmarshal(document(t, seed, nocloud.MetaData), &got))
		assert.Equal(t, talosMetaData{Hostname: id, InstanceID: id}, got)
	}
}

func TestISOIsReadBackUnderTheNamesThatTalosOpens(t *testing.T) {
	for _, size := range []int{1, 2047, 2048, 2049, nocloud.MaxUserData} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			c := config()
			c.UserData = strings.Repeat("a", size)
			c.Interfaces = static()

			seed, err := nocloud.New(c)
			require.NoError(t, err)

			image, err := iso9660.OpenImage(bytes.NewReader(seed.ISO()))
			require.NoError(t, err)

			label, err := image.Label()
			require.NoError(t, err)
			assert.Equal(t, "cidata", label)

			root, err := image.RootDir()
			require.NoError(t, err)

			children, err := root.GetChildren()
			require.NoError(t, err)

			var names []string

			for _, child := range children {
				names = append(names, child.Name())

				got, err := io.ReadAll(child.Reader())
				require.NoError(t, err)
				assert.Equal(t, document(t, seed, child.Name()), got)
				assert.Equal(t, os.FileMode(0o400), child.Mode().Perm(), "only root may read %s", child.Name())
			}

			assert.Equal(t, []string{nocloud.MetaData, nocloud.NetworkConfig, nocloud.UserData}, names)
		})
	}
}

func TestSameConfigGivesTheSameBytes(t *testing.T) {
	c := config()
	c.Interfaces = static()

	first, err := nocloud.New(c)
	require.NoError(t, err)

	second, err := nocloud.New(c)
	require.NoError(t, err)

	assert.Equal(t, first.ISO(), second.ISO())
	assert.Zero(t, len(first.ISO())%2048)
}

func TestSeedDoesNotPrintItsSecret(t *testing.T) {
	seed, err := nocloud.New(config())
	require.NoError(t, err)

	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		assert.NotContains(t, fmt.Sprintf(verb, seed), secret)
		assert.NotContains(t, fmt.Sprintf(verb, struct{ S nocloud.Seed }{seed}), secret)
		assert.NotContains(t, fmt.Sprintf(verb, &seed), fmt.Sprintf("%x", secret))
	}
}

func TestConfigThatCannotBootIsRefused(t *testing.T) {
	nic := func(change func(*nocloud.Interface)) []nocloud.Interface {
		nics := static()
		change(&nics[0])

		return nics
	}

	tests := []struct {
		name, want string
		change     func(*nocloud.Config)
	}{
		{"no hostname", `hostname ""`, func(c *nocloud.Config) { c.Hostname = "" }},
		{"underscore", `hostname "a_b"`, func(c *nocloud.Config) { c.Hostname = "a_b" }},
		{"64 letters", "at most 63", func(c *nocloud.Config) { c.Hostname = strings.Repeat("a", 64) }},
		{"254 letters", "hostname", func(c *nocloud.Config) { c.Hostname = strings.Repeat("a.", 127) + "a" }},
		{"trailing dash", "no dash at either end", func(c *nocloud.Config) { c.Hostname = "a-" }},
		{"no user data", "user data is empty", func(c *nocloud.Config) { c.UserData = " \n" }},
		{"cloud-init", `user data begins with "#cloud-config"`, func(c *nocloud.Config) { c.UserData = "#cloud-config \npassword: " + secret }},
		{"include", `user data begins with "#include"`, func(c *nocloud.Config) { c.UserData = "#include\nhttps://example.org/" + secret }},
		{"too large", "user data has 1048577 bytes: want at most 1048576", func(c *nocloud.Config) { c.UserData = strings.Repeat("a", nocloud.MaxUserData+1) }},
		{"no MAC", `interfaces[0].mac: "" is not`, func(c *nocloud.Config) { c.Interfaces = nic(func(n *nocloud.Interface) { n.MAC = nil }) }},
		{"multicast MAC", "interfaces[0].mac", func(c *nocloud.Config) {
			c.Interfaces = nic(func(n *nocloud.Interface) { n.MAC = mac("01:00:5e:00:00:01") })
		}},
		{"MAC twice", "interfaces[1].mac: 02:00:5e:10:00:02 is taken by interfaces[0]", func(c *nocloud.Config) {
			c.Interfaces = nic(func(n *nocloud.Interface) { n.MAC = mac("02:00:5e:10:00:02") })
		}},
		{"MTU", "interfaces[0].mtu: got 1, want", func(c *nocloud.Config) { c.Interfaces = nic(func(n *nocloud.Interface) { n.MTU = 1 }) }},
		{"no prefix", "interfaces[0].addresses[0]", func(c *nocloud.Config) {
			c.Interfaces = nic(func(n *nocloud.Interface) { n.Addresses = []netip.Prefix{{}} })
		}},
		{"gateway of another family", "interfaces[0].gateways[1]: 2001:db8::1 needs an address of its family", func(c *nocloud.Config) {
			c.Interfaces = nic(func(n *nocloud.Interface) { n.Addresses = n.Addresses[:1] })
		}},
		{"two gateways", "is a second gateway", func(c *nocloud.Config) {
			c.Interfaces = nic(func(n *nocloud.Interface) { n.Gateways = append(n.Gateways, netip.MustParseAddr("192.0.2.2")) })
		}},
		{"gateway without value", "interfaces[0].gateways[0]", func(c *nocloud.Config) {
			c.Interfaces = nic(func(n *nocloud.Interface) { n.Gateways = []netip.Addr{{}} })
		}},
		{"nameserver without value", "interfaces[0].nameservers[0]", func(c *nocloud.Config) {
			c.Interfaces = nic(func(n *nocloud.Interface) { n.Nameservers = []netip.Addr{{}} })
		}},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := config()
			tt.change(&c)

			_, err := nocloud.New(c)

			require.ErrorContains(t, err, tt.want)
			assert.NotContains(t, err.Error(), secret)
			assert.Equal(t, driver.KindTerminal, driver.KindOf(err))
		})
	}
}

func TestSerialNumberPointsAtTheSeed(t *testing.T) {
	for _, base := range []string{"http://192.0.2.1:8080/seeds/a", "http://192.0.2.1:8080/seeds/a/"} {
		got, err := nocloud.SMBIOSSerial(base)
		require.NoError(t, err)
		assert.Equal(t, "ds=nocloud-net;s=http://192.0.2.1:8080/seeds/a/", got)
	}

	for _, base := range []string{
		"", "192.0.2.1", "ftp://192.0.2.1/", "http://", "http://h/a;b/", "http://user:" + secret + "@h/", "http://h/?a=b", "http://h/#a", "http://h/\x7f" + secret,
	} {
		_, err := nocloud.SMBIOSSerial(base)
		require.Error(t, err, base)
		assert.NotContains(t, err.Error(), secret)
	}
}

// FuzzNetworkConfig feeds hostile names and addresses: whatever is accepted reads back as it was meant.
func FuzzNetworkConfig(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 0, 1}, []byte{192, 0, 2, 7}, 24, []byte{192, 0, 2, 1}, "example.org", 1500)
	f.Add([]byte{2, 0, 0, 0, 0, 1}, []byte{}, 0, []byte{}, "a: b\n#c", 0)

	f.Fuzz(func(t *testing.T, hardware, address []byte, bits int, gateway []byte, search string, mtu int) {
		ip, _ := netip.AddrFromSlice(address)
		gw, hasGateway := netip.AddrFromSlice(gateway)

		nic := nocloud.Interface{MAC: hardware, Search: []string{search}, MTU: mtu}
		if ip.IsValid() {
			nic.Addresses = []netip.Prefix{netip.PrefixFrom(ip, bits)}
		}

		if hasGateway {
			nic.Gateways = []netip.Addr{gw}
		}

		seed, err := nocloud.New(nocloud.Config{Hostname: "a", UserData: "kind: x", Interfaces: []nocloud.Interface{nic}})
		if err != nil {
			require.Equal(t, driver.KindTerminal, driver.KindOf(err))

			return
		}

		var got struct {
			Version   int
			Ethernets map[string]struct {
				Match       struct{ MACAddress string }
				DHCP4       bool
				Addresses   []netip.Prefix
				Gateway4    netip.Addr
				Gateway6    netip.Addr
				MTU         int
				NameServers struct{ Search []string }
			}
		}

		require.NoError(t, yaml.Unmarshal(document(t, seed, nocloud.NetworkConfig), &got))

		eth := got.Ethernets["eth0"]
		assert.Equal(t, net.HardwareAddr(hardware).String(), eth.Match.MACAddress)
		assert.Equal(t, len(nic.Addresses) == 0, eth.DHCP4)
		assert.Equal(t, nic.Addresses, eth.Addresses)
		assert.Equal(t, mtu, eth.MTU)
		assert.Equal(t, []string{search}, eth.NameServers.Search)

		if hasGateway {
			assert.Contains(t, []netip.Addr{eth.Gateway4, eth.Gateway6}, gw)
		}
	})
}

func ExampleNew() {
	seed, err := nocloud.New(nocloud.Config{
		Hostname: "talos-default-7xk2p",
		UserData: "apiVersion: v1alpha1\nkind: SideroLinkConfig\n",
	})
	if err != nil {
		fmt.Println(err)

		return
	}

	meta, _ := seed.Document(nocloud.MetaData)
	fmt.Printf("%s%d bytes of %s\n", meta, len(seed.ISO()), seed)
	// Output:
	// instance-id: talos-default-7xk2p
	// local-hostname: talos-default-7xk2p
	// 49152 bytes of [NoCloud seed]
}
