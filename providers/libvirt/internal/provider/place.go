package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// promise is the room at a host that a machine takes which is placed, but does not run yet.
type promise struct {
	host   *host
	memory uint64
	// made is when it was made last.
	made time.Time
	// set is the provider's id and the request set.
	set [2]string
}

// promiseLimit is how long a promise holds that nobody renews, which each try to make the machine does: the request has gone, or another
// process makes the machine.
const promiseLimit = 3 * time.Hour

// Place chooses the host of a request's machine: the one that the class names, or the best of those that can make it.
func (d *Driver) Place(ctx context.Context, req driver.Request) (string, error) {
	data, err := checked(req)
	if err != nil {
		return "", err
	}

	candidates := d.hosts

	if data.Host != "" {
		i := slices.IndexFunc(d.hosts, func(h *host) bool { return h.Name() == data.Host })
		if i < 0 {
			return "", driver.Terminalf("host: got %q, which this provider does not have: want one of %s, or leave it out", data.Host, strings.Join(d.Places(), ", "))
		}

		candidates = d.hosts[i : i+1]
	}

	loads := ask(ctx, candidates, func(ctx context.Context, h *host) (hypervisor.Load, error) { return h.Offer(ctx, req, data) })

	return d.choose(req, data, loads)
}

// choose picks the best host and promises it to the request, one request at a time.
func (d *Driver) choose(req driver.Request, data machine.ClassData, loads []answer[hypervisor.Load]) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	// An earlier choice of this request was not recorded.
	maps.DeleteFunc(d.promised, func(ref driver.Ref, p promise) bool { return ref == req.Ref || time.Since(p.made) > promiseLimit })

	need := data.Memory << 20
	set := [2]string{req.ProviderID, req.Set}
	best := -1

	for i := range loads {
		one := &loads[i]
		if one.err != nil {
			continue
		}

		promised := uint64(0)

		for _, p := range d.promised {
			if p.host != one.host {
				continue
			}

			promised += p.memory

			if p.set == set {
				one.value.Members++
			}
		}

		// Without a choice the hypervisor has the last word: some are overcommitted on purpose.
		if free := one.value.Free; len(loads) > 1 && free < need+promised {
			one.err = driver.Capacity(fmt.Errorf("the machine needs %d MiB of memory; %d MiB are free, of which %d MiB are promised to machines that are being made",
				data.Memory, free>>20, promised>>20))

			continue
		}

		one.value.Free -= min(promised, one.value.Free)
		one.value.Unclaimed -= int64(promised) //nolint:gosec // no host has that much

		if best < 0 || better(data.Placement, one.value, loads[best].value) {
			best = i
		}
	}

	if best < 0 {
		return "", unsuitable(loads)
	}

	d.promised[req.Ref] = promise{host: loads[best].host, memory: need, made: time.Now(), set: set}

	return loads[best].host.Name(), nil
}

// better says whether a machine is rather made where the load is a than where it is b.
func better(placement string, a, b hypervisor.Load) bool {
	if placement == machine.PlacementSpread && a.Members != b.Members {
		return a.Members < b.Members
	}

	return room(a) > room(b)
}

// room is the memory that is left, counting what running machines have not used yet as used.
func room(l hypervisor.Load) int64 { return min(l.Unclaimed, int64(l.Free)) } //nolint:gosec // no host has that much

// unsuitable says for each host why it cannot make the machine. It is Terminal when none ever can, Capacity when some could if they
// had room, and transient when some may yet turn out to be good.
func unsuitable[T any](answers []answer[T]) error {
	if len(answers) == 1 {
		return answers[0].err
	}

	kinds := map[driver.Kind]bool{}
	texts := make([]string, len(answers))

	for i, a := range answers {
		kind := driver.KindOf(a.err)
		if errors.Is(a.err, connection.ErrUnreachable) {
			kind = driver.KindTransient
		}

		kinds[kind] = true
		texts[i] = fmt.Sprintf("%s: %v", a.host.Name(), a.err)
	}

	err := errors.New("no host can make the machine: " + strings.Join(texts, "; "))

	switch {
	case len(kinds) == 1 && kinds[driver.KindTerminal]:
		return driver.Terminal(err)
	case kinds[driver.KindCapacity] && !kinds[driver.KindTransient]:
		return driver.Capacity(err)
	default:
		return err
	}
}

// promise keeps room at the host for a machine that is being made.
func (d *Driver) promise(req driver.Request, data machine.ClassData, h *host) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.promised[req.Ref] = promise{host: h, memory: data.Memory << 20, made: time.Now(), set: [2]string{req.ProviderID, req.Set}}
}

// kept notes that the machine runs: it counts by itself.
func (d *Driver) kept(ref driver.Ref) {
	d.mu.Lock()
	defer d.mu.Unlock()

	delete(d.promised, ref)
}
