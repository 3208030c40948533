package hypervisor

import (
	"context"
	"errors"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Load is what a host has to do, as far as it matters for where the next machine is made.
type Load struct {
	// Free is how much memory, in bytes, a machine that starts now would find.
	Free uint64
	// Unclaimed is how much of the host's memory no running domain, whosever it is, may claim. It differs from Free, as a machine
	// takes its memory when it first uses it, and is negative where more is promised than there is.
	Unclaimed int64
	// Members is how many machines of the request set the host has.
	Members int
}

// Offer is Suits and Load at once: what a host that can make the request's machine has for it.
func (h *Host) Offer(ctx context.Context, req driver.Request, data machine.ClassData) (Load, error) {
	var load Load

	err := together(ctx, func(ctx context.Context) error { return h.Suits(ctx, req, data) }, func(ctx context.Context) (err error) {
		load, err = h.Load(ctx, req.ProviderID, req.Set)

		return err
	})

	return load, err
}

// Load returns the host's load, with the machines that the provider has there for the set.
func (h *Host) Load(ctx context.Context, provider, set string) (Load, error) {
	var (
		load    Load
		domains []*domain
	)

	err := together(ctx, func(ctx context.Context) (err error) {
		load, err = h.memory(ctx)

		return err
	}, func(ctx context.Context) (err error) {
		domains, err = h.domains(ctx, provider)

		return err
	})
	if err != nil {
		return Load{}, err
	}

	for _, own := range domains {
		if own.mark.Set == set {
			load.Members++
		}
	}

	return load, nil
}

func (h *Host) memory(ctx context.Context) (Load, error) {
	return connection.Call(ctx, h.conn, "ask for the hypervisor's free memory", func(c connection.Connect) (Load, error) {
		info, err := c.GetNodeInfo()
		if err != nil {
			return Load{}, err
		}

		free, err := freeMemory(c)
		if err != nil {
			return Load{}, err
		}

		claimed, err := claimedMemory(c)
		if err != nil {
			return Load{}, err
		}

		return Load{Free: free, Unclaimed: int64(info.Memory<<10) - int64(claimed)}, nil //nolint:gosec // no host has that much
	})
}

// freeMemory is the memory that nobody uses and what the host keeps only as long as nobody needs it, in bytes.
func freeMemory(c connection.Connect) (uint64, error) {
	stats, err := c.GetMemoryStats(libvirt.NODE_MEMORY_STATS_ALL_CELLS, 0)

	switch {
	case connection.Is(err, libvirt.ERR_NO_SUPPORT):
		return c.GetFreeMemory()
	case err != nil:
		return 0, err
	case !stats.FreeSet:
		return 0, errors.New("libvirt does not tell how much memory is free")
	default:
		return (stats.Free + stats.Buffers + stats.Cached) << 10, nil
	}
}

// claimedMemory is what all running domains may use at most, in bytes.
func claimedMemory(c connection.Connect) (uint64, error) {
	running, err := c.ListAllDomains(libvirt.CONNECT_LIST_DOMAINS_ACTIVE)
	if err != nil {
		return 0, err
	}

	var (
		claimed uint64
		first   error
	)

	for _, dom := range running {
		most, err := dom.GetMaxMemory()
		_ = dom.Free()

		switch {
		case err == nil:
			claimed += most << 10
		case !connection.Is(err, libvirt.ERR_NO_DOMAIN) && first == nil:
			first = err
		}
	}

	return claimed, first
}
