//go:build real

package libvirt_test

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// poolPrefix begins the names of the pools of all cases.
const poolPrefix = "conformance-"

// cloud is what the suite sees of a real hypervisor: one storage pool and the domains whose disks are there, by libvirt's word and
// by the pool's files, with none of the provider's code. In each machine that runs it puts a simulated Talos, which reads the seed
// that the machine has; the machine itself runs its firmware and finds nothing to boot.
type cloud struct {
	// uri is the hypervisor's, place the name that the provider has for it.
	uri, place string
	gate       *gate
	conn       *libvirt.Connect
	books      *ledger.Ledger
	world      *conformance.World
	pool, dir  string
	callbacks  []int
	events     chan event
	guests     sync.WaitGroup
	ctx        context.Context
	cancel     context.CancelFunc

	mu sync.Mutex
	// ours says whose domains were looked at, by UUID. machines are those that there are, foreign what somebody else has made.
	ours     map[string]bool
	machines map[string]*domain
	foreign  map[string]bool
	lives    int
}

// domain is a machine of the cloud, from the time when it is defined until it is undefined.
type domain struct {
	id, name, uuid string
	// run is libvirt's number of the present run, or of the last one. libvirt counts them for all domains.
	run, boots int
	// reset is when it was last reset, stop ends its guest.
	reset time.Time
	stop  context.CancelFunc
}

// newCloud makes a pool of that name, which goes with the test.
func newCloud(t *testing.T, w *conformance.World, books *ledger.Ledger, uri, place, name string) *cloud {
	t.Helper()

	c := &cloud{
		uri: uri, place: place, gate: newGate(), books: books, world: w, pool: poolPrefix + name, dir: t.TempDir(), events: make(chan event, 4096),
		ours: map[string]bool{}, machines: map[string]*domain{}, foreign: map[string]bool{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())

	var err error

	c.conn, err = libvirt.NewConnect(uri)
	require.NoError(t, err)

	pool, err := c.conn.StoragePoolDefineXML(fmt.Sprintf("<pool type='dir'><name>%s</name><target><path>%s</path></target></pool>", c.pool, c.dir), 0)
	require.NoError(t, err)
	require.NoError(t, pool.Create(0))

	t.Cleanup(func() { c.close(t, pool) })

	watch(t, c)

	go c.follow()

	return c
}

// close takes away what is left, which the suite has complained of by then.
func (c *cloud) close(t *testing.T, pool *libvirt.StoragePool) {
	t.Helper()

	for _, d := range c.list() {
		if err := remove(d.handle); err != nil {
			t.Errorf("remove domain %q: %v", d.name, err)
		}
	}

	for _, id := range c.callbacks {
		_ = c.conn.DomainEventDeregister(id)
	}

	c.cancel()
	c.guests.Wait()

	if err := errors.Join(pool.Destroy(), pool.Undefine(), pool.Free()); err != nil {
		t.Errorf("remove storage pool %q: %v", c.pool, err)
	}

	_, _ = c.conn.Close()
}

// listed is a domain of the cloud as libvirt has it now.
type listed struct {
	name, uuid string
	run        int
	foreign    bool
	handle     *libvirt.Domain
}

// list returns the cloud's domains, those of somebody else included. Handles are freed by Go's collector's grace: there are few.
func (c *cloud) list() (all []listed) {
	domains, err := c.conn.ListAllDomains(0)
	if err != nil {
		panic(fmt.Errorf("list domains: %w", err))
	}

	for i := range domains {
		d := &domains[i]
		l := listed{handle: d}
		l.name, _ = d.GetName()
		l.uuid, _ = d.GetUUIDString()

		if run, err := d.GetID(); err == nil {
			l.run = int(run)
		}

		if c.owns(d, l.uuid) {
			c.mu.Lock()
			l.foreign = c.foreign[l.uuid]
			c.mu.Unlock()

			all = append(all, l)
		} else {
			_ = d.Free()
		}
	}

	return all
}

func free(all []listed) {
	for _, l := range all {
		_ = l.handle.Free()
	}
}

// described is a domain.
type described interface {
	GetXMLDesc(flags libvirt.DomainXMLFlags) (string, error)
}

// owns reports whether a domain is of this cloud.
func (c *cloud) owns(d described, uuid string) bool {
	c.mu.Lock()
	ours, known := c.ours[uuid]
	ours = ours || c.foreign[uuid]
	c.mu.Unlock()

	if known || ours {
		return ours
	}

	// One that has just gone is nobody's.
	text, err := d.GetXMLDesc(libvirt.DOMAIN_XML_SECURE)
	if err != nil {
		return false
	}

	c.books.Scan("the description of a domain", text)

	c.mu.Lock()
	defer c.mu.Unlock()

	// A domain names the pool in its mark before it has a disk there.
	ours = strings.Contains(text, c.pool) || strings.Contains(text, "'"+c.dir+"/")
	if ours || strings.Contains(text, poolPrefix) {
		c.ours[uuid] = ours
	}

	return ours
}

// Machines returns all machines of the cloud.
func (c *cloud) Machines() (all []ledger.Machine) {
	domains := c.list()
	defer free(domains)

	c.mu.Lock()
	defer c.mu.Unlock()

	for _, l := range domains {
		if l.foreign {
			all = append(all, ledger.Machine{ID: c.place + ":" + l.uuid, Name: l.name, UUID: l.uuid, Place: c.place, On: l.run != 0})

			continue
		}

		// The news may be on its way still.
		m := c.machineLocked(l.name, l.uuid)
		c.runsLocked(m, l.run)

		all = append(all, ledger.Machine{ID: m.id, Name: m.name, UUID: m.uuid, Place: c.place, On: l.run != 0, Boots: m.boots})
	}

	return all
}

// objects are the domains and the files in the pool. Of an image the file with its bytes counts, and what points to it.
func (c *cloud) objects() (all []ledger.Object) {
	domains := c.list()
	defer free(domains)

	for _, l := range domains {
		all = append(all, ledger.Object{Kind: "domain", ID: c.place + ":" + l.uuid, Name: l.name, Keep: l.foreign})
	}

	files, err := os.ReadDir(c.dir)
	if err != nil {
		panic(fmt.Errorf("look into storage pool %q: %w", c.pool, err))
	}

	for _, file := range files {
		info, err := file.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue
		}

		if err != nil {
			panic(fmt.Errorf("look into storage pool %q: %w", c.pool, err))
		}

		name := file.Name()
		inode := info.Sys().(*syscall.Stat_t).Ino
		o := ledger.Object{Kind: "volume", ID: fmt.Sprintf("%s:%d", c.place, inode), Name: name, Keep: c.isForeign(name)}

		if strings.HasPrefix(name, "omni-image-") {
			o.Kind, o.Keep = "image"+filepath.Ext(name), true
		}

		all = append(all, o)
	}

	return all
}

