package talos_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/kdomanski/iso9660"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/talos"
)

// handlerTransport serves requests by calling a handler, without a socket.
type handlerTransport struct{ http.Handler }

func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, r)

	return recorder.Result(), nil
}

// doc is a machine config that names host as the place of Omni.
func doc(host string) string { return strings.ReplaceAll(joinDoc, "omni.example", host) }

func inline(name, config string) talos.Cmdline {
	writer, _ := zstd.NewWriter(nil)
	defer writer.Close() //nolint:errcheck // Writes nowhere.

	return talos.Cmdline(name + "=" + base64.StdEncoding.EncodeToString(writer.EncodeAll([]byte(config), nil)))
}

func volume(files map[string]string) func() (fs.FS, error) {
	return func() (fs.FS, error) {
		m := fstest.MapFS{}
		for name, data := range files {
			m[name] = &fstest.MapFile{Data: []byte(data)}
		}

		return m, nil
	}
}

func served(files map[string]string) *http.Client {
	mux := http.NewServeMux()
	for name, data := range files {
		mux.HandleFunc("/seed/"+name, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(data)) }) //nolint:errcheck // A recorder.
	}

	return &http.Client{Transport: handlerTransport{mux}}
}

func zipped(config string) string {
	var buffer bytes.Buffer

	writer := gzip.NewWriter(&buffer)
	writer.Write([]byte(config)) //nolint:errcheck // A buffer.
	writer.Close()               //nolint:errcheck // A buffer.

	return buffer.String()
}

