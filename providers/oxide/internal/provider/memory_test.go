package provider

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/rack"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	sim "github.com/omni-infra/omni-infra-providers/sim/oxide"
)

const (
	largeSize = 2 << 30
	// every is the distance of the parts of the large image that are not zero.
	every = 8 * chunkSize
)

// large is a sparse image of 2 GiB that is made as it is read.
type large struct{ opened int }

func (*large) Key() string { return key }

func (*large) URL() string { return "https://factory.test/large" }

func (l *large) Open(context.Context) (io.ReadCloser, error) {
	l.opened++

	return io.NopCloser(&largeReader{}), nil
}

type largeReader struct{ at int }

func (r *largeReader) Read(p []byte) (int, error) {
	n := min(len(p), largeSize-r.at, chunkSize-r.at%chunkSize)
	if n == 0 {
		return 0, io.EOF
	}

	clear(p[:n])

	switch {
	case r.at == 0:
		// The header of a partition table, which names the last sector.
		copy(p[sectorSize:], gptSignature)
		binary.LittleEndian.PutUint64(p[sectorSize+copyOffset:], largeSize/sectorSize-1)
	case r.at/chunkSize*chunkSize%every == 0:
		for i := range n {
			p[i] = byte(r.at+i) | 1
		}
	}

	r.at += n

	return n, nil
}

// forgetful takes the parts of an import, and keeps nothing of them: only what the provider keeps is in memory.
type forgetful struct {
	http.RoundTripper
	parts, bytes atomic.Int64
}

func (f *forgetful) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(r.URL.Path, "/bulk-write") {
		return f.RoundTripper.RoundTrip(r)
	}

	n, err := io.Copy(io.Discard, r.Body)
	f.parts.Add(1)
	f.bytes.Add(n)

	return &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(nil)), Request: r}, err
}

func TestALargeImageNeedsLittleMemory(t *testing.T) {
	r := sim.New(sim.Options{Token: token})
	defer r.Close()

	transport := &forgetful{RoundTripper: r.Transport(nil)}

	client, err := rack.New(rack.Config{Credentials: rack.Credentials{Host: "https://rack.test", Token: token}, Transport: transport, InFlight: 16})
	require.NoError(t, err)

	d := New(Config{Rack: client})
	defer d.Close()

	p := &process{Driver: d, b: &bench{t: t, rack: r}, ctx: t.Context(), die: func() {}}
	source := &large{}

	// What the heap may grow to before it is collected counts too.
	runtime.GC()
	debug.FreeOSMemory()

	var before, now runtime.MemStats

	runtime.ReadMemStats(&before)

	peak := make(chan uint64)
	done := make(chan struct{})

	go func() {
		most := uint64(0)

		for {
			select {
			case <-done:
				peak <- most

				return
			case <-time.After(5 * time.Millisecond):
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapInuse-min(now.HeapInuse, before.HeapInuse))
			}
		}
	}()

	plan, err := p.Plan(p.ctx, request("r-1"))
	require.NoError(t, err)
	require.NoError(t, plan.Phases[0].Ensure(p.ctx, driver.Task{Request: request("r-1"), Image: source, Progress: func(string) {}}))
	close(done)

	require.Less(t, <-peak, uint64(64<<20))
	require.Equal(t, 1, source.opened, "the image says how large it is")
	require.EqualValues(t, largeSize/every, transport.parts.Load(), "what is zero is not sent")
	t.Logf("%d parts, %d MiB sent", transport.parts.Load(), transport.bytes.Load()>>20)

	small := requestOf("r-2", "{project: default, boot_disk_size: 1}")
	plan, err = p.Plan(p.ctx, small)
	require.NoError(t, err)

	err = plan.Phases[0].Ensure(p.ctx, driver.Task{Request: small, Image: source, Progress: func(string) {}})
	require.ErrorContains(t, err, "boot_disk_size: got 1 GiB, but the Talos image has 2 GiB: want 2 or more")
	require.Equal(t, driver.KindTerminal, driver.KindOf(err))

	huge := driver.Task{Request: small, Image: source, Join: driver.Join{UserData: strings.Repeat("x", 32<<10+1)}, Progress: func(string) {}}
	err = plan.Phases[0].Ensure(p.ctx, huge)
	require.ErrorContains(t, err, "32769 bytes")
	require.Equal(t, driver.KindTerminal, driver.KindOf(err))
	require.Equal(t, map[string]int{"image": 1}, p.b.kinds(), "nothing else is made")
	require.NoError(t, p.remove("r-1"))
}
