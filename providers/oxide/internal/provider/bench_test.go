package provider

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/rack"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	sim "github.com/omni-infra/omni-infra-providers/sim/oxide"
)

const (
	provider = "oxide"
	class    = "{project: default, boot_disk_size: 2}"
	key      = "talos-v1.13.5-nocloud-amd64-376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba-0123abcd.raw"
	token    = "canary-token-of-the-rack"
)

// durations make the rack take its time, so that every state is seen.
var durations = map[string]time.Duration{
	"instance_create": 2 * time.Second, "instance_start": 5 * time.Second, "instance_stop": 5 * time.Second, "instance_reboot": 5 * time.Second,
	"instance_delete": time.Second, "disk_create": time.Second, "disk_finalize_import": 3 * time.Second, "disk_delete": time.Second,
	"snapshot_delete": time.Second, "disk_bulk_write_import": 10 * time.Millisecond,
}

// bench is a simulated rack and drivers for it, on a fake clock.
type bench struct {
	t    *testing.T
	rack *sim.Rack
	// image is what the boot image has in it, opened is how often it was.
	image  []byte
	opened int
	// breaks is which of these times it breaks off in the middle.
	breaks int
}

// inBubble runs test on a fake clock.
func inBubble(t *testing.T, opts sim.Options, test func(b *bench)) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		opts.Token = token

		r := sim.New(opts)
		defer r.Close()

		b := &bench{t: t, rack: r, image: pattern(3*chunkSize + 700)}
		test(b)
	})
}

// pattern is an image with a hole.
func pattern(size int) []byte {
	image := make([]byte, size)
	for i := range image {
		if i < chunkSize/2 || i > 2*chunkSize {
			image[i] = byte(i%251) + 1
		}
	}

	return image
}

// process is a driver whose calls go over a connection of its own, until it is killed.
type process struct {
	*Driver
	b   *bench
	ctx context.Context
	die context.CancelFunc
}

func (b *bench) process(change ...func(*Config)) *process {
	b.t.Helper()

	client, err := rack.New(rack.Config{
		Credentials: rack.Credentials{Host: "https://rack.test", Token: token}, Transport: b.rack.Transport(nil), Logger: zaptest.NewLogger(b.t),
	})
	require.NoError(b.t, err)

	config := Config{Rack: client, Version: "v0.0.0", Logger: zaptest.NewLogger(b.t)}
	for _, f := range change {
		f(&config)
	}

	p := &process{Driver: New(config), b: b}
	p.ctx, p.die = context.WithCancel(b.t.Context())

	return p
}

// run calls test with a process that ends with it.
func (b *bench) run(test func(p *process), change ...func(*Config)) {
	b.t.Helper()

	p := b.process(change...)
	defer p.end()

	test(p)
}

func (p *process) end() {
	p.die()
	p.Close()
}

func request(id string) driver.Request { return requestOf(id, class) }

func requestOf(id, data string) driver.Request {
	ref := driver.Ref{ProviderID: provider, RequestID: id}

	return driver.Request{Ref: ref, Identity: driver.NewIdentity(ref), TalosVersion: "v1.13.5", ClassData: data}
}

// patience is how long a machine may take.
const patience = time.Hour

// try runs a request's phases once, as the library does, and returns the first error.
func (p *process) try(req driver.Request, said ...func(string)) (driver.Plan, error) {
	plan, err := p.Plan(p.ctx, req)
	if err != nil {
		return plan, err
	}

	task := driver.Task{
		Request: req, Image: &picture{b: p.b}, Join: driver.Join{UserData: "apiUrl: grpc://omni?jointoken=canary-join"},
		Progress: func(text string) {
			for _, f := range said {
				f(text)
			}
		},
	}

	for _, phase := range plan.Phases {
		if err := phase.Ensure(p.ctx, task); err != nil {
			return plan, fmt.Errorf("%s: %w", phase.Name, err)
		}
	}

	return plan, nil
}

