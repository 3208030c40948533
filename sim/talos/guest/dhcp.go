//go:build linux

package guest

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The DHCP messages and options that a client needs (RFC 2131, RFC 2132).
const (
	dhcpDiscover = 1
	dhcpOffer    = 2
	dhcpRequest  = 3
	dhcpAck      = 5
	dhcpNak      = 6

	optionMask      = 1
	optionRouter    = 3
	optionDNS       = 6
	optionHostname  = 12
	optionRequested = 50
	optionLease     = 51
	optionType      = 53
	optionServer    = 54
	optionWanted    = 55
	optionEnd       = 255

	bootpSize = 240
	udpHeader = 28 // IPv4 and UDP
)

// lease is what a DHCP server gave.
type lease struct {
	address netip.Prefix
	router  netip.Addr
	dns     []netip.Addr
	// valid is how long the lease holds from when it was given.
	valid  time.Duration
	server netip.Addr
}

// message is a DHCP message as far as a client reads it.
type message struct {
	xid     uint32
	kind    byte
	yours   netip.Addr
	options map[byte][]byte
}

// dhcpClient asks for an address over a raw socket, for the interface has none yet.
type dhcpClient struct {
	link     *net.Interface
	hostname string
}

// acquire asks until a server gives a lease or ctx ends.
func (c *dhcpClient) acquire(ctx context.Context) (lease, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(bigEndian(unix.ETH_P_IP)))
	if err != nil {
		return lease{}, fmt.Errorf("open packet socket: %w", err)
	}

	socket := os.NewFile(uintptr(fd), "dhcp")
	defer socket.Close() //nolint:errcheck // Nothing is lost.

	if err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_IP), Ifindex: c.link.Index}); err != nil {
		return lease{}, fmt.Errorf("bind packet socket to %s: %w", c.link.Name, err)
	}

	var random [4]byte

	rand.Read(random[:]) //nolint:errcheck // Never fails.

	// All tries are one transaction: a server that first looks whether an address is free answers seconds later.
	xid := binary.BigEndian.Uint32(random[:])

	for wait := time.Second; ; wait = min(2*wait, 16*time.Second) {
		got, err := c.exchange(fd, socket, xid, wait)
		if err == nil {
			return got, nil
		}

		if ctx.Err() != nil {
			return lease{}, fmt.Errorf("get address for %s: %w", c.link.Name, errors.Join(ctx.Err(), err))
		}
	}
}

// exchange goes once through discover, offer, request and acknowledgement.
func (c *dhcpClient) exchange(fd int, socket *os.File, xid uint32, wait time.Duration) (lease, error) {
	if err := c.send(fd, encodeRequest(xid, dhcpDiscover, c.link.HardwareAddr, c.hostname, lease{})); err != nil {
		return lease{}, err
	}

	offered, err := receive(socket, xid, dhcpOffer, wait)
	if err != nil {
		return lease{}, err
	}

	if err = c.send(fd, encodeRequest(xid, dhcpRequest, c.link.HardwareAddr, c.hostname, offered)); err != nil {
		return lease{}, err
	}

	return receive(socket, xid, dhcpAck, wait)
}

func (c *dhcpClient) send(fd int, packet []byte) error {
	to := unix.SockaddrLinklayer{
		Protocol: bigEndian(unix.ETH_P_IP),
		Ifindex:  c.link.Index,
		Halen:    6,
		Addr:     [8]byte{255, 255, 255, 255, 255, 255},
	}

	return unix.Sendto(fd, packet, 0, &to)
}

func receive(socket *os.File, xid uint32, kind byte, wait time.Duration) (lease, error) {
	if err := socket.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return lease{}, err
	}

	buffer := make([]byte, 2048)

	for {
		n, err := socket.Read(buffer)
		if err != nil {
			return lease{}, err
		}

		reply, err := decodeReply(buffer[:n])
		if err != nil || reply.xid != xid {
			continue // Another packet on the same wire.
		}

		switch reply.kind {
		case kind:
			return reply.lease()
		case dhcpNak:
			return lease{}, errors.New("the DHCP server refused")
		}
	}
}

