package provider

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Addresses tells what KubeVirt reports of the interfaces of machines that run.
func (d *Driver) Addresses(ctx context.Context, providerID string) (map[driver.Ref][]driver.Interface, error) {
	var mu sync.Mutex

	found := map[driver.Ref][]driver.Interface{}

	err := d.each(ctx, func(ctx context.Context, namespace string) error {
		instances, err := all(ctx, d.mirrorsOf(providerID, namespace).instances, d.cluster.Instances(), namespace, providerID)

		mu.Lock()
		defer mu.Unlock()

		for _, i := range instances {
			if mark, ok := machine.MarkOf(i); ok && mark.ProviderID == providerID && i.Status.Phase == kubevirtv1.Running {
				found[mark.Ref] = interfacesOf(i)
			}
		}

		return err
	})

	return found, err
}

func interfacesOf(i *kubevirtv1.VirtualMachineInstance) []driver.Interface {
	var out []driver.Interface

	for _, nic := range i.Status.Interfaces {
		// The guest's own interfaces, as those of its containers, have no name in the virtual machine.
		if nic.Name == "" || nic.MAC == "" {
			continue
		}

		one := driver.Interface{MAC: strings.ToLower(nic.MAC)}

		for _, text := range append([]string{nic.IP}, nic.IPs...) {
			if ip, err := netip.ParseAddr(text); err == nil && !slices.Contains(one.IPs, ip) {
				one.IPs = append(one.IPs, ip)
			}
		}

		switch {
		case len(one.IPs) == 0:
			one.Missing = "KubeVirt reports none"
		case strings.Contains(nic.InfoSource, "guest-agent"):
			one.Source = "agent"
		default:
			one.Source = "lease"
		}

		out = append(out, one)
	}

	return out
}