func TestJoinConfigIsFoundWhereTalosLooks(t *testing.T) {
	const serial = "ds=nocloud-net;s=http://10.0.2.2/seed"

	for name, test := range map[string]struct {
		machine *talos.Machine
		target  string
		host    string
		err     string
	}{
		"kernel argument": {
			machine: &talos.Machine{Cmdline: apiArg}, target: "grpc://omni.example:8090",
		},
		"nothing at all": {machine: &talos.Machine{}},
		"volume": {
			machine: &talos.Machine{Volume: volume(map[string]string{"user-data": joinDoc, "meta-data": "local-hostname: node-7\ninstance-id: i\n"})},
			target:  "grpc://omni.example:8090", host: "node-7",
		},
		"user data goes before the kernel argument": {
			machine: &talos.Machine{Cmdline: apiArg, UserData: []byte(doc("user"))}, target: "grpc://user:8090",
		},
		"late kernel argument goes before user data": {
			machine: &talos.Machine{Cmdline: inline("talos.config.inline", doc("late")), UserData: []byte(doc("user"))}, target: "grpc://late:8090",
		},
		"user data goes before the early kernel argument": {
			machine: &talos.Machine{Cmdline: inline("talos.config.early", doc("early")), UserData: []byte(doc("user"))}, target: "grpc://user:8090",
		},
		"early kernel argument goes before the image": {
			machine: &talos.Machine{Cmdline: inline("talos.config.early", doc("early")), Embedded: []byte(doc("image"))}, target: "grpc://early:8090",
		},
		"image": {
			machine: &talos.Machine{Embedded: []byte(doc("image"))}, target: "grpc://image:8090",
		},
		"volume without user data": {
			machine: &talos.Machine{Cmdline: apiArg, Volume: volume(map[string]string{"meta-data": "hostname: h\n"})},
			target:  "grpc://omni.example:8090", host: "h",
		},
		"gzip": {
			machine: &talos.Machine{Volume: volume(map[string]string{"user-data": zipped(joinDoc)})}, target: "grpc://omni.example:8090",
		},
		"cloud-config is no config": {
			machine: &talos.Machine{Cmdline: apiArg, Volume: volume(map[string]string{"user-data": "#cloud-config\nhostname: x\n"})},
			target:  "grpc://omni.example:8090",
		},
		"served": {
			machine: &talos.Machine{Serial: serial, HTTP: served(map[string]string{"user-data": joinDoc, "meta-data": "hostname: node-8"})},
			target:  "grpc://omni.example:8090", host: "node-8",
		},
		"host name of the serial number goes before that of the seed": {
			machine: &talos.Machine{Serial: serial + ";h=node-9", HTTP: served(map[string]string{"user-data": joinDoc, "meta-data": "hostname: node-8"})},
			target:  "grpc://omni.example:8090", host: "node-9",
		},
		"served without user data": {
			machine: &talos.Machine{Cmdline: apiArg, Serial: serial, HTTP: served(nil)}, target: "grpc://omni.example:8090",
		},
		"served empty user data": {
			machine: &talos.Machine{Serial: serial, HTTP: served(map[string]string{"user-data": ""})},
		},
		"a volume is not looked for when a seed is served": {
			machine: &talos.Machine{Serial: serial, HTTP: served(nil), Volume: volume(map[string]string{"user-data": joinDoc})},
		},
		"ds=nocloud means a volume": {
			machine: &talos.Machine{Serial: "ds=nocloud;s=http://10.0.2.2/seed/", HTTP: served(map[string]string{"user-data": doc("net")}),
				Volume: volume(map[string]string{"user-data": doc("volume")})},
			target: "grpc://volume:8090",
		},
		"the kernel argument works beside unreadable user data": {
			machine: &talos.Machine{Cmdline: apiArg, UserData: []byte("hello")}, target: "grpc://omni.example:8090", err: "decode user data",
		},
		"unknown key": {
			machine: &talos.Machine{UserData: []byte(joinDoc + "apiURL: x\n")}, err: "decode user data",
		},
		"unknown kind": {
			machine: &talos.Machine{UserData: []byte("apiVersion: v1alpha1\nkind: SiderolinkConfig\n")}, err: "decode user data",
		},
		"empty user data": {
			machine: &talos.Machine{UserData: []byte{}}, err: "decode user data: config not found",
		},
		"wrong scheme": {
			machine: &talos.Machine{UserData: []byte(strings.Replace(joinDoc, "grpc:", "http:", 1))}, err: "apiUrl scheme must be",
		},
		"path": {
			machine: &talos.Machine{UserData: []byte(strings.Replace(joinDoc, "?", "/api?", 1))}, err: "apiUrl path must be empty",
		},
		"network-config without version leaves no network": {
			machine: &talos.Machine{Cmdline: apiArg, Volume: volume(map[string]string{"user-data": joinDoc, "network-config": "ethernets: {}\n"})},
			err:     "the machine has no network: network-config has version 0",
		},
		"network-config": {
			machine: &talos.Machine{Volume: volume(map[string]string{"user-data": joinDoc, "network-config": "version: 2\nethernets: {eth0: {dhcp4: true}}\n"})},
			target:  "grpc://omni.example:8090",
		},
		"unreadable volume": {
			machine: &talos.Machine{Volume: func() (fs.FS, error) { return nil, errors.New("I/O error") }}, err: "read volume labelled cidata: I/O error",
		},
		"inline argument not base64": {
			machine: &talos.Machine{Cmdline: "talos.config.inline=%"}, err: "decode kernel argument talos.config.inline",
		},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := test.machine.FindJoinConfig(t.Context())

			if test.err != "" {
				require.ErrorContains(t, err, test.err)
			} else {
				require.NoError(t, err)
			}

			require.Equal(t, test.target, found.Target)
			require.Equal(t, test.host, found.Hostname)

			if test.target != "" {
				require.Equal(t, "t0ken", found.JoinToken)
			}
		})
	}
}

func TestServedSeedThatFailsIsAnErrorUnlikeOneThatIsNotThere(t *testing.T) {
	broken := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "later", http.StatusBadGateway) })
	m := talos.Machine{Serial: "ds=nocloud-net;s=http://10.0.2.2/", HTTP: &http.Client{Transport: handlerTransport{broken}}}

	_, err := m.FindJoinConfig(t.Context())
	require.ErrorContains(t, err, "get http://10.0.2.2/user-data: 502 Bad Gateway")
}

