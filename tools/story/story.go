// Package story tells the life of a set of machines: requested, provisioned, joined and matched; one rebooted, one switched
// off and on, one lost in the cloud, one removed from Omni; all deleted. It acts as an operator with omnictl would, through
// an administrator's client of Omni, and believes only what Omni and the cloud say. The commands demo and lab import it.
package story

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
)

// The annotations with which an operator asks for power and reboot of a machine.
const (
	powerAnnotation  = "omni-infra.dev/power"
	rebootAnnotation = "omni-infra.dev/reboot-id"
)

// Cloud is what the story does in the cloud, behind the provider's back.
type Cloud interface {
	// Machines returns the names of all machines that exist. A machine's name is its request's id.
	Machines(ctx context.Context) ([]string, error)
	// Remove takes a machine away, running or not.
	Remove(ctx context.Context, name string) error
}

// Config says whose life is told. Omni, Cloud, Provider and Screen are required.
type Config struct {
	// Omni is Omni's state with an administrator's rights.
	Omni  state.State
	Cloud Cloud
	// Provider is the id of the running provider.
	Provider string
	// Set is the id of the set of machines; "story" when empty.
	Set string
	// Machines is the size of the set; three when zero.
	Machines int
	// TalosVersion and ClassData go into the machines' requests; "1.13.5" and the class's defaults when empty.
	TalosVersion, ClassData string
	// Patience is how long a step may take; half a minute when zero.
	Patience time.Duration
	// Pause is called before the set is deleted, for a look around; nil goes on at once.
	Pause  func(ctx context.Context) error
	Screen *Screen
}

func (c *Config) setDefaults() error {
	if c.Omni == nil || c.Cloud == nil || c.Provider == "" || c.Screen == nil {
		return errors.New("story: Config needs Omni, Cloud, Provider and Screen")
	}

	if c.Machines < 0 {
		return fmt.Errorf("story of %d machines: want at least one", c.Machines)
	}

	if c.Machines == 0 {
		c.Machines = 3
	}

	if c.Set == "" {
		c.Set = "story"
	}

	if c.TalosVersion == "" {
		c.TalosVersion = "1.13.5"
	}

	if c.Patience == 0 {
		c.Patience = 30 * time.Second
	}

	return nil
}

// teller tells one story.
type teller struct {
	Config
	world *world
}

// step is one thing that happens. act does it, and lacks says what is still missing, "" when it has come true.
type step struct {
	title string
	act   func(ctx context.Context) error
	lacks func(rows []Row) string
}

// Tell runs the story to its end. An error names the step that failed, what was missing, and the state of the machines.
func Tell(ctx context.Context, cfg Config) error {
	if err := cfg.setDefaults(); err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	world, stop, err := watchWorld(ctx, cfg.Omni, cfg.Set, cfg.Screen.changed)
	if err != nil {
		return err
	}

	defer func() { cancel(); stop() }()

	t := &teller{Config: cfg, world: world}
	steps := t.steps()

	cfg.Screen.begin(fmt.Sprintf("%s of provider %q", count(cfg.Machines, "machine"), cfg.Provider), len(steps), cfg.Machines)

	defer cfg.Screen.end()

	for i, s := range steps {
		if i == len(steps)-farewell && cfg.Pause != nil {
			if err := cfg.Pause(ctx); err != nil {
				return err
			}
		}

		if err := t.do(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
	}

	return nil
}

// farewell is how many steps the end of the story has: the set goes.
const farewell = 2

func (t *teller) do(ctx context.Context, s step) error {
	ctx, cancel := context.WithTimeoutCause(ctx, t.Patience, fmt.Errorf("nothing more within %s", t.Patience))
	defer cancel()

	t.Screen.beginStep(s.title)

	if err := s.act(ctx); err != nil {
		return err
	}

	if err := t.world.await(ctx, s.lacks); err != nil {
		return err
	}

	t.Screen.endStep()

	return nil
}

// steps returns the whole story. Each step acts on a machine of its own, as far as there are enough.
func (t *teller) steps() []step {
	var chosen Row

	choose := func(n int, act func(context.Context, Row) error) func(context.Context) error {
		return func(ctx context.Context) error {
			rows := t.world.rows()
			if len(rows) == 0 {
				return errors.New("there is no machine to act on")
			}

			chosen = rows[n%len(rows)]
			t.Screen.name(chosen.Request)

			return act(ctx, chosen)
		}
	}
	same := func(act func(context.Context, Row) error) func(context.Context) error {
		return func(ctx context.Context) error {
			t.Screen.name(chosen.Request)

			return act(ctx, chosen)
		}
	}
	replaced := func(rows []Row) string {
		if _, ok := find(rows, chosen.Request); ok {
			return chosen.Request + " is still there"
		}

		return t.lacksUp(rows)
	}

	return []step{
		{"the provider tells Omni that it is there", t.awaitProvider, func([]Row) string { return "" }},
		{"a set is requested", t.request, t.lacksRequests},
		{"the provider makes the machines", nothing, t.lacksProvisioned},
		{"they boot, join Omni and are matched", nothing, t.lacksUp},
		{"one is rebooted", choose(0, t.annotate(rebootAnnotation, "story-1")), func(rows []Row) string {
			switch row, ok := find(rows, chosen.Request); {
			case !ok:
				return chosen.Request + " is gone"
			case row.Reboot != "story-1":
				return "the provider has not reported the reboot"
			case row.Drops == chosen.Drops:
				return "Omni has not seen the machine go"
			}

			return t.lacksUp(rows)
		}},
		{"one is switched off", choose(1, t.annotate(powerAnnotation, "off")), func(rows []Row) string {
			if row, _ := find(rows, chosen.Request); row.Power != "off" || row.Connected {
				return "the machine is still on"
			}

			return ""
		}},
		{"and on again", same(t.annotate(powerAnnotation, "on")), func(rows []Row) string {
			if row, _ := find(rows, chosen.Request); row.Power != "on" {
				return "the machine is still off"
			}

			return t.lacksUp(rows)
		}},
		{"one vanishes from the cloud and is replaced", choose(2, t.vanish), replaced},
		{"one is removed from Omni and is replaced", choose(0, t.unlink), replaced},
		{"the set is deleted", t.delete, t.lacksNothing},
		{"nothing is left in the cloud, nor in Omni", t.awaitNothing, func([]Row) string { return "" }},
	}
}

func nothing(context.Context) error { return nil }

// awaitProvider waits for the provider's schema, without which Omni takes no request for it.
func (t *teller) awaitProvider(ctx context.Context) error {
	_, err := t.Omni.WatchFor(ctx, infra.NewProviderStatus(t.Provider).Metadata(), state.WithEventTypes(state.Created, state.Updated))
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("provider %q has not registered: %w", t.Provider, context.Cause(ctx))
	}

	return err
}

