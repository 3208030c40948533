package hypervisor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connectiontest"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

// diskImage is a boot image in memory: a disk with a partition table, and holes.
type diskImage struct {
	// size is that of the disk; diskImageSize when zero.
	size   int
	opened atomic.Int32
	// read stands between the content and who reads it, when not nil.
	read func(content io.Reader) io.Reader
}

const diskImageSize = 20<<20 + 512

func diskContent(size int) []byte {
	content := make([]byte, size)
	copy(content[512:], "EFI PART")
	binary.LittleEndian.PutUint64(content[512+32:], uint64(size/512-1))
	copy(content[size/4:], "in the middle")
	copy(content[size-512:], "EFI PART")

	return content
}

func (i *diskImage) Key() string { return "talos-v1.13.5-nocloud-amd64" }

func (i *diskImage) URL() string { return "https://factory.example.org/talos" }

func (i *diskImage) Open(context.Context) (io.ReadCloser, error) {
	i.opened.Add(1)

	size := cmp.Or(i.size, diskImageSize)

	var r io.Reader = bytes.NewReader(diskContent(size))
	if i.read != nil {
		r = i.read(r)
	}

	return &fetched{Reader: r, total: int64(size)}, nil
}

// fetched is a reader that tells how far it is, as that of package bootasset does.
type fetched struct {
	io.Reader

	read, total int64
}

func (f *fetched) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	f.read += int64(n)

	return n, err
}

func (f *fetched) Progress() (int64, int64) { return f.read, f.total }

func (*fetched) Close() error { return nil }

// slowly gives out the content a mebibyte each second.
func slowly(content io.Reader) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		time.Sleep(time.Second)

		return content.Read(p[:min(len(p), 1<<20)])
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// imageLab is a simulated hypervisor with pools of several types, and what uses it.
type imageLab struct {
	t       *testing.T
	s       *sim.Hypervisor
	witness *sim.Connect
}

func inImageLab(t *testing.T, opts sim.Options, test func(l *imageLab)) {
	t.Helper()

	if opts.Pools == nil {
		opts.Pools = []sim.Pool{{Name: "files"}, {Name: "lvm", Type: "logical"}, {Name: "zfs", Type: "zfs"}, {Name: "ceph", Type: "rbd"}}
	}

	synctest.Test(t, func(t *testing.T) {
		s := sim.New(opts)
		defer s.Close()

		l := &imageLab{t: t, s: s}
		l.reconnect()

		defer func() { _, _ = l.witness.Close() }()

		test(l)
	})
}

// reconnect gives the witness a new connection.
func (l *imageLab) reconnect() {
	if l.witness != nil {
		_, _ = l.witness.Close()
	}

	var err error
	l.witness, err = l.s.Connect()
	require.NoError(l.t, err)
}

// host is a provider's host; it ends with the test or by Close.
func (l *imageLab) host(config Config) *Host {
	config.Name, config.Open = "alpha", connectiontest.Open(l.s.Client())

	h := New(config)
	l.t.Cleanup(h.Close)

	return h
}

func (l *imageLab) request(id string) driver.Request {
	ref := driver.Ref{ProviderID: "libvirt", RequestID: id}

	return driver.Request{Ref: ref, Identity: driver.NewIdentity(ref), Set: "set", TalosVersion: "v1.13.5"}
}

// make makes the machine of a request up to its start.
func (l *imageLab) make(ctx context.Context, h *Host, req driver.Request, class string, source driver.Image, progress func(string)) error {
	data, err := classdata.Decode[machine.ClassData](class + "\ncores: 1\nmemory: 1024\ndisk_size: 1")
	require.NoError(l.t, err)

	if err := h.Suits(ctx, req, data); err != nil {
		return err
	}

	b := h.NewBuilder(req, data)
	task := driver.Task{Request: req, Image: source, Join: driver.Join{UserData: "--- # a secret token"}, Progress: progress}

	for _, step := range []func(context.Context, driver.Task) error{b.EnsureImage, b.CreateVolumes, b.CreateSeed, b.DefineDomain, b.StartDomain} {
		if err := step(ctx, task); err != nil {
			return err
		}
	}

	return nil
}

func (l *imageLab) remove(h *Host, req driver.Request) { removed(l.t.Context(), l.t, h, req.Ref) }

// volumes are those of a pool, as the witness sees them.
func (l *imageLab) volumes(pool string) []string {
	p, err := l.witness.LookupStoragePoolByName(pool)
	require.NoError(l.t, err)
	require.NoError(l.t, p.Refresh(0))

	names, err := p.ListStorageVolumes()
	require.NoError(l.t, err)
	require.NoError(l.t, p.Free())

	return names
}

// pathOf is where a volume is.
func (l *imageLab) pathOf(pool, name string) string {
	p, err := l.witness.LookupStoragePoolByName(pool)
	require.NoError(l.t, err)

	v, err := p.LookupStorageVolByName(name)
	require.NoError(l.t, err)

	where, err := v.GetPath()
	require.NoError(l.t, err)

	return where
}

// read returns the beginning of a volume, and the size of all of it.
func (l *imageLab) read(pool, name string, length uint64) (content []byte, size uint64) {
	p, err := l.witness.LookupStoragePoolByName(pool)
	require.NoError(l.t, err)

	v, err := p.LookupStorageVolByName(name)
	require.NoError(l.t, err)

	info, err := v.GetInfo()
	require.NoError(l.t, err)

	s, err := l.witness.NewStream(0)
	require.NoError(l.t, err)
	require.NoError(l.t, v.Download(s, 0, length, 0))

	buffer := make([]byte, 1<<20)

	for {
		n, err := s.Recv(buffer)
		if n == 0 {
			break
		}

		require.NoError(l.t, err)

		content = append(content, buffer[:n]...)
	}

	require.NoError(l.t, s.Finish())

	return content, info.Capacity
}

func (l *imageLab) domains() []string {
	all, err := l.witness.ListAllDomains(0)
	require.NoError(l.t, err)

	names := make([]string, len(all))
	for i := range all {
		names[i], err = all[i].GetName()
		require.NoError(l.t, err)
	}

	return names
}

func isImage(name string) bool { return strings.HasPrefix(name, "omni-image-") }

func quiet(string) {}
