package driver

import (
	"context"
	"net/netip"
)

// Addresser is implemented by drivers that can tell which network addresses machines have. The library asks after a full look
// and shows the answer to operators; nothing depends on it.
type Addresser interface {
	// Addresses returns the network interfaces of the provider's machines that run, in the order in which each machine has them.
	// A machine of which nothing can be told is left out. With an error it returns what it could see nevertheless.
	Addresses(ctx context.Context, providerID string) (map[Ref][]Interface, error)
}

// Interface is a network interface of a machine.
type Interface struct {
	// MAC is the hardware address.
	MAC string
	// IPs are the addresses that it has; none when nobody knows of one.
	IPs []netip.Addr
	// Source says who knows: "lease" for a DHCP server of the cloud, "agent" for an agent in the guest. It is empty without an
	// address.
	Source string
	// Missing says in a few words why there is no address ("no lease"); it is empty with one.
	Missing string
}
