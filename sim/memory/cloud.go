// Package memory is a small cloud that lives in memory: images, volumes and virtual machines behind a client API of its own,
// with the manners of a real one. Operations take time, names of machines are not unique, a volume in use cannot be deleted,
// a running machine neither. Calls fail on demand. What runs inside a machine is a function (Options.Boot).
//
// Several clouds can be the zones of one, each with a front end of its own (Zones).
//
// Not modelled: networks, quotas other than the number of machines, permissions, paging, more than one project.
package memory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Options shape a cloud. The zero value is an instant cloud without limits whose machines run nothing.
type Options struct {
	// Durations are how long the cloud goes on working on an operation after it has answered the call. Operations without an
	// entry are done when they answer.
	Durations map[Op]time.Duration
	// Latency is how long every call takes to answer.
	Latency time.Duration
	// Jitter is the part by which each duration varies: 0.2 draws from 80 % to 120 %.
	Jitter float64
	// Seed makes the jitter repeatable.
	Seed uint64
	// MaxVMs is the capacity; zero is without limit.
	MaxVMs int
	// Boot is what runs inside a machine while it is on. Its context ends when the machine is switched off, restarted or
	// deleted; a restart calls it again. The machine is off when it returns by itself. Nil machines are on and do nothing.
	Boot func(ctx context.Context, vm VM)
	// Fetch is how the cloud gets an image from its URL; an error makes the image fail. Nil takes every URL as fetched.
	Fetch func(ctx context.Context, url string) error
}

// Cloud is the simulated cloud. Its own methods are those of its owner and of tests; clients use Client.
type Cloud struct {
	opts   Options
	zone   string // empty for a cloud by itself
	ledger *ledger.Ledger
	ctx    context.Context // It is the life of the cloud, not of a call.
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	rand    *rand.Rand
	next    map[string]int
	images  map[string]*Image
	volumes map[string]*Volume
	vms     map[string]*machine
	faults  []*Fault
	cut     *Fault // what hits each call while the cloud is cut off
	watches map[*watch]struct{}
}

// New starts a cloud. Close ends it.
func New(opts Options) *Cloud { return newCloud(opts, "", ledger.New()) }

func newCloud(opts Options, zone string, books *ledger.Ledger) *Cloud {
	ctx, cancel := context.WithCancel(context.Background())

	return &Cloud{
		opts: opts, zone: zone, ledger: books, ctx: ctx, cancel: cancel,
		rand:    rand.New(rand.NewPCG(opts.Seed, 0)), // Repeatable is what it has to be.
		next:    map[string]int{},
		images:  map[string]*Image{},
		volumes: map[string]*Volume{},
		vms:     map[string]*machine{},
		watches: map[*watch]struct{}{},
	}
}

// Ledger returns the cloud's books.
func (c *Cloud) Ledger() *ledger.Ledger { return c.ledger }

// Client opens a connection, one for each process that uses the cloud.
func (c *Cloud) Client() *Client { return &Client{cloud: c, session: c.ledger.Session()} }

// Close switches all machines off, waits until nothing of the cloud runs any more, and refuses further calls.
func (c *Cloud) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()

	c.cancel()
	c.tasks.Wait()
}

// idLocked returns the next id of a kind ("vm-3"), with the zone in front ("b-vm-3").
func (c *Cloud) idLocked(kind string) string {
	c.next[kind]++

	if c.zone != "" {
		return fmt.Sprintf("%s-%s-%d", c.zone, kind, c.next[kind])
	}

	return fmt.Sprintf("%s-%d", kind, c.next[kind])
}

// afterLocked runs done with the lock held once the operation's time has passed, at once if it takes none.
func (c *Cloud) afterLocked(op Op, done func()) {
	pause := c.jitterLocked(c.opts.Durations[op])
	if pause <= 0 {
		done()

		return
	}

	c.tasks.Go(func() {
		if sleep(c.ctx, pause) != nil {
			return
		}

		c.mu.Lock()
		defer c.mu.Unlock()

		done()
	})
}

func (c *Cloud) jitterLocked(d time.Duration) time.Duration {
	return d + time.Duration((2*c.rand.Float64()-1)*c.opts.Jitter*float64(d))
}

// sleep waits for d, or returns ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}

	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sorted returns the values that keep holds for, the oldest first. Keys are ids, which end in a growing number.
func sorted[T any](all map[string]T, keep func(T) bool) []T {
	ids := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})

	var out []T

	for _, id := range ids {
		if keep(all[id]) {
			out = append(out, all[id])
		}
	}

	return out
}