func TestUniqueTokenAndRootsOfTheMachineConfigAreUsed(t *testing.T) {
	m := talos.Machine{UserData: []byte(joinDoc + "uniqueToken: mine\n---\napiVersion: v1alpha1\nkind: TrustedRootsConfig\nname: lab\ncertificates: PEM\n")}

	found, err := m.FindJoinConfig(t.Context())
	require.NoError(t, err)
	require.Equal(t, "mine", found.UniqueToken)
	require.Len(t, found.Roots, 1)
	require.Contains(t, found.Roots[0], "PEM")
}

func TestEndpointsAreReadAsTalosReadsThem(t *testing.T) {
	for value, want := range map[string]talos.Endpoint{
		"grpc://10.0.2.2:8090?jointoken=a%3Db":                    {Target: "grpc://10.0.2.2:8090", JoinToken: "a=b"},
		"https://omni.example/?grpc_tunnel=true&jointoken=v2%3Ae": {Target: "https://omni.example:443", JoinToken: "v2:e", Tunnel: true},
		"https://omni.example:8090?grpc_tunnel=false":             {Target: "https://omni.example:8090"},
		"omni.example:8090?grpc_tunnel=y":                         {Target: "grpc://omni.example:8090", Tunnel: true},
		"grpc://[fd00::1]:8090":                                   {Target: "grpc://[fd00::1]:8090"},
	} {
		got, err := talos.ParseEndpoint(value)
		require.NoError(t, err, value)
		require.Equal(t, want, got, value)
	}

	for value, want := range map[string]string{
		"http://omni.example?jointoken=s3cret": `scheme "http", want grpc or https`,
		"grpc://:8090?jointoken=s3cret":        "names no host",
		"":                                     "names no host",
		"grpc://[::1?jointoken=s3cret":         "is not a URL",
	} {
		_, err := talos.ParseEndpoint(value)
		require.ErrorContains(t, err, want, value)
		require.NotContains(t, err.Error(), "s3cret")
	}
}

func TestSerialNumbersAreReadAsTalosReadsThem(t *testing.T) {
	for serial, want := range map[string]talos.Serial{
		"":                                      {},
		"VMware-42 1d":                          {},
		"ds=nocloud-net;s=http://10.0.2.2:80":   {URL: "http://10.0.2.2:80/"},
		"ds=nocloud-net;s=https://h/x/;h=a;i=b": {URL: "https://h/x/", Hostname: "a", InstanceID: "b"},
		"s=http://h/;ds=nocloud-net":            {URL: "http://h/"},
		"ds=nocloud;s=http://h/;h=a":            {Hostname: "a"},
		"ds=nocloud-net;s=/dev/sr0":             {},
		"ds=nocloud-net;h=a":                    {Hostname: "a"},
	} {
		require.Equal(t, want, talos.ParseSerial(serial), serial)
	}
}

func TestNetworkConfigsThatTalosCannotUseAreFound(t *testing.T) {
	for name, test := range map[string]struct{ config, err string }{
		"version 2":            {config: "version: 2\nethernets: {eth0: {dhcp4: true, addresses: [10.0.0.2/24], gateway4: 10.0.0.1, routes: [{to: default, via: 10.0.0.1}]}}"},
		"version 1":            {config: "version: 1\nconfig: [{type: physical, name: eth0, subnets: [{type: static, address: 10.0.0.2, netmask: 255.255.255.0, gateway: 10.0.0.1}]}]"},
		"wrapped":              {config: "network: {version: 2, ethernets: {}}"},
		"openstack network":    {config: "links: []\nservices: []", err: "version 0"},
		"not YAML":             {config: "a: [", err: "decode network-config"},
		"a list":               {config: "- a", err: "decode network-config"},
		"ethernets a list":     {config: "version: 2\nethernets: [{dhcp4: true}]", err: "decode network-config"},
		"address without mask": {config: "version: 2\nethernets: {eth0: {addresses: [10.0.0.2]}}", err: "ethernets.eth0: addresses"},
		"gateway a name":       {config: "version: 2\nethernets: {eth0: {gateway4: router}}", err: "ethernets.eth0: gateway"},
		"route to a name":      {config: "version: 2\nethernets: {eth0: {routes: [{to: all, via: 10.0.0.1}]}}", err: "ethernets.eth0: routes: to"},
		"version 1 netmask":    {config: "version: 1\nconfig: [{type: physical, subnets: [{type: static, address: 10.0.0.2}]}]", err: "config[0].subnets[0]"},
		"name server a name":   {config: "version: 1\nconfig: [{type: nameserver, address: [dns]}]", err: "config[0].address"},
	} {
		t.Run(name, func(t *testing.T) {
			err := talos.CheckNetworkConfig([]byte(test.config))
			if test.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.err)
			}
		})
	}
}

