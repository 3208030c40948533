//go:build real

package libvirt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/libvirtdtest"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// hosts are the hypervisors of one case, with books that they share.
type hosts struct {
	books *ledger.Ledger
	all   []*cloud
}

// newHosts takes hypervisors by the names that the provider has for them.
func newHosts(t *testing.T, w *conformance.World, uris map[string]string) *hosts {
	t.Helper()

	h := &hosts{books: ledger.New()}
	// Machine classes name one pool, which is on each host.
	pool := strings.ReplaceAll(strings.TrimPrefix(t.TempDir(), os.TempDir()+"/"), "/", "-")

	for _, name := range slices.Sorted(maps.Keys(uris)) {
		h.all = append(h.all, newCloud(t, w, h.books, uris[name], name, pool))
	}

	h.books.Look(h.objects)

	return h
}

func (h *hosts) objects() (all []ledger.Object) {
	for _, c := range h.all {
		all = append(all, c.objects()...)
	}

	return all
}

// Ledger has the calls to all hosts, and the objects there.
func (h *hosts) Ledger() *ledger.Ledger { return h.books }

// Machines returns all machines of all hosts.
func (h *hosts) Machines() (all []ledger.Machine) {
	for _, c := range h.all {
		all = append(all, c.Machines()...)
	}

	return all
}

// of returns the host that an id says.
func (h *hosts) of(id string) *cloud {
	place, _, _ := strings.Cut(id, ":")

	return h.all[slices.IndexFunc(h.all, func(c *cloud) bool { return c.place == place })]
}

// DeleteMachine removes a domain as somebody with virsh would: its volumes stay.
func (h *hosts) DeleteMachine(id string) error { return h.of(id).DeleteMachine(id) }

// SwitchOff cuts a domain off.
func (h *hosts) SwitchOff(id string) error { return h.of(id).SwitchOff(id) }

// AddForeign makes a domain or a volume that belongs to somebody else on each host, so that it is in the way wherever that is.
func (h *hosts) AddForeign(kind, name string) (id string, err error) {
	for _, c := range h.all {
		if id, err = c.AddForeign(kind, name); err != nil {
			return "", err
		}
	}

	return id, nil
}

// Places returns the hosts' names.
func (h *hosts) Places() (names []string) {
	for _, c := range h.all {
		names = append(names, c.place)
	}

	return names
}

// CutPlace puts a host out of the provider's reach.
func (h *hosts) CutPlace(name string, silent bool) (restore func(), err error) {
	return h.of(name).gate.shut(silent), nil
}

// gate is the way from the provider to a host.
type gate struct {
	mu     sync.Mutex
	opened chan struct{} // It is closed while the gate is open.
	silent bool
	lines  []*booked
}

func newGate() *gate {
	g := &gate{opened: make(chan struct{})}
	close(g.opened)

	return g
}

// shut keeps all calls from the host until restore is called. Connections break, unless it is silent: then calls wait.
func (g *gate) shut(silent bool) (restore func()) {
	g.mu.Lock()
	lines := g.lines
	g.opened, g.silent = make(chan struct{}), silent
	opened := g.opened
	g.mu.Unlock()

	if !silent {
		for _, b := range lines {
			b.breakOff()
		}
	}

	return sync.OnceFunc(func() { close(opened) })
}

func (g *gate) add(b *booked) {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.lines = append(slices.DeleteFunc(g.lines, func(b *booked) bool { return b.ctx.Err() != nil }), b)
}

func (g *gate) isOpen() bool {
	g.mu.Lock()
	defer g.mu.Unlock()

	select {
	case <-g.opened:
		return true
	default:
		return false
	}
}

// pass lets a call through.
func (g *gate) pass(ctx context.Context) error {
	g.mu.Lock()
	opened, silent := g.opened, g.silent
	g.mu.Unlock()

	if !silent {
		select {
		case <-opened:
			return nil
		default:
			return ledger.ErrDisconnected
		}
	}

	select {
	case <-opened:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// daemon runs another private libvirtd that ends with the test, and returns its URI.
func daemon(t *testing.T) (uri string) {
	t.Helper()

	// The path of its socket has to be short.
	dir, err := os.MkdirTemp("", "libvirtd-")
	require.NoError(t, err)

	var stderr bytes.Buffer

	ctx, cancel := context.WithCancel(context.Background())
	run := exec.CommandContext(ctx, "lab/private-libvirtd.sh", dir, "sleep", "infinity")
	run.Env = append(os.Environ(), libvirtdtest.Inside+"=")
	run.Stderr = &stderr
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	run.Cancel = func() error { return syscall.Kill(-run.Process.Pid, syscall.SIGKILL) }
	require.NoError(t, run.Start())

	t.Cleanup(func() {
		cancel()

		_ = run.Wait() // It was killed.

		require.NoError(t, os.RemoveAll(dir))
	})

	uri = "qemu+unix:///system?socket=" + filepath.Join(dir, "run", "libvirt-sock")

	require.Eventually(t, func() bool {
		c, err := libvirt.NewConnect(uri)
		if err == nil {
			_, err = c.Close()
		}

		return err == nil
	}, time.Minute, 100*time.Millisecond, "%s", errors.Join(ctx.Err(), fmt.Errorf("libvirtd does not come up: %s", &stderr)))

	return uri
}
