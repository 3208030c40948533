//go:build linux

package guest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kdomanski/iso9660"
	"github.com/stretchr/testify/require"
)

// answerTo returns the IPv4 packet of a DHCP server's answer to request.
func answerTo(request []byte, kind byte, options ...byte) []byte {
	packet := append([]byte(nil), request[:udpHeader+bootpSize]...)
	binary.BigEndian.PutUint16(packet[20:], 67)
	binary.BigEndian.PutUint16(packet[22:], 68)

	bootp := packet[udpHeader:]
	bootp[0] = 2
	copy(bootp[16:20], []byte{192, 168, 122, 57})

	return append(append(append(packet, optionType, 1, kind), options...), optionEnd)
}

func TestLeaseIsReadFromTheServersAnswer(t *testing.T) {
	mac := net.HardwareAddr{0x52, 0x54, 0, 1, 2, 3}
	request := encodeRequest(0xcafe, dhcpDiscover, mac, "talos-1", lease{})

	require.Zero(t, checksum(request[:20]), "the header's checksum holds")
	require.Equal(t, len(request), int(binary.BigEndian.Uint16(request[2:])))
	require.Contains(t, string(request), "talos-1")

	reply, err := decodeReply(answerTo(request, dhcpOffer,
		0, optionMask, 4, 255, 255, 254, 0, optionRouter, 8, 192, 168, 122, 1, 192, 168, 122, 2,
		optionDNS, 4, 192, 168, 122, 1, optionServer, 4, 192, 168, 122, 3, optionLease, 4, 0, 0, 0x0e, 0x10))
	require.NoError(t, err)
	require.Equal(t, uint32(0xcafe), reply.xid)
	require.Equal(t, byte(dhcpOffer), reply.kind)

	got, err := reply.lease()
	require.NoError(t, err)
	require.Equal(t, lease{
		address: netip.MustParsePrefix("192.168.122.57/23"),
		router:  netip.MustParseAddr("192.168.122.1"),
		dns:     []netip.Addr{netip.MustParseAddr("192.168.122.1")},
		valid:   time.Hour,
		server:  netip.MustParseAddr("192.168.122.3"),
	}, got)

	again := encodeRequest(0xcafe, dhcpRequest, mac, "", got)
	require.Contains(t, string(again), string([]byte{optionRequested, 4, 192, 168, 122, 57, optionServer, 4, 192, 168, 122, 3}))
}

func TestServerThatSaysLittleIsUnderstood(t *testing.T) {
	reply, err := decodeReply(answerTo(encodeRequest(1, dhcpDiscover, nil, "", lease{}), dhcpAck))
	require.NoError(t, err)

	got, err := reply.lease()
	require.NoError(t, err)
	require.Equal(t, lease{address: netip.MustParsePrefix("192.168.122.57/24"), valid: time.Hour}, got)
}

func TestBroadcastAddressFollowsTheMask(t *testing.T) {
	require.Equal(t, "192.168.123.255", broadcast(netip.MustParsePrefix("192.168.122.57/23")).String())
	require.Equal(t, "10.0.2.15", broadcast(netip.MustParsePrefix("10.0.2.15/32")).String())
}

func FuzzDHCPReply(f *testing.F) {
	f.Add(answerTo(encodeRequest(1, dhcpDiscover, nil, "", lease{}), dhcpOffer, optionMask, 4, 255, 0, 255, 0, optionLease, 4, 0, 0, 0, 0))

	f.Fuzz(func(t *testing.T, packet []byte) {
		reply, err := decodeReply(packet)
		if err != nil {
			return
		}

		if got, err := reply.lease(); err == nil {
			require.True(t, got.address.IsValid())
			require.GreaterOrEqual(t, got.valid, time.Minute)
		}
	})
}

func TestVolumeLabelsAreReadFromISOAndFAT(t *testing.T) {
	writer, err := iso9660.NewWriter()
	require.NoError(t, err)

	var image bytes.Buffer
	require.NoError(t, writer.WriteTo(&image, "cidata"))
	require.NoError(t, writer.Cleanup())

	fat := make([]byte, 512)
	copy(fat[43:], "CIDATA     FAT16   ")

	fat32 := make([]byte, 512)
	copy(fat32[71:], "cidata     FAT32   ")

	for name, test := range map[string]struct {
		head        []byte
		label, kind string
	}{
		"ISO 9660": {image.Bytes(), "cidata", "iso9660"},
		"FAT16":    {fat, "CIDATA", "vfat"},
		"FAT32":    {fat32, "cidata", "vfat"},
		"zeros":    {make([]byte, 34<<10), "", ""},
		"empty":    {nil, "", ""},
	} {
		label, kind := volumeLabel(test.head)
		require.Equal(t, test.label, label, name)
		require.Equal(t, test.kind, kind, name)
	}
}