func (t *teller) request(ctx context.Context) error {
	set := omni.NewMachineRequestSet(t.Set)
	spec := set.TypedSpec().Value
	spec.ProviderId = t.Provider
	spec.MachineCount = int32(t.Machines) //nolint:gosec // A flag of a demonstration.
	spec.TalosVersion = t.TalosVersion
	spec.ProviderData = t.ClassData

	return t.Omni.Create(ctx, set)
}

func (t *teller) annotate(key, value string) func(context.Context, Row) error {
	return func(ctx context.Context, row Row) error {
		_, err := safe.StateUpdateWithConflicts(ctx, t.Omni, infra.NewMachineRequest(row.Request).Metadata(),
			func(r *infra.MachineRequest) error {
				r.Metadata().Annotations().Set(key, value)

				return nil
			})

		return err
	}
}

func (t *teller) vanish(ctx context.Context, row Row) error { return t.Cloud.Remove(ctx, row.Request) }

func (t *teller) unlink(ctx context.Context, row Row) error {
	_, err := t.Omni.Teardown(ctx, siderolink.NewLink(row.UUID, nil).Metadata())

	return err
}

func (t *teller) delete(ctx context.Context) error {
	return t.Omni.TeardownAndDestroy(ctx, omni.NewMachineRequestSet(t.Set).Metadata())
}

func (t *teller) awaitNothing(ctx context.Context) error {
	for {
		left, err := t.left(ctx)
		if err == nil && len(left) == 0 {
			return nil
		}

		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("left: %s", strings.Join(left, ", ")), err)
		}
	}
}

// left returns the machines in the cloud, and the provider's links in Omni: a machine that joined once more when its request
// had gone already would leave one for ever.
func (t *teller) left(ctx context.Context) ([]string, error) {
	left, err := t.Cloud.Machines(ctx)
	if err != nil {
		return left, err
	}

	links, err := safe.StateListAll[*siderolink.Link](ctx, t.Omni,
		state.WithLabelQuery(resource.LabelEqual(omni.LabelInfraProviderID, t.Provider)))
	if err != nil {
		return left, err
	}

	for link := range links.All() {
		left = append(left, "link "+link.Metadata().ID())
	}

	return left, nil
}

func (t *teller) lacksRequests(rows []Row) string {
	if len(rows) < t.Machines {
		return fmt.Sprintf("%d of %d requested", len(rows), t.Machines)
	}

	return ""
}

func (t *teller) lacksProvisioned(rows []Row) string {
	return t.lacks(rows, "provisioned", Row.Provisioned)
}

func (t *teller) lacksUp(rows []Row) string { return t.lacks(rows, "up", Row.Up) }

func (t *teller) lacks(rows []Row, what string, is func(Row) bool) string {
	n := number(rows, is)
	if n == t.Machines && len(rows) == n {
		return ""
	}

	example := ""
	if i := slices.IndexFunc(rows, func(r Row) bool { return !is(r) }); i >= 0 {
		example = "; " + rows[i].String()
	}

	return fmt.Sprintf("%d of %d %s, %d requested%s", n, t.Machines, what, len(rows), example)
}

func (t *teller) lacksNothing(rows []Row) string {
	if len(rows) == 0 {
		return ""
	}

	return fmt.Sprintf("%s left; %s", count(len(rows), "machine"), rows[0])
}

func find(rows []Row, request string) (Row, bool) {
	if i := slices.IndexFunc(rows, func(r Row) bool { return r.Request == request }); i >= 0 {
		return rows[i], true
	}

	return Row{}, false
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}

	return fmt.Sprintf("%d %ss", n, what)
}
