//go:build real

package provider

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// newNetwork makes a libvirt network that goes with the test.
func newNetwork(t *testing.T, name, gateway, mask, dhcp string) {
	t.Helper()

	file := filepath.Join(t.TempDir(), "network.xml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil,
		"<network><name>%s</name><bridge name='%s'/><ip address='%s' netmask='%s'><dhcp>%s</dhcp></ip></network>", name, name, gateway, mask, dhcp), 0o600))
	virsh(t, "net-define", file)
	virsh(t, "net-start", name)
	t.Cleanup(func() {
		virsh(t, "net-destroy", name)
		virsh(t, "net-undefine", name)
	})
}

// plug is a port of a network, at which anything may speak DHCP. It is in a network namespace of its own: a host does not take answers
// from itself.
type plug struct {
	t    *testing.T
	conn net.PacketConn
}

func newPlug(t *testing.T, bridge string) *plug {
	t.Helper()

	const space, inner = "plug", "plug-in"

	run(t, "ip", "netns", "add", space)
	t.Cleanup(func() { run(t, "ip", "netns", "delete", space) })
	run(t, "ip", "link", "add", "plug-out", "master", bridge, "up", "type", "veth", "peer", "name", inner, "netns", space)
	run(t, "ip", "-n", space, "link", "set", inner, "up")

	// A socket stays in the namespace in which it was made.
	opened := make(chan error, 1)
	p := &plug{t: t}

	go func() {
		runtime.LockOSThread() // It ends with the goroutine.

		opened <- func() error {
			file, err := os.Open("/run/netns/" + space)
			if err != nil {
				return err
			}
			defer file.Close() //nolint:errcheck // It is only read.

			const setns = 308 // On amd64, where these tests run.
			if _, _, errno := syscall.RawSyscall(setns, file.Fd(), syscall.CLONE_NEWNET, 0); errno != 0 {
				return errno
			}

			config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
				return errors.Join(raw.Control(func(fd uintptr) {
					_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_BROADCAST, 1)
					_ = syscall.BindToDevice(int(fd), inner)
				}))
			}}

			p.conn, err = config.ListenPacket(t.Context(), "udp4", ":68")

			return err
		}()
	}()

	require.NoError(t, <-opened)
	t.Cleanup(func() { require.NoError(t, p.conn.Close()) })

	return p
}

// DHCP's messages that the tests use.
const (
	dhcpDiscover = 1
	dhcpOffer    = 2
	dhcpRequest  = 3
	dhcpACK      = 5
	dhcpRelease  = 7
)

// lease asks DHCP for an address as a machine with that hardware address does; it returns none if nobody offers one.
func (p *plug) lease(mac net.HardwareAddr) (address, server netip.Addr) {
	p.t.Helper()

	address, server, ok := p.say(mac, dhcpDiscover, dhcpOffer, netip.Addr{}, netip.Addr{})
	if !ok {
		return netip.Addr{}, server
	}

	got, _, ok := p.say(mac, dhcpRequest, dhcpACK, address, server)
	require.True(p.t, ok, "%s is offered and then refused", address)

	return got, server
}

// say sends a message until it is answered, for some seconds.
func (p *plug) say(mac net.HardwareAddr, kind, want byte, address, server netip.Addr) (got, from netip.Addr, ok bool) {
	p.t.Helper()

	for range 3 {
		p.send(mac, kind, address, server)
		require.NoError(p.t, p.conn.SetReadDeadline(time.Now().Add(3*time.Second)))

		for {
			packet := make([]byte, 1500)

			n, _, err := p.conn.ReadFrom(packet)
			if err != nil {
				break
			}

			options := dhcpOptions(packet[:n])
			if n < 240 || string(packet[28:34]) != string(mac) || len(options[53]) != 1 || options[53][0] != want {
				continue
			}

			got, _ = netip.AddrFromSlice(packet[16:20])
			from, _ = netip.AddrFromSlice(options[54])

			return got, from, true
		}
	}

	return got, from, false
}

func (p *plug) send(mac net.HardwareAddr, kind byte, address, server netip.Addr) {
	p.t.Helper()

	packet := make([]byte, 240, 300)
	packet[0], packet[1], packet[2] = 1, 1, 6 // a request of a machine on Ethernet
	copy(packet[4:], mac[2:])                 // the number of the exchange
	copy(packet[28:], mac)
	binary.BigEndian.PutUint16(packet[10:], 0x8000) // answer to all
	copy(packet[236:], []byte{99, 130, 83, 99})

	packet = append(packet, 53, 1, kind)

	if kind == dhcpRelease {
		copy(packet[12:], address.AsSlice())
	} else if address.IsValid() {
		packet = append(append(packet, 50, 4), address.AsSlice()...)
	}

	if server.IsValid() {
		packet = append(append(packet, 54, 4), server.AsSlice()...)
	}

	packet = append(packet, 255)
	packet = append(packet, make([]byte, 300-len(packet))...)

	_, err := p.conn.WriteTo(packet, &net.UDPAddr{IP: net.IPv4bcast, Port: 67})
	require.NoError(p.t, err)
}

