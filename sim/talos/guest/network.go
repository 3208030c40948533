//go:build linux

package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/jsimonetti/rtnetlink/v2"
	"golang.org/x/sys/unix"
)

// network brings the first network card up and keeps its lease. Ready is closed once there is an address.
type network struct {
	hostname string
	log      *slog.Logger
	ready    chan struct{}
}

// run ends with ctx.
func (n *network) run(ctx context.Context) {
	for first := true; ; {
		valid, err := n.lease(ctx)

		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			n.log.Warn("no network", "error", err)

			valid = 2 * time.Second
		case first:
			first = false

			close(n.ready)
		}

		select {
		case <-time.After(valid / 2):
		case <-ctx.Done():
			return
		}
	}
}

// lease asks for an address, sets it, and returns for how long it is valid.
func (n *network) lease(ctx context.Context) (time.Duration, error) {
	links, err := net.Interfaces()
	if err != nil {
		return 0, fmt.Errorf("list network cards: %w", err)
	}

	conn, err := rtnetlink.Dial(nil)
	if err != nil {
		return 0, fmt.Errorf("open netlink: %w", err)
	}
	defer conn.Close() //nolint:errcheck // Nothing is lost.

	var card *net.Interface

	for i, link := range links {
		switch {
		case link.Flags&net.FlagLoopback != 0:
			if err = up(conn, link.Index); err != nil {
				return 0, fmt.Errorf("bring up %s: %w", link.Name, err)
			}
		case card == nil && len(link.HardwareAddr) == 6:
			card = &links[i]
		}
	}

	if card == nil {
		return 0, errors.New("there is no network card")
	}

	if err = up(conn, card.Index); err != nil {
		return 0, fmt.Errorf("bring up %s: %w", card.Name, err)
	}

	got, err := (&dhcpClient{link: card, hostname: n.hostname}).acquire(ctx)
	if err != nil {
		return 0, err
	}

	if err = configure(conn, card.Index, got); err != nil {
		return 0, fmt.Errorf("set address %s of %s: %w", got.address, card.Name, err)
	}

	n.log.Info("network is up", "card", card.Name, "mac", card.HardwareAddr.String(), "address", got.address.String(), "router", got.router.String())

	return got.valid, nil
}

func up(conn *rtnetlink.Conn, index int) error {
	return conn.Link.Set(&rtnetlink.LinkMessage{Index: uint32(index), Flags: unix.IFF_UP, Change: unix.IFF_UP})
}

func configure(conn *rtnetlink.Conn, index int, got lease) error {
	address := got.address.Addr()

	err := conn.Address.New(&rtnetlink.AddressMessage{
		Family:       unix.AF_INET,
		PrefixLength: uint8(got.address.Bits()),
		Scope:        unix.RT_SCOPE_UNIVERSE,
		Index:        uint32(index),
		Attributes:   &rtnetlink.AddressAttributes{Address: address.AsSlice(), Local: address.AsSlice(), Broadcast: broadcast(got.address)},
	})
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}

	if got.router.IsValid() && !got.router.IsUnspecified() {
		if err = conn.Route.Replace(&rtnetlink.RouteMessage{
			Family:     unix.AF_INET,
			Table:      unix.RT_TABLE_MAIN,
			Protocol:   unix.RTPROT_DHCP,
			Scope:      unix.RT_SCOPE_UNIVERSE,
			Type:       unix.RTN_UNICAST,
			Attributes: rtnetlink.RouteAttributes{Gateway: got.router.AsSlice(), OutIface: uint32(index), Table: unix.RT_TABLE_MAIN},
		}); err != nil {
			return fmt.Errorf("route by %s: %w", got.router, err)
		}
	}

	var resolv strings.Builder
	for _, server := range got.dns {
		fmt.Fprintf(&resolv, "nameserver %s\n", server)
	}

	return os.WriteFile("/etc/resolv.conf", []byte(resolv.String()), 0o644)
}

func broadcast(prefix netip.Prefix) net.IP {
	ip := net.IP(prefix.Masked().Addr().AsSlice())
	mask := net.CIDRMask(prefix.Bits(), 32)

	for i := range ip {
		ip[i] |= ^mask[i]
	}

	return ip
}

// wait returns once the network is up, or ctx's error.
func (n *network) wait(ctx context.Context) error {
	select {
	case <-n.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
