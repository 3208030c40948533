package story

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
)

// Row is what Omni knows of one machine of the set.
type Row struct {
	Request string
	// Leaving says that the request is being torn down.
	Leaving bool
	// Stage is the request's stage in lower case; Status and Error are the provider's words.
	Stage, Status, Error string
	// UUID is set once Omni has matched a machine with the request.
	UUID string
	// Connected says that Omni can reach the machine now, and Drops how often it lost it.
	Connected bool
	Drops     int
	// Power is "on", "off", or empty while the provider has not said.
	Power string
	// Reboot is the id of the last reboot.
	Reboot string
}

// Provisioned says that the provider is done with the machine.
func (r Row) Provisioned() bool { return r.Stage == "provisioned" && !r.Leaving }

// Up says that the machine is matched and can be reached.
func (r Row) Up() bool { return r.Provisioned() && r.UUID != "" && r.Connected }

// State says in a word or two where the machine is.
func (r Row) State() string {
	switch {
	case r.Leaving:
		return "leaving"
	case r.Power == "off":
		return "off"
	case r.Up():
		return "up"
	case r.UUID != "":
		return "unreachable"
	case r.Stage == "provisioned":
		return "made"
	case r.Stage == "":
		return "requested"
	default:
		return r.Stage
	}
}

// String returns the row in a line.
func (r Row) String() string {
	parts := []string{r.Request, r.State()}

	if r.Status != "" {
		parts = append(parts, r.Status)
	}

	if r.Error != "" {
		parts = append(parts, "error: "+r.Error)
	}

	return strings.Join(parts, ": ")
}

// world is what Omni says of the set's machines, kept up to date by watches.
type world struct {
	set      string
	onChange func([]Row)

	mu       sync.Mutex
	broken   error
	changed  chan struct{}
	now      []Row
	order    []string // of the set's requests, those that were requested first first
	requests map[string]*infra.MachineRequest
	statuses map[string]*infra.MachineRequestStatus
	machines map[string]*omni.Machine
	observed map[string]*infra.MachineStatus
	drops    map[string]int
	// byRequest has the machines by the requests that they are matched with.
	byRequest map[string]*omni.Machine
}

// watchWorld starts the watches and returns once each has sent what there is. After ctx has ended, stop waits for them.
func watchWorld(ctx context.Context, st state.State, set string, onChange func([]Row)) (w *world, stop func(), err error) {
	w = &world{
		set: set, onChange: onChange, changed: make(chan struct{}),
		requests: map[string]*infra.MachineRequest{},
		statuses: map[string]*infra.MachineRequestStatus{},
		machines: map[string]*omni.Machine{},
		observed: map[string]*infra.MachineStatus{},
		drops:    map[string]int{},

		byRequest: map[string]*omni.Machine{},
	}

	var wg sync.WaitGroup

	events := make(chan state.Event)

	for _, kind := range []resource.Kind{
		resource.NewMetadata(resources.InfraProviderNamespace, infra.MachineRequestType, "", resource.VersionUndefined),
		resource.NewMetadata(resources.InfraProviderNamespace, infra.MachineRequestStatusType, "", resource.VersionUndefined),
		resource.NewMetadata(resources.DefaultNamespace, omni.MachineType, "", resource.VersionUndefined),
		resource.NewMetadata(resources.InfraProviderNamespace, infra.InfraMachineStatusType, "", resource.VersionUndefined),
	} {
		if err := st.WatchKind(ctx, kind, events, state.WithBootstrapContents(true)); err != nil {
			return nil, nil, fmt.Errorf("watch %s: %w", kind.Type(), err)
		}
	}

	wg.Go(func() {
		for {
			select {
			case event := <-events:
				w.apply(event)
			case <-ctx.Done():
				return
			}
		}
	})

	return w, wg.Wait, nil
}

