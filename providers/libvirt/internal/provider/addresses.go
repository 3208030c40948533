package provider

import (
	"context"
	"maps"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Addresses returns the network interfaces of the provider's machines that run, from the hosts that answer.
func (d *Driver) Addresses(ctx context.Context, providerID string) (map[driver.Ref][]driver.Interface, error) {
	answers := ask(ctx, d.hosts, func(ctx context.Context, h *host) (map[driver.Ref][]driver.Interface, error) {
		return h.Addresses(ctx, providerID)
	})
	all := map[driver.Ref][]driver.Interface{}

	for _, a := range answers {
		maps.Copy(all, a.value)
	}

	return all, d.plain(unseenOf(answers))
}
