package control_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/require"
)

// history is a state that remembers, in order, what was done to it.
type history struct {
	state.CoreState

	mu     sync.Mutex
	last   map[string]resource.Resource
	events []event
}

// event is one change of a resource. Step is created, kept, torn or gone.
type event struct {
	at                    time.Time
	kind, id, step, owner string
	finalizers, labels    []string
}

func newHistory(st state.CoreState) *history {
	return &history{CoreState: st, last: map[string]resource.Resource{}}
}

func (h *history) Create(ctx context.Context, res resource.Resource, opts ...state.CreateOption) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	err := h.CoreState.Create(ctx, res, opts...)
	if err == nil {
		h.note(ctx, res.Metadata(), "created")
	}

	return err
}

func (h *history) Update(ctx context.Context, res resource.Resource, opts ...state.UpdateOption) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	err := h.CoreState.Update(ctx, res, opts...)
	if err == nil {
		h.note(ctx, res.Metadata(), "kept")
	}

	return err
}

func (h *history) Destroy(ctx context.Context, ptr resource.Pointer, opts ...state.DestroyOption) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	err := h.CoreState.Destroy(ctx, ptr, opts...)
	if err == nil {
		h.add(ptr, "gone", nil)
	}

	return err
}

func (h *history) note(ctx context.Context, ptr resource.Pointer, step string) {
	res, err := h.CoreState.Get(ctx, ptr)
	if err != nil {
		return
	}

	if res.Metadata().Phase() == resource.PhaseTearingDown {
		step = "torn"
	}

	h.add(ptr, step, res.Metadata())
}

func (h *history) add(ptr resource.Pointer, step string, md *resource.Metadata) {
	kind, _, _ := strings.Cut(ptr.Type(), ".")
	e := event{at: time.Now(), kind: kind, id: ptr.ID(), step: step}

	if md != nil {
		e.owner = short(md.Owner())

		for _, finalizer := range *md.Finalizers() {
			e.finalizers = append(e.finalizers, short(finalizer))
		}

		for _, key := range slices.Sorted(maps.Keys(md.Labels().Raw())) {
			label := strings.TrimPrefix(key, omni.SystemLabelPrefix)
			if value, _ := md.Labels().Get(key); value != "" {
				label += "=" + value
			}

			if key != omni.MachineAddressLabel {
				e.labels = append(e.labels, label)
			}
		}

		slices.Sort(e.finalizers)
	}

	h.events = append(h.events, e)
}

func short(controller string) string {
	return strings.NewReplacer("Controller", "", ".omni.sidero.dev", "", cloud+".Provision", "provider").Replace(controller)
}

var named = regexp.MustCompile(`\b(pool|enc|demo-control-planes|demo-workers)-[a-z0-9]{6}\b|[0-9a-f]{8}-[0-9a-f-]{27}`)

// take returns the events of some kinds since the last call, with random names replaced by numbers.
func (h *history) take(kinds ...string) []event {
	h.mu.Lock()
	defer h.mu.Unlock()

	names, counts := map[string]string{}, map[string]int{}
	rename := func(s string) string {
		return named.ReplaceAllStringFunc(s, func(name string) string {
			if names[name] == "" {
				base := "machine"
				if m := named.FindStringSubmatch(name); m[1] != "" {
					base = m[1]
				}

				counts[base]++
				names[name] = fmt.Sprintf("%s-%d", base, counts[base])
			}

			return names[name]
		})
	}

	var taken []event

	for _, e := range h.events {
		if slices.Contains(kinds, e.kind) {
			e.id = rename(e.id)

			for i := range e.labels {
				e.labels[i] = rename(e.labels[i])
			}

			slices.Sort(e.labels)

			taken = append(taken, e)
		}
	}

	h.events = nil

	return taken
}

// moment is what ends a block of a golden history: a time without events.
const moment = 700 * time.Millisecond

// digest returns the golden form of events; testdata/README.md says what it is.
func digest(events []event) []string {
	var (
		lines []string
		last  time.Time
		known = map[string]event{}
		block map[string][]event
	)

	flush := func() {
		var printed []string

		for _, key := range slices.Sorted(maps.Keys(block)) {
			if line := digestObject(key, block[key], known); line != "" {
				printed = append(printed, strings.Replace(key, "\x00", "/", 1)+": "+line)
			}
		}

		if len(lines) > 0 && len(printed) > 0 {
			lines = append(lines, "")
		}

		lines = append(lines, printed...)
		block = map[string][]event{}
	}

	block = map[string][]event{}

	for _, e := range events {
		if e.at.Sub(last) > moment {
			flush()
		}

		last = e.at
		key := e.kind + "\x00" + e.id
		steps := block[key]

		if n := len(steps); n > 0 && (steps[n-1].step == e.step || (steps[n-1].step == "created" && e.step == "kept")) {
			e.step = steps[n-1].step
			steps[n-1] = e
		} else {
			steps = append(steps, e)
		}

		block[key] = steps
	}

	flush()

	return lines
}

func digestObject(key string, steps []event, known map[string]event) string {
	var parts []string

	for i, e := range steps {
		old, seen := known[key]
		last := i+1 == len(steps) || steps[i+1].step != "gone"

		if e.step == "gone" {
			delete(known, key)

			parts = append(parts, e.step)

			continue
		}

		sameLabels := seen && slices.Equal(old.labels, e.labels)
		if e.step == "kept" && sameLabels && slices.Equal(old.finalizers, e.finalizers) && old.step != "torn" {
			continue
		}

		part := e.step
		if e.step == "created" && e.owner != "" {
			part += " by " + e.owner
		}

		if last {
			part += " fin=[" + strings.Join(e.finalizers, " ") + "]"

			if !sameLabels && len(e.labels) > 0 {
				part += " labels=[" + strings.Join(e.labels, " ") + "]"
			}
		}

		known[key] = e
		parts = append(parts, part)
	}

	return strings.Join(parts, "; ")
}

// requireGolden compares events with a golden history.
func (w *world) requireGolden(name string, events []event) {
	w.t.Helper()

	data, err := os.ReadFile(filepath.Join("testdata", name+".golden"))
	require.NoError(w.t, err)

	text, orders, _ := strings.Cut(string(data), "\norder: ")
	require.Equal(w.t, strings.TrimSpace(text), strings.Join(digest(events), "\n"))

	for order := range strings.SplitSeq(orders, "\norder: ") {
		at := -1

		for point := range strings.SplitSeq(strings.TrimSpace(order), " < ") {
			found := slices.IndexFunc(events, func(e event) bool { return e.kind+"/"+e.id+" "+e.step == point })
			require.Greater(w.t, found, at, "%s comes too early or never in %s", point, order)

			at = found
		}
	}
}