func TestOnlyThePressOfAPowerKeyIsAPowerPress(t *testing.T) {
	event := func(kind, code uint16, value uint32) []byte {
		e := make([]byte, eventSize)
		binary.LittleEndian.PutUint16(e[16:], kind)
		binary.LittleEndian.PutUint16(e[18:], code)
		binary.LittleEndian.PutUint32(e[20:], value)

		return e
	}

	require.True(t, isPowerPress(event(eventKey, keyPower, 1)))
	require.False(t, isPowerPress(event(eventKey, keyPower, 0)), "release")
	require.False(t, isPowerPress(event(eventKey, 30, 1)), "another key")
	require.False(t, isPowerPress(event(0, 0, 0)), "synchronization")
}

// ask serves one side of a port and returns what the agent answers to a request.
func ask(t *testing.T, a *agent, request string) string {
	t.Helper()

	host, port := net.Pipe()
	served := make(chan error, 1)

	go func() {
		served <- a.serve(port)

		port.Close() //nolint:errcheck // A pipe.
	}()

	require.NoError(t, host.SetDeadline(time.Now().Add(10*time.Second)))

	go func() {
		io.WriteString(host, request+"\n") //nolint:errcheck // The answer tells.

		if strings.Contains(request, "guest-shutdown") {
			host.Close() //nolint:errcheck // It has no answer to wait for.
		}
	}()

	line, _ := bufio.NewReader(host).ReadString('\n')

	host.Close() //nolint:errcheck // A pipe.
	require.NotErrorIs(t, <-served, bufio.ErrTooLong)

	return line
}

func TestGuestAgentAnswersAsQEMUsDoes(t *testing.T) {
	a := &agent{version: "v1.13.5", log: slog.New(slog.DiscardHandler)}

	for request, want := range map[string]string{
		`{"execute":"guest-sync","arguments":{"id":12345678901234567890}}`: `{"return":12345678901234567890}`,
		"garbage\xff" + `{"execute":"guest-ping"}`:                         `{"return":{}}`,
		`{"execute":"guest-ping","id":"x"}`:                                `{"return":{},"id":"x"}`,
		`{"execute":"guest-exec"}`:                                         `{"error":{"class":"CommandNotFound","desc":"The command guest-exec has not been found"}}`,
		`{"execute":"guest-sync","arguments":[]}`:                          `{"error":{"class":"GenericError","desc":"invalid arguments of guest-sync"}}`,
		`nonsense`:                       `{"error":{"class":"GenericError","desc":"JSON parse error"}}`,
		`{"execute":"guest-get-osinfo"}`: `{"return":{"id":"talos","name":"Talos","pretty-name":"simulated Talos (v1.13.5)","version-id":"v1.13.5"}}`,
	} {
		require.JSONEq(t, want, ask(t, a, request), request)
	}

	require.Equal(t, "\xff{\"return\":7}\n", ask(t, a, `{"execute":"guest-sync-delimited","arguments":{"id":7}}`))

	var list struct {
		Return []struct {
			Name string `json:"name"`
		} `json:"return"`
	}

	require.NoError(t, json.Unmarshal([]byte(ask(t, a, `{"execute":"guest-network-get-interfaces"}`)), &list))
	require.NotEmpty(t, list.Return)
}

func TestGuestAgentPassesOrdersOn(t *testing.T) {
	var got []string

	a := &agent{
		log:      slog.New(slog.DiscardHandler),
		powerOff: func() { got = append(got, "off") },
		reboot:   func() { got = append(got, "reboot") },
	}

	ask(t, a, `{"execute":"guest-shutdown"}`)
	ask(t, a, `{"execute":"guest-shutdown","arguments":{"mode":"reboot"}}`)
	ask(t, a, `{"execute":"guest-shutdown","arguments":{"mode":"halt"}}`)
	require.Equal(t, []string{"off", "reboot", "off"}, got)
}

func FuzzGuestAgent(f *testing.F) {
	f.Add(`{"execute":"guest-sync-delimited","arguments":{"id":7}}` + "\n")
	f.Add("\xff\n{}\n[]\n")

	f.Fuzz(func(t *testing.T, input string) {
		var output bytes.Buffer

		a := &agent{log: slog.New(slog.DiscardHandler), powerOff: func() {}, reboot: func() {}}
		_ = a.serve(struct {
			io.Reader
			io.Writer
		}{strings.NewReader(input), &output})

		for line := range strings.Lines(output.String()) {
			require.True(t, json.Valid([]byte(strings.ReplaceAll(line, string([]byte{0xff}), ""))), "%q", line)
		}
	})
}