// make brings a request to its machine. Errors that the library tries again are tried again.
func (p *process) make(req driver.Request) (driver.Plan, error) {
	for began := time.Now(); ; {
		plan, err := p.try(req)
		if err == nil || p.ctx.Err() != nil || driver.KindOf(err) == driver.KindTerminal || time.Since(began) > patience {
			return plan, err
		}

		time.Sleep(max(time.Second, driver.PauseOf(err)))
	}
}

// remove takes a request's machine away.
func (p *process) remove(id string) error {
	for began := time.Now(); ; {
		done, err := p.Remove(p.ctx, request(id).Ref)
		if done || p.ctx.Err() != nil || time.Since(began) > patience {
			return err
		}

		if err == nil {
			return fmt.Errorf("Remove(%q) is not done, and does not say why", id)
		}

		time.Sleep(max(time.Second, driver.PauseOf(err)))
	}
}

// client is Oxide's own client, as an operator has it.
func (b *bench) client() *oxide.Client {
	b.t.Helper()

	c, err := oxide.NewClient(oxide.WithHost("https://rack.test"), oxide.WithToken(token), oxide.WithHTTPClient(httpClient(b.rack.Transport(nil))))
	require.NoError(b.t, err)

	return c
}

// objects are all that is in the rack's first project, as "kind name".
func (b *bench) objects() []string {
	b.t.Helper()

	c, ctx := b.client(), b.t.Context()

	var all []string

	for _, project := range []oxide.NameOrId{"default"} {
		instances, err := c.InstanceListAllPages(ctx, oxide.InstanceListParams{Project: project})
		require.NoError(b.t, err)

		for _, o := range instances {
			all = append(all, "instance "+string(o.Name))
		}

		disks, err := c.DiskListAllPages(ctx, oxide.DiskListParams{Project: project})
		require.NoError(b.t, err)

		for _, o := range disks {
			all = append(all, "disk "+string(o.Name))
		}

		snapshots, err := c.SnapshotListAllPages(ctx, oxide.SnapshotListParams{Project: project})
		require.NoError(b.t, err)

		for _, o := range snapshots {
			all = append(all, "snapshot "+string(o.Name))
		}

		images, err := c.ImageListAllPages(ctx, oxide.ImageListParams{Project: project})
		require.NoError(b.t, err)

		for _, o := range images {
			all = append(all, "image "+string(o.Name))
		}

		ips, err := c.FloatingIpListAllPages(ctx, oxide.FloatingIpListParams{Project: project})
		require.NoError(b.t, err)

		for _, o := range ips {
			all = append(all, "floating-ip "+string(o.Name))
		}
	}

	slices.Sort(all)

	return all
}

// kinds counts the objects of each kind.
func (b *bench) kinds() map[string]int {
	kinds := map[string]int{}

	for _, o := range b.objects() {
		kind, _, _ := strings.Cut(o, " ")
		kinds[kind]++
	}

	return kinds
}

// imageOnly is what may be left of a request: the image, which serves the next one.
func (b *bench) imageOnly() {
	b.t.Helper()

	kinds := b.kinds()
	delete(kinds, "image")
	require.Empty(b.t, kinds, "%v", b.objects())
}

// picture is a boot image.
type picture struct {
	b  *bench
	mu sync.Mutex
}

func (i *picture) Key() string { return key }

func (i *picture) URL() string { return "https://factory.test/" + key }

func (i *picture) Open(ctx context.Context) (io.ReadCloser, error) {
	i.mu.Lock()
	defer i.mu.Unlock()

	i.b.opened++

	if i.b.opened == i.b.breaks {
		half := bytes.NewReader(i.b.image[:len(i.b.image)/2])

		return io.NopCloser(io.MultiReader(half, iotest.ErrReader(io.ErrUnexpectedEOF))), ctx.Err()
	}

	return io.NopCloser(bytes.NewReader(i.b.image)), ctx.Err()
}

// dieAfter plays the death of the process around the call that is number n from now.
func (p *process) dieAfter(n int, lost bool) {
	p.b.rack.Ledger().CrashAfter(p.b.rack.Ledger().Calls()+n, lost, p.die)
}

func (b *bench) inject(f ledger.Fault) func() { return b.rack.Ledger().Inject(f) }
