package libvirt

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Options shape a hypervisor. The zero value is an instant host with KVM for x86_64, 16 processors, 64 GiB of memory, the storage
// pool "default" and the network "default", whose guests run nothing.
type Options struct {
	// Hostname is the host's name; "hypervisor" if empty. Hosts that share a ledger have different ones.
	Hostname string
	// Ledger takes the host's calls and objects; the host has one of its own if it is nil.
	Ledger *ledger.Ledger
	// Host is the machine that the hypervisor runs on.
	Host Host
	// Pools are the storage pools that are there from the start, all of them active; a pool "default" of type dir if nil.
	Pools []Pool
	// Networks are the networks that are there from the start, in libvirt's XML, all of them active; a NAT network "default" if nil.
	Networks []string
	// Devices are the node devices of the host, in libvirt's XML.
	Devices []string

	// Latency is how long every call takes to reach the daemon.
	Latency time.Duration
	// Durations are how long the daemon works on an operation before it answers, by the name of the method. Methods that differ in
	// taking flags are one operation: "Domain.Create" is also CreateWithFlags.
	Durations map[string]time.Duration

	// Boot is what runs inside a guest while it is on. Its context ends when the guest is switched off or reset; after a reset it
	// is called again, once the call before has returned. When it returns by itself the guest has shut itself down. Guests
	// without it are on and do nothing but obey.
	Boot func(ctx context.Context, g Guest)
	// ShutdownTime is how long a guest takes to shut down or reboot when it is asked to.
	ShutdownTime time.Duration

	// Enter returns how an object is entered in the books: under which kind, and whether it may stay when its maker is done, as an
	// image for later machines. All are entered as what they are if it is nil.
	Enter func(o ledger.Object) ledger.Object
}

// Hypervisor is a simulated host with its libvirt daemon. Its own methods are those of the host's owner and of tests; what a
// program does over libvirt is in Client and Connect. They may be called from several goroutines.
type Hypervisor struct {
	opts   Options
	ledger *ledger.Ledger
	shared bool            // The ledger has the books of other hosts as well.
	ctx    context.Context // It is the life of the host, not of a call.
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu           sync.Mutex
	closed       bool
	down         bool
	frozen       chan struct{} // It is closed when the daemon goes on; nil while it runs.
	conns        map[*Connect]struct{}
	domains      map[string]*machine  // by UUID
	pools        map[string]*pool     // by name
	networks     map[string]*network  // by name
	devices      map[string]*device   // by name
	files        map[string]*file     // by path
	entered      map[[2]string]string // the kind in the books by the kind and the id of an object
	incarnations map[string]int       // how many domains there were, by UUID
	lastID       int
	random       uint64
}

// New starts a hypervisor. Close ends it. Options that libvirt would not take are a mistake in the test, and panic.
func New(opts Options) *Hypervisor {
	ctx, cancel := context.WithCancel(context.Background())

	h := &Hypervisor{
		opts: opts, ledger: opts.Ledger, shared: opts.Ledger != nil, ctx: ctx, cancel: cancel,
		conns:        map[*Connect]struct{}{},
		domains:      map[string]*machine{},
		pools:        map[string]*pool{},
		networks:     map[string]*network{},
		devices:      map[string]*device{},
		files:        map[string]*file{},
		entered:      map[[2]string]string{},
		incarnations: map[string]int{},
	}

	if h.ledger == nil {
		h.ledger = ledger.New()
	}

	h.opts.Hostname = cmp.Or(opts.Hostname, "hypervisor")
	h.opts.Host = opts.Host.withDefaults()
	h.furnish()

	return h
}

// Ledger returns the books.
func (h *Hypervisor) Ledger() *ledger.Ledger { return h.ledger }

// Close switches all guests off, breaks all connections, and waits until nothing of the host runs any more.
func (h *Hypervisor) Close() {
	h.mu.Lock()
	h.closed = true

	for c := range h.conns {
		c.breakOffLocked(libvirt.CONNECT_CLOSE_REASON_EOF)
	}

	h.mu.Unlock()
	h.cancel()
	h.tasks.Wait()
}

// long are the operations that let their time pass by themselves, while others see what they work on. The time of all others
// passes before they begin.
var long = map[string]bool{
	"Domain.Create": true, "Domain.Destroy": true, "Domain.Undefine": true, "Domain.ManagedSave": true,
	"Domain.CreateSnapshotXML": true, "StoragePool.StorageVolCreateXML": true, "StoragePool.StorageVolCreateXMLFrom": true,
	"StoragePool.Refresh": true, "StorageVol.Delete": true,
}

// operation is the name of a method without what says that it takes flags.
func operation(method string) string {
	return strings.TrimSuffix(strings.TrimSuffix(method, "WithFlags"), "Flags")
}

// before is how long the daemon works on a call before it has any effect.
func (h *Hypervisor) before(method string) time.Duration {
	if op := operation(method); !long[op] {
		return h.opts.Durations[op]
	}

	return 0
}

// pauseLocked lets the time of a long operation pass, without the lock. Things may have changed when it returns.
func (h *Hypervisor) pauseLocked(op string) {
	d := h.opts.Durations[op]
	if d <= 0 {
		return
	}

	h.mu.Unlock()

	_ = sleep(h.ctx, d) // The host ends, and so does whatever it worked on.

	h.mu.Lock()
}

// madeLocked and goneLocked keep the books of objects.
func (h *Hypervisor) madeLocked(o ledger.Object) {
	o.ID = h.bookID(o.ID)

	if h.opts.Enter != nil && !o.Keep {
		entered := h.opts.Enter(o)
		h.entered[[2]string{o.Kind, o.ID}] = entered.Kind
		o = entered
	}

	h.ledger.Made(o)
}

func (h *Hypervisor) goneLocked(kind, id string) {
	key := [2]string{kind, h.bookID(id)}
	h.ledger.Gone(cmp.Or(h.entered[key], kind), key[1])
	delete(h.entered, key)
}

// bookID is the name of an object in the books, which several hosts may share.
func (h *Hypervisor) bookID(id string) string {
	if h.shared {
		return h.opts.Hostname + ":" + id
	}

	return id
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