func (c *cloud) isForeign(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.foreign[name]
}

// DeleteMachine removes a domain as somebody with virsh would: its volumes stay.
func (c *cloud) DeleteMachine(id string) error {
	return c.with(id, "deletes", remove)
}

// SwitchOff cuts a domain off.
func (c *cloud) SwitchOff(id string) error {
	return c.with(id, "switches off", (*libvirt.Domain).Destroy)
}

// with does something to the domain of a machine.
func (c *cloud) with(id, what string, f func(*libvirt.Domain) error) error {
	c.Machines()

	domains := c.list()
	defer free(domains)

	for _, l := range domains {
		c.mu.Lock()
		m := c.machines[l.uuid]
		c.mu.Unlock()

		if m != nil && m.id == id {
			c.books.Note("someone %s machine %s", what, id)

			return f(l.handle)
		}
	}

	return fmt.Errorf("there is no machine %s", id)
}

// remove takes a domain away, running or not.
func remove(d *libvirt.Domain) error {
	if on, err := d.IsActive(); err != nil {
		return err
	} else if on {
		if err := d.Destroy(); err != nil {
			return err
		}
	}

	return d.UndefineFlags(libvirt.DOMAIN_UNDEFINE_NVRAM | libvirt.DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA)
}

// AddForeign makes a domain or a volume that belongs to somebody else.
func (c *cloud) AddForeign(kind, name string) (id string, err error) {
	c.books.Note("somebody else makes %s %q", kind, name)

	if kind == "domain" {
		d, err := c.conn.DomainDefineXML(fmt.Sprintf("<domain type='qemu'><name>%s</name><memory unit='MiB'>16</memory>"+
			"<os><type arch='x86_64'>hvm</type></os></domain>", name))
		if err != nil {
			return "", err
		}
		defer d.Free() //nolint:errcheck // It is only looked at.

		id, err = d.GetUUIDString()

		c.mu.Lock()
		defer c.mu.Unlock()

		c.foreign[id] = true

		return c.place + ":" + id, err
	}

	pool, err := c.conn.LookupStoragePoolByName(c.pool)
	if err != nil {
		return "", err
	}
	defer pool.Free() //nolint:errcheck // It is only used here.

	vol, err := pool.StorageVolCreateXML(fmt.Sprintf("<volume><name>%s</name><capacity unit='MiB'>1</capacity><target><format type='raw'/></target></volume>", name), 0)
	if err != nil {
		return "", err
	}
	defer vol.Free() //nolint:errcheck // It is only used here.

	c.mu.Lock()
	c.foreign[name] = true
	c.mu.Unlock()

	all := c.objects()
	i := slices.IndexFunc(all, func(o ledger.Object) bool { return o.Kind == "volume" && o.Name == name })

	return all[i].ID, nil
}