// encodeRequest returns an IPv4 packet with a broadcast DHCP message; wanted is the offer that a request takes up.
func encodeRequest(xid uint32, kind byte, hardware net.HardwareAddr, hostname string, wanted lease) []byte {
	bootp := make([]byte, bootpSize, bootpSize+64)
	bootp[0], bootp[1], bootp[2] = 1, 1, 6 // A request over Ethernet.
	binary.BigEndian.PutUint32(bootp[4:], xid)
	bootp[10] = 0x80 // Answer by broadcast.
	copy(bootp[28:34], hardware)
	copy(bootp[236:], []byte{99, 130, 83, 99})

	bootp = append(bootp, optionType, 1, kind, optionWanted, 4, optionMask, optionRouter, optionDNS, optionLease)

	if len(hostname) > 0 && len(hostname) < 64 {
		bootp = append(append(bootp, optionHostname, byte(len(hostname))), hostname...)
	}

	if kind == dhcpRequest {
		bootp = append(append(bootp, optionRequested, 4), wanted.address.Addr().AsSlice()...)

		if wanted.server.IsValid() {
			bootp = append(append(bootp, optionServer, 4), wanted.server.AsSlice()...)
		}
	}

	bootp = append(bootp, optionEnd)

	packet := make([]byte, udpHeader, udpHeader+len(bootp))
	packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(packet[2:], uint16(udpHeader+len(bootp)))
	copy(packet[16:20], []byte{255, 255, 255, 255})
	binary.BigEndian.PutUint16(packet[10:], checksum(packet[:20]))
	binary.BigEndian.PutUint16(packet[20:], 68)
	binary.BigEndian.PutUint16(packet[22:], 67)
	binary.BigEndian.PutUint16(packet[24:], uint16(8+len(bootp)))

	return append(packet, bootp...)
}

var errNotDHCP = errors.New("not a DHCP reply")

// decodeReply reads an IPv4 packet.
func decodeReply(packet []byte) (message, error) {
	if len(packet) < 20 || packet[0]>>4 != 4 || packet[9] != unix.IPPROTO_UDP {
		return message{}, errNotDHCP
	}

	header := int(packet[0]&0x0f) * 4
	if header < 20 || len(packet) < header+8+bootpSize || binary.BigEndian.Uint16(packet[header+2:]) != 68 {
		return message{}, errNotDHCP
	}

	bootp := packet[header+8:]
	if bootp[0] != 2 || string(bootp[236:240]) != "\x63\x82\x53\x63" {
		return message{}, errNotDHCP
	}

	reply := message{
		xid:     binary.BigEndian.Uint32(bootp[4:]),
		yours:   netip.AddrFrom4([4]byte(bootp[16:20])),
		options: map[byte][]byte{},
	}

	for rest := bootp[bootpSize:]; len(rest) > 0 && rest[0] != optionEnd; {
		if rest[0] == 0 { // Padding.
			rest = rest[1:]

			continue
		}

		if len(rest) < 2 || len(rest) < 2+int(rest[1]) {
			return message{}, errNotDHCP
		}

		reply.options[rest[0]] = rest[2 : 2+int(rest[1])]
		rest = rest[2+int(rest[1]):]
	}

	if kind := reply.options[optionType]; len(kind) == 1 {
		reply.kind = kind[0]
	}

	return reply, nil
}

// lease reads the options; a mask that is none and a missing lease time get the values of a server that says nothing.
func (m *message) lease() (lease, error) {
	if !m.yours.IsValid() || m.yours.IsUnspecified() {
		return lease{}, errors.New("the DHCP server gave no address")
	}

	bits := 24

	if mask := m.options[optionMask]; len(mask) == 4 {
		if ones, size := net.IPMask(mask).Size(); size == 32 {
			bits = ones
		}
	}

	got := lease{address: netip.PrefixFrom(m.yours, bits), valid: time.Hour}

	if servers := addresses(m.options[optionServer]); len(servers) > 0 {
		got.server = servers[0]
	}

	if routers := addresses(m.options[optionRouter]); len(routers) > 0 {
		got.router = routers[0]
	}

	got.dns = addresses(m.options[optionDNS])

	if seconds := m.options[optionLease]; len(seconds) == 4 {
		got.valid = max(time.Duration(binary.BigEndian.Uint32(seconds))*time.Second, time.Minute)
	}

	return got, nil
}

func addresses(option []byte) []netip.Addr {
	var list []netip.Addr

	for ; len(option) >= 4; option = option[4:] {
		list = append(list, netip.AddrFrom4([4]byte(option[:4])))
	}

	return list
}

func checksum(header []byte) uint16 {
	var sum uint32

	for i := 0; i+1 < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}

	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}

	return ^uint16(sum)
}

// bigEndian returns v with its bytes in network order, as the kernel wants protocol numbers.
func bigEndian(v uint16) uint16 {
	return binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)})
}
