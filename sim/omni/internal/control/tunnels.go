package control

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/resource/typed"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"

	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// tunnelNamespace holds what is known of tunnels. It is a state of its own under the controllers, which nobody else sees.
const tunnelNamespace = "tunnels"

// tunnel is a resource with the state of the tunnel to a SideroLink address, so that controllers follow it as they follow
// everything else.
type tunnel = typed.Resource[tunnelSpec, tunnelExtension]

type tunnelSpec struct {
	// Report is the last report, nil before the first. It is never changed in place.
	Report *talosapi.Report
	Up     bool
	// Ended is when the tunnel went down.
	Ended time.Time
}

// DeepCopy implements typed.DeepCopyable.
func (s tunnelSpec) DeepCopy() tunnelSpec { return s }

type tunnelExtension struct{}

// ResourceDefinition implements typed.Extension.
func (tunnelExtension) ResourceDefinition() meta.ResourceDefinitionSpec {
	return meta.ResourceDefinitionSpec{Type: "Tunnels.sim.sidero.dev", DefaultNamespace: tunnelNamespace}
}

func newTunnel(address string) *tunnel {
	definition := tunnelExtension{}.ResourceDefinition()

	return typed.NewResource[tunnelSpec, tunnelExtension](
		resource.NewMetadata(tunnelNamespace, definition.Type, address, resource.VersionUndefined), tunnelSpec{})
}

// withTunnels returns st with a namespace for tunnels beside it.
func withTunnels(st state.State) state.State {
	tunnels := NewState()

	return state.WrapCore(namespaced.NewState(func(ns resource.Namespace) state.CoreState {
		if ns == tunnelNamespace {
			return tunnels
		}

		return st
	}))
}

// addressOf returns the SideroLink address in a node subnet, empty if there is none.
func addressOf(nodeSubnet string) string {
	prefix, err := netip.ParsePrefix(nodeSubnet)
	if err != nil {
		return ""
	}

	return prefix.Addr().String()
}

// followTunnels copies each change of a tunnel into its resource until ctx ends.
func followTunnels(ctx context.Context, st state.State, machines Machines) error {
	if machines == nil {
		return nil
	}

	var (
		mu      sync.Mutex
		changed = map[string]struct{}{}
		wake    = make(chan struct{}, 1)
	)

	note := func(address string) {
		mu.Lock()
		changed[address] = struct{}{}
		mu.Unlock()

		select {
		case wake <- struct{}{}:
		default:
		}
	}

	defer machines.Subscribe(note)()

	// Tunnels may have been up before the controllers were.
	links, err := safe.StateListAll[*siderolink.Link](ctx, st)
	if err != nil {
		return ignoreEnd(ctx, err)
	}

	for link := range links.All() {
		note(addressOf(link.TypedSpec().Value.NodeSubnet))
	}

	pending, err := safe.StateListAll[*siderolink.PendingMachine](ctx, st)
	if err != nil {
		return ignoreEnd(ctx, err)
	}

	for machine := range pending.All() {
		note(addressOf(machine.TypedSpec().Value.NodeSubnet))
	}

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}

		mu.Lock()
		addresses := changed
		changed = map[string]struct{}{}
		mu.Unlock()

		for address := range addresses {
			if err := noteTunnel(ctx, st, machines, address); err != nil {
				return ignoreEnd(ctx, err)
			}
		}
	}
}

func noteTunnel(ctx context.Context, st state.State, machines Machines, address string) error {
	report, up := machines.Report(address)

	return safe.StateModify(ctx, st, newTunnel(address), func(t *tunnel) error {
		spec := t.TypedSpec()
		if spec.Up && !up {
			spec.Ended = time.Now()
		}

		spec.Up, spec.Report = up, report

		return nil
	})
}

// ignoreEnd drops the errors of calls that failed because ctx has ended.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}

	return nil
}

// pollLinks keeps connected of each link as the state of its tunnel has it, as the server's poll of its WireGuard peers
// does: a link is cut once its tunnel has been down for PeerDown, or if it never had one.
func pollLinks(ctx context.Context, st state.State, timing Timing) error {
	if !sleep(ctx, timing.PeerGrace) {
		return nil
	}

	for {
		links, err := safe.StateListAll[*siderolink.Link](ctx, st)
		if err != nil {
			return ignoreEnd(ctx, err)
		}

		for link := range links.All() {
			if err := pollLink(ctx, st, link, timing.PeerDown); err != nil {
				return ignoreEnd(ctx, err)
			}
		}

		if !sleep(ctx, timing.PeerPoll) {
			return nil
		}
	}
}

func pollLink(ctx context.Context, st state.State, link *siderolink.Link, down time.Duration) error {
	t, err := safe.StateGetByID[*tunnel](ctx, st, addressOf(link.TypedSpec().Value.NodeSubnet))
	if err != nil && !state.IsNotFoundError(err) {
		return err
	}

	alive := t != nil && (t.TypedSpec().Up || (!t.TypedSpec().Ended.IsZero() && time.Since(t.TypedSpec().Ended) < down))
	if alive == link.TypedSpec().Value.Connected {
		return nil
	}

	_, err = safe.StateUpdateWithConflicts(ctx, st, link.Metadata(), func(l *siderolink.Link) error {
		l.TypedSpec().Value.Connected = alive

		return nil
	})

	return ignoreRace(err)
}

// sleep waits for d and returns whether ctx is still good.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
