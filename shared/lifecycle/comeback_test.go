package lifecycle

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// gaps is an Omni of which watches are all that there is: each fails while it is out of reach, and others when they are cut.
type gaps struct {
	state.CoreState

	// lag is how long a full look takes.
	lag time.Duration

	mu     sync.Mutex
	down   map[resource.Type]bool
	cuts   map[resource.Type]chan struct{}
	opened map[resource.Type][]time.Time
}

func (g *gaps) WatchKindAggregated(ctx context.Context, kind resource.Kind, to chan<- []state.Event, _ ...state.WatchKindOption) error {
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.down[kind.Type()] {
		return errors.New("out of reach")
	}

	cut := make(chan struct{})
	g.cuts[kind.Type()] = cut
	g.opened[kind.Type()] = append(g.opened[kind.Type()], time.Now())

	go func() {
		events := []state.Event{{Type: state.Bootstrapped}}

		time.Sleep(g.lag)

		for {
			select {
			case to <- events:
			case <-ctx.Done():
				return
			}

			select {
			case <-cut:
				events = []state.Event{{Type: state.Errored, Error: errors.New("cut")}}
			case <-ctx.Done():
				return
			}
		}
	}()

	return nil
}

// set brings watches down, or lets them come up again.
func (g *gaps) set(down bool, kinds ...resource.Type) {
	g.mu.Lock()
	defer g.mu.Unlock()

	for _, kind := range kinds {
		g.down[kind] = down

		if cut := g.cuts[kind]; down && cut != nil {
			close(cut)
			delete(g.cuts, kind)
		}
	}
}

func (g *gaps) last(t *testing.T, kind resource.Type) (since time.Duration, times int) {
	t.Helper()

	g.mu.Lock()
	defer g.mu.Unlock()

	require.NotEmpty(t, g.opened[kind])

	return time.Since(g.opened[kind][len(g.opened[kind])-1]), len(g.opened[kind])
}

// follow runs mirrors of two kinds, "a" and "b", as the provider does.
func follow(t *testing.T, f func(g *gaps)) {
	synctest.Test(t, func(t *testing.T) {
		g := &gaps{down: map[resource.Type]bool{}, cuts: map[resource.Type]chan struct{}{}, opened: map[resource.Type][]time.Time{}}
		back := &comeback{}

		var wg sync.WaitGroup
		defer wg.Wait()

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		for _, kind := range []resource.Type{"a", "b"} {
			m := newMirror[*record]("ns", kind, nil, func(_, _ *record) {})
			m.back = back

			wg.Go(func() { m.run(ctx, g, func(error) {}) })
		}

		time.Sleep(time.Minute)
		f(g)
	})
}

func TestMirrorThatIsBackHurriesTheOthers(t *testing.T) {
	follow(t, func(g *gaps) {
		// The longer one waits, the longer its pauses: one is in the midst of a long one when the other is cut off for a moment.
		g.set(true, "a")
		time.Sleep(5 * time.Minute)

		g.set(true, "b")
		g.set(false, "a", "b")
		time.Sleep(time.Second)
		synctest.Wait()

		a, _ := g.last(t, "a")
		b, _ := g.last(t, "b")
		assert.Less(t, b, time.Second)
		assert.Equal(t, b, a, "both are back at the same time")
	})
}

func TestMirrorsThatComeAndGoDoNotHurryEachOtherForEver(t *testing.T) {
	follow(t, func(g *gaps) {
		for range 6000 {
			g.set(true, "a", "b")
			g.set(false, "a", "b")
			time.Sleep(50 * time.Millisecond)
		}

		// In five minutes, with pauses of up to half a minute.
		_, times := g.last(t, "a")
		assert.Less(t, times, 30)
	})
}
