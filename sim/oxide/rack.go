package oxide

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Options shape a rack. The zero value is an instant rack without limits of its own, with the project "default", whose guests
// run nothing.
type Options struct {
	// Ledger takes the calls and objects; the rack has one of its own if it is nil.
	Ledger *ledger.Ledger
	// Silo is the name of the silo; "lab" if empty.
	Silo string
	// Token is the bearer token of the silo's administrator; a random one if empty.
	Token string
	// Projects are the projects that are there from the start, each with the VPC and subnet "default"; "default" if nil.
	Projects []string
	// Pools are the IP pools that the silo may use; a default one of each IP version if nil.
	Pools []Pool
	// Quota is what the silo may use; a field that is zero has no limit.
	Quota Resources
	// Sleds are the computers of the rack, on which instances run; as much as is asked for if nil.
	Sleds []Sled

	// Latency is how long every call takes to answer.
	Latency time.Duration
	// Durations are how long the rack works on an operation, by its operation id. The time of disk_create, disk_delete,
	// disk_finalize_import, snapshot_create, snapshot_delete, image_create, instance_create and instance_delete passes before the
	// answer, while others see the object in the state that it has then, and goes on when the client gives up. That of instance_start,
	// instance_stop and instance_reboot passes after the answer. Any other operation takes that long to answer, besides Latency.
	Durations map[string]time.Duration
	// InFlight is how many calls the rack works on at once; zero is without limit.
	InFlight int
	// Queue makes calls above InFlight wait for their turn; else they are answered with 503.
	Queue bool
	// PageLimit is how many items a page has at most, whatever the client asks for; zero is the real one, 10,000.
	PageLimit int

	// Cooldown is the time between two automatic restarts of an instance that failed; one hour if zero.
	Cooldown time.Duration
	// Migration and Repair are how long an instance is in the state that Rack.Migrate and Rack.Repair put it into.
	Migration, Repair time.Duration
	// MaxContent is how many bytes that are not zero the disks of the rack may hold in memory; 1 GiB if zero. Writes above it are
	// answered with 500.
	MaxContent int64
	// SMBIOS is what guests see as their UUID.
	SMBIOS SMBIOS
	// Boot is what runs inside an instance while it is on. Its context ends when the instance is stopped or restarted; after a
	// reboot it is called again, once the call before has returned. When it returns by itself the guest has shut itself down. It
	// is not called for an instance whose boot disk holds nothing, which stays in its firmware's shell.
	Boot func(ctx context.Context, g Guest)
	// Seed makes ids and addresses repeatable.
	Seed uint64
}

// Rack is the simulated rack. Its own methods are those of its operator and of tests; what programs do goes through Handler and
// Transport. They may be called from several goroutines.
type Rack struct {
	opts   Options
	ledger *ledger.Ledger
	ctx    context.Context // It is the life of the rack, not of a call.
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	slots  chan struct{} // It has an entry for each call in flight; nil without limit.

	mu       sync.Mutex
	closed   bool
	random   *rand.ChaCha8
	silo     *silo
	users    []*user
	projects table[*project]
	images   table[*image]
	disks    table[*disk]
	// snapshots keep their content when the disk has gone.
	snapshots table[*snapshot]
	instances table[*instance]
	vpcs      table[*vpc]
	subnets   table[*subnet]
	nics      table[*nic]
	pools     table[*pool]
	floating  table[*floatingIP]
	antiGroup table[*group]
	affGroup  table[*group]
	sshKeys   table[*sshKey]
	content   int64 // bytes in the blocks of all contents
	inFlight  int
	most      int // the most calls in flight that there were
}

