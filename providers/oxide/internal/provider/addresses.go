package provider

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// addressed are the interfaces of an instance as they were at a time, in a state of the instance.
type addressed struct {
	at, state  time.Time
	interfaces []driver.Interface
}

// addressesAge is how long addresses are taken for true while the instance is in the same state: they only change when somebody changes
// them, and are two calls for each instance.
const addressesAge = 10 * time.Minute

// Addresses returns the addresses of all running machines that the rack has given them: those in their VPC, and behind those of the first
// interface the external ones.
func (d *Driver) Addresses(ctx context.Context, providerID string) (map[driver.Ref][]driver.Interface, error) {
	all, err := d.whereabouts(ctx, providerID)
	if err != nil {
		return nil, err
	}

	found := map[driver.Ref][]driver.Interface{}
	live := map[string]bool{}

	var failed error

	for _, in := range all {
		instances, err := d.rack.Instances(ctx, in.id)
		if err != nil {
			return found, err
		}

		for _, i := range instances {
			ref, ours := machine.Owner(providerID, machine.KindInstance, string(i.Name), i.Description)
			if !ours || ref.RequestID == "" || i.RunState != oxide.InstanceStateRunning {
				continue
			}

			live[i.Id] = true

			interfaces, err := d.interfacesOf(ctx, i)
			if err != nil {
				failed = err

				continue
			}

			found[ref] = interfaces
		}
	}

	d.mu.Lock()
	defer d.mu.Unlock()

	for id := range d.addresses {
		if !live[id] {
			delete(d.addresses, id)
		}
	}

	return found, failed
}

func (d *Driver) interfacesOf(ctx context.Context, i oxide.Instance) ([]driver.Interface, error) {
	d.mu.Lock()
	known, ok := d.addresses[i.Id]
	d.mu.Unlock()

	now := time.Now()
	if ok && now.Sub(known.at) < addressesAge && known.state.Equal(at(i.TimeRunStateUpdated)) {
		return known.interfaces, nil
	}

	nics, err := d.rack.Interfaces(ctx, i)
	if err != nil {
		return nil, err
	}

	external, err := d.rack.ExternalIPs(ctx, i)
	if err != nil {
		return nil, err
	}

	interfaces := interfacesOf(nics, external)

	d.mu.Lock()
	defer d.mu.Unlock()

	d.addresses[i.Id] = addressed{at: now, state: at(i.TimeRunStateUpdated), interfaces: interfaces}

	return interfaces, nil
}

func interfacesOf(nics []oxide.InstanceNetworkInterface, external []oxide.ExternalIp) []driver.Interface {
	var out []driver.Interface

	// The rack lists them in any order; the primary one is the first that the machine sees.
	slices.SortStableFunc(nics, func(a, b oxide.InstanceNetworkInterface) int {
		switch {
		case primary(a) == primary(b):
			return 0
		case primary(a):
			return -1
		default:
			return 1
		}
	})

	for i, nic := range nics {
		texts := private(nic.IpStack)

		if i == 0 {
			for _, ip := range external {
				texts = append(texts, public(ip))
			}
		}

		one := driver.Interface{MAC: string(nic.Mac)}

		for _, text := range texts {
			if ip, err := netip.ParseAddr(text); err == nil {
				one.IPs = append(one.IPs, ip)
			}
		}

		if len(one.IPs) > 0 {
			// The rack's own DHCP server hands out what the rack has assigned.
			one.Source = "lease"
		} else {
			one.Missing = "no address"
		}

		out = append(out, one)
	}

	return out
}

func primary(nic oxide.InstanceNetworkInterface) bool { return nic.Primary != nil && *nic.Primary }

func private(stack oxide.PrivateIpStack) []string {
	switch v := stack.Value.(type) {
	case *oxide.PrivateIpStackV4:
		return []string{v.Value.Ip}
	case *oxide.PrivateIpStackV6:
		return []string{v.Value.Ip}
	case *oxide.PrivateIpStackDualStack:
		return []string{v.Value.V4.Ip, v.Value.V6.Ip}
	default:
		return nil
	}
}

// public is an external address by which the machine can be reached. One that only serves to get out is none.
func public(ip oxide.ExternalIp) string {
	switch v := ip.Value.(type) {
	case *oxide.ExternalIpEphemeral:
		return v.Ip
	case *oxide.ExternalIpFloating:
		return v.Ip
	default:
		return ""
	}
}