func TestOnlyALabelThatTalosKnowsMakesASeed(t *testing.T) {
	for label, want := range map[string]bool{"cidata": true, "CIDATA": true, "config-2": false, "Cidata": false} {
		writer, err := iso9660.NewWriter()
		require.NoError(t, err)
		require.NoError(t, writer.AddFile(strings.NewReader(joinDoc), "user-data"))

		var image bytes.Buffer
		require.NoError(t, writer.WriteTo(&image, label))
		require.NoError(t, writer.Cleanup())

		volume, err := talos.OpenISO(bytes.NewReader(image.Bytes()))

		if !want {
			require.ErrorIs(t, err, fs.ErrNotExist, label)

			continue
		}

		require.NoError(t, err, label)
		require.Equal(t, joinDoc, string(talos.ReadSeed(volume).UserData))
	}
}

func FuzzEndpointNeverQuotesItsToken(f *testing.F) {
	f.Add("grpc://", "10.0.2.2:8090", "/", "abc")
	f.Add("https://", "[::1", "", "v2:eyJ")

	f.Fuzz(func(t *testing.T, scheme, host, path, token string) {
		const secret = "s3cr3tT0k3n"

		if _, err := talos.ParseEndpoint(scheme + host + path + "?jointoken=" + secret + token); err != nil {
			require.NotContains(t, err.Error(), secret)
		}
	})
}

func FuzzSerialGivesOnlyHTTPAddressesWithAFinalSlash(f *testing.F) {
	f.Add("ds=nocloud-net;s=http://10.0.2.2:8080/x;h=a")

	f.Fuzz(func(t *testing.T, serial string) {
		parsed := talos.ParseSerial(serial)
		if parsed.URL != "" {
			require.True(t, strings.HasPrefix(strings.ToLower(parsed.URL), "http"), parsed.URL)
			require.Contains(t, serial, "ds=nocloud-net")
		}
	})
}

func FuzzCmdline(f *testing.F) {
	f.Add("a=b  siderolink.api=x\tquiet a=c", "a")

	f.Fuzz(func(t *testing.T, line, name string) {
		values := talos.Cmdline(line).Get(name)
		require.LessOrEqual(t, len(values), len(strings.Fields(line)))

		if len(values) > 0 {
			require.Equal(t, values[0], talos.Cmdline(line).First(name))
		}
	})
}

func FuzzSeedDocumentsNeverPanic(f *testing.F) {
	f.Add([]byte("local-hostname: a\n"), []byte("version: 2\nethernets: {eth0: {dhcp4: true}}\n"), []byte(joinDoc))
	f.Add([]byte("- a"), []byte("network: {version: 1}"), []byte("\x1f\x8b"))

	f.Fuzz(func(t *testing.T, metaData, network, user []byte) {
		talos.ParseMetaData(metaData)
		_ = talos.CheckNetworkConfig(network)
		m := talos.Machine{UserData: user}
		_, _ = m.FindJoinConfig(t.Context())
	})
}