func dhcpOptions(packet []byte) map[byte][]byte {
	options := map[byte][]byte{}

	for rest := packet[min(240, len(packet)):]; len(rest) > 1 && rest[0] != 255; {
		if rest[0] == 0 {
			rest = rest[1:]

			continue
		}

		size := int(rest[1])
		if len(rest) < 2+size {
			break
		}

		options[rest[0]] = rest[2 : 2+size]
		rest = rest[2+size:]
	}

	return options
}

// TestSmallNetworkServesMachineAfterMachine makes and removes forty machines on a network with room for thirteen, each of which takes a
// lease. As long as they give it back, as a guest does that shuts down, each gets an address; those that are cut off keep theirs until
// the lease has run out, and when none is left that is said before the machine starts.
func TestSmallNetworkServesMachineAfterMachine(t *testing.T) {
	const (
		cycles   = 40
		polite   = 30
		theirs   = "<host mac='52:54:00:00:00:99' name='theirs' ip='192.168.78.14'/>"
		network  = "small"
		capacity = 12 // 13 less the one of somebody else
	)

	newNetwork(t, network, "192.168.78.1", "255.255.255.240", "<range start='192.168.78.2' end='192.168.78.14'/>"+theirs)

	pool, _ := newPool(t)
	d := newDriver(t, hypervisor.Config{KeepImages: true})
	plug := newPlug(t, network)
	data := strings.Replace(classData(pool), "{type: user}", "{network_name: "+network+", dhcp_reservation: true}", 1)
	full := 0

	for i := range cycles {
		req := newRequest(t, fmt.Sprintf("cycle-%d", i), data)
		err := provision(t.Context(), d, req, new(testImage))

		if i >= polite+capacity-1 || err != nil {
			require.Equal(t, driver.KindCapacity, driver.KindOf(err), "machine %d: %v", i, err)
			require.ErrorContains(t, err, fmt.Sprintf("network %q has no address left", network))
			require.Equal(t, "shut off", virsh(t, "domstate", machine.NamesOf(req.Ref).Domain))

			full++
		} else {
			address, server := plug.lease(req.Identity.MAC(0))
			require.True(t, address.IsValid(), "machine %d gets no address", i)
			require.NotEqual(t, "192.168.78.14", address.String())

			for _, which := range []string{"--inactive", ""} {
				desc := virsh(t, append([]string{"net-dumpxml", network}, strings.Fields(which)...)...)
				require.Contains(t, desc, fmt.Sprintf("<host mac='%s' name='%s' ip='%s'>", req.Identity.MAC(0), req.Identity.Hostname, address))
			}

			if i < polite {
				plug.send(req.Identity.MAC(0), dhcpRelease, address, server)
			}
		}

		remove(t, d, req.Ref)

		for _, which := range []string{"--inactive", ""} {
			desc := virsh(t, append([]string{"net-dumpxml", network}, strings.Fields(which)...)...)
			require.Equal(t, 1, strings.Count(desc, "<host "), desc)
			require.Contains(t, desc, "name='theirs'")
		}
	}

	t.Logf("%d machines had an address, %d were told that there is none", cycles-full, full)
}

// TestReservationsOfAMachineAreFoundWhereverTheyAre takes away one half of what the network says of a machine, or the domain, and sees
// the rest go.
func TestReservationsOfAMachineAreFoundWhereverTheyAre(t *testing.T) {
	newNetwork(t, "halves", "192.168.79.1", "255.255.255.0",
		"<range start='192.168.79.2' end='192.168.79.99'/><host mac='52:54:00:00:00:99' name='theirs' ip='192.168.79.7'/>")

	pool, dir := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	req := newRequest(t, "half", strings.Replace(classData(pool), "{type: user}", "{network_name: halves, dhcp_reservation: true}", 1))
	domain := machine.NamesOf(req.Ref).Domain
	entry := fmt.Sprintf("<host mac='%s'/>", req.Identity.MAC(0))

	hosts := func() (now, next int) {
		t.Helper()

		return strings.Count(virsh(t, "net-dumpxml", "halves"), "<host "), strings.Count(virsh(t, "net-dumpxml", "--inactive", "halves"), "<host ")
	}

	for _, take := range [][]string{
		{"net-update", "halves", "delete", "ip-dhcp-host", entry, "--live"},
		{"net-update", "halves", "delete", "ip-dhcp-host", entry, "--config"},
		{"undefine", domain, "--keep-nvram"},
	} {
		require.NoError(t, provision(t.Context(), d, req, new(testImage)))
		require.NoError(t, provision(t.Context(), d, req, new(testImage)), "a second run finds the first one's")

		now, next := hosts()
		require.Equal(t, []int{2, 2}, []int{now, next})

		virsh(t, "destroy", domain)
		virsh(t, take...)

		if take[0] == "net-update" {
			// What is missing is put back before the machine starts, with the address that it has.
			require.NoError(t, provision(t.Context(), d, req, new(testImage)))

			now, next = hosts()
			require.Equal(t, []int{2, 2}, []int{now, next})

			virsh(t, take...)
		}

		remove(t, d, req.Ref)

		now, next = hosts()
		require.Equal(t, []int{1, 1}, []int{now, next})
		require.Contains(t, virsh(t, "net-dumpxml", "halves"), "name='theirs'")
		require.Empty(t, files(t, dir))
	}
}