// New starts a rack. Close ends it. Options that make no sense are a mistake in the test, and panic.
func New(opts Options) *Rack {
	ctx, cancel := context.WithCancel(context.Background())

	var seed [32]byte
	for i := range 8 {
		seed[i] = byte(opts.Seed >> (8 * i))
	}

	opts.Silo = cmp.Or(opts.Silo, "lab")
	opts.PageLimit = cmp.Or(opts.PageLimit, maxPage)
	opts.Cooldown = cmp.Or(opts.Cooldown, time.Hour)
	opts.MaxContent = cmp.Or(opts.MaxContent, 1<<30)

	r := &Rack{
		opts: opts, ledger: opts.Ledger, ctx: ctx, cancel: cancel,
		random:    rand.NewChaCha8(seed),
		projects:  table[*project]{noun: "project", kind: "project"},
		images:    table[*image]{noun: "image", kind: "image"},
		disks:     table[*disk]{noun: "disk", kind: "disk"},
		snapshots: table[*snapshot]{noun: "snapshot", kind: "snapshot"},
		instances: table[*instance]{noun: "instance", kind: "instance"},
		vpcs:      table[*vpc]{noun: "vpc", kind: "vpc"},
		subnets:   table[*subnet]{noun: "vpc-subnet", title: "subnet"},
		nics:      table[*nic]{noun: "instance-network-interface", title: "network interface"},
		pools:     table[*pool]{noun: "ip-pool", title: "IP pool"},
		floating:  table[*floatingIP]{noun: "floating-ip", title: "Floating IP", kind: "floating-ip"},
		antiGroup: table[*group]{noun: "anti-affinity-group", title: "anti_affinity_group", kind: "anti-affinity-group"},
		affGroup:  table[*group]{noun: "affinity-group", title: "affinity_group", kind: "affinity-group"},
		sshKeys:   table[*sshKey]{noun: "ssh-key", title: "ssh_key", kind: "ssh-key"},
	}

	if r.ledger == nil {
		r.ledger = ledger.New()
	}

	if opts.InFlight > 0 {
		r.slots = make(chan struct{}, opts.InFlight)
	}

	r.furnish()

	return r
}

// furnish makes what is there from the start.
func (r *Rack) furnish() {
	r.silo = &silo{meta: r.newMeta(r.opts.Silo, "", "")}

	admin := &user{meta: r.newMeta("admin", "", ""), token: r.opts.Token, role: Admin, roles: map[string]Role{}}
	if admin.token == "" {
		admin.token = r.newToken()
	}

	r.users = append(r.users, admin)

	pools := r.opts.Pools
	if pools == nil {
		pools = defaultPools()
	}

	for _, p := range pools {
		r.addPool(p)
	}

	projects := r.opts.Projects
	if projects == nil {
		projects = []string{"default"}
	}

	for _, name := range projects {
		if _, err := r.makeProjectLocked(name, "", false); err != nil {
			panic(err)
		}
	}
}

// Ledger returns the books.
func (r *Rack) Ledger() *ledger.Ledger { return r.ledger }

// Close switches all instances off and waits until nothing of the rack runs any more. Calls fail from then on as if the rack
// could not be reached.
func (r *Rack) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()

	r.cancel()
	r.tasks.Wait()
}

// MostInFlight returns the most calls that the rack worked on at once so far, those that it refused excepted.
func (r *Rack) MostInFlight() int {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.most
}

func (r *Rack) newID() string {
	return uuid.Must(uuid.NewRandomFromReader(r.random)).String()
}

// pauseLocked lets time pass without the lock, as the rack works on an operation. Things may have changed when it returns.
func (r *Rack) pauseLocked(d time.Duration) {
	if d <= 0 {
		return
	}

	r.mu.Unlock()

	_ = sleep(r.ctx, d) // The rack ends, and so does whatever it worked on.

	r.mu.Lock()
}

// afterLocked runs done with the lock held once the time has passed, at once if it is none. It runs nothing after Close.
func (r *Rack) afterLocked(d time.Duration, done func()) {
	if d <= 0 {
		done()

		return
	}

	r.tasks.Go(func() {
		if sleep(r.ctx, d) != nil {
			return
		}

		r.mu.Lock()
		defer r.mu.Unlock()

		if !r.closed {
			done()
		}
	})
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