func (w *world) apply(event state.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()

	gone := event.Type == state.Destroyed

	switch event.Type {
	case state.Errored:
		w.broken = fmt.Errorf("watch Omni: %w", event.Error)
	case state.Created, state.Updated, state.Destroyed:
		switch res := event.Resource.(type) {
		case *infra.MachineRequest:
			_, known := w.requests[res.Metadata().ID()]
			keep(w.requests, res, gone)

			if gone || !known {
				w.sortLocked()
			}
		case *infra.MachineRequestStatus:
			keep(w.statuses, res, gone)
		case *omni.Machine:
			w.countDrop(res)
			keep(w.machines, res, gone)
			w.matchLocked(res, gone)
		case *infra.MachineStatus:
			keep(w.observed, res, gone)
		}
	case state.Bootstrapped, state.Noop:
		return
	}

	w.now = w.rowsLocked()
	w.onChange(w.now)
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *world) countDrop(now *omni.Machine) {
	id := now.Metadata().ID()

	if before, ok := w.machines[id]; ok && before.TypedSpec().Value.Connected && !now.TypedSpec().Value.Connected {
		w.drops[id]++
	}
}

func keep[T resource.Resource](all map[string]T, res T, gone bool) {
	if gone {
		delete(all, res.Metadata().ID())
	} else {
		all[res.Metadata().ID()] = res
	}
}

// rows returns the set's machines. They are not to be changed.
func (w *world) rows() []Row {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.now
}

func (w *world) matchLocked(m *omni.Machine, gone bool) {
	request, ok := m.Metadata().Labels().Get(omni.LabelMachineRequest)

	switch {
	case !ok:
	case !gone:
		w.byRequest[request] = m
	case w.byRequest[request] != nil && w.byRequest[request].Metadata().ID() == m.Metadata().ID():
		delete(w.byRequest, request)
	}
}

func (w *world) sortLocked() {
	requests := slices.SortedFunc(maps.Values(w.requests), func(a, b *infra.MachineRequest) int {
		return cmp.Or(a.Metadata().Created().Compare(b.Metadata().Created()), cmp.Compare(a.Metadata().ID(), b.Metadata().ID()))
	})

	w.order = w.order[:0]

	for _, request := range requests {
		if set, _ := request.Metadata().Labels().Get(omni.LabelMachineRequestSet); set == w.set {
			w.order = append(w.order, request.Metadata().ID())
		}
	}
}

func (w *world) rowsLocked() []Row {
	rows := make([]Row, 0, len(w.order))
	for _, id := range w.order {
		rows = append(rows, w.rowLocked(w.requests[id], w.byRequest[id]))
	}

	return rows
}

func (w *world) rowLocked(request *infra.MachineRequest, machine *omni.Machine) Row {
	row := Row{Request: request.Metadata().ID(), Leaving: request.Metadata().Phase() == resource.PhaseTearingDown}

	if status, ok := w.statuses[row.Request]; ok {
		spec := status.TypedSpec().Value
		row.Stage, row.Status, row.Error = strings.ToLower(spec.Stage.String()), spec.Status, spec.Error
	}

	if machine == nil {
		return row
	}

	row.UUID = machine.Metadata().ID()
	row.Connected = machine.TypedSpec().Value.Connected
	row.Drops = w.drops[row.UUID]

	if observed, ok := w.observed[row.UUID]; ok {
		spec := observed.TypedSpec().Value
		row.Reboot = spec.LastRebootId

		switch spec.PowerState {
		case specs.InfraMachineStatusSpec_POWER_STATE_ON:
			row.Power = "on"
		case specs.InfraMachineStatusSpec_POWER_STATE_OFF:
			row.Power = "off"
		case specs.InfraMachineStatusSpec_POWER_STATE_UNKNOWN:
		}
	}

	return row
}

// await returns nil once lacks returns "". Its error says what was still missing when ctx ended.
func (w *world) await(ctx context.Context, lacks func([]Row) string) error {
	for {
		w.mu.Lock()
		missing, broken, changed := lacks(w.now), w.broken, w.changed
		w.mu.Unlock()

		if missing == "" || broken != nil {
			return broken
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(errors.New(missing), context.Cause(ctx))
		}
	}
}

// seconds prints a duration as the screens do.
func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
