package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// toyPlaces are the places of a toy cloud.
var toyPlaces = []string{"east", "west"}

const (
	// toyPatience is how long a toy waits for a place that is silent.
	toyPatience = 3 * time.Second
	// toyPlaceLabel is where a toy notes in a request's status which place it has chosen.
	toyPlaceLabel = "toy/place"
)

// toyUnseen says which places did not answer.
type toyUnseen struct{ places []string }

func (u *toyUnseen) Error() string { return "out of reach: " + strings.Join(u.places, ", ") }

// sees reports whether the error of a list says nothing against what it showed of a place.
func sees(err error, place string) bool {
	unseen, ok := errors.AsType[*toyUnseen](err)

	return ok && !slices.Contains(unseen.places, place)
}

func (c *toyCloud) Places() []string { return toyPlaces }

func (c *toyCloud) CutPlace(name string, silent bool) (restore func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.out[name] = silent

	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()

		delete(c.out, name)
	}, nil
}

func (c *toyCloud) refusalLocked(place string) error {
	if _, out := c.out[place]; out {
		return &toyUnseen{[]string{place}}
	}

	return nil
}

// operate is change for what is done to a machine, whose place has to be in reach.
func (c toyClient) operate(ctx context.Context, op, id string, effect func() error) error {
	return c.change(ctx, op, id, func() error {
		vm, err := c.cloud.findLocked(id)
		if err != nil {
			return err
		}

		if err := c.cloud.refusalLocked(vm.Place); err != nil {
			return err
		}

		return effect()
	})
}

// inReach returns the machines at places that answer, and an error if others do not.
func (c toyClient) inReach(ctx context.Context, all []ledger.Machine) ([]ledger.Machine, error) {
	c.cloud.mu.Lock()
	out := maps.Clone(c.cloud.out)
	c.cloud.mu.Unlock()

	if len(out) == 0 {
		return all, nil
	}

	if slices.Contains(slices.Collect(maps.Values(out)), true) {
		_ = sleep(ctx, toyPatience)
	}

	return slices.DeleteFunc(all, func(m ledger.Machine) bool {
		_, hidden := out[m.Place]

		return hidden
	}), &toyUnseen{slices.Sorted(maps.Keys(out))}
}

// place returns the place of a request's machine, which it has chosen by the last look and noted by then.
func (t toyProvider) place(ctx context.Context, id string) (place string, err error) {
	seen := slices.DeleteFunc(slices.Clone(toyPlaces), func(p string) bool { return t.unseen != nil && slices.Contains(t.unseen.places, p) })
	if len(seen) == 0 {
		return "", t.unseen
	}

	err = safe.StateModify(ctx, t.State, infra.NewMachineRequestStatus(id), func(s *infra.MachineRequestStatus) error {
		var noted bool

		if place, noted = s.Metadata().Labels().Get(toyPlaceLabel); !noted || t.flaw == changesPlace {
			place = seen[0]
			s.Metadata().Labels().Set(toyPlaceLabel, place)
		}

		return nil
	}, state.WithUpdateOwner(t.owner))

	return place, err
}

// makeAgain makes a machine again which is not seen.
func (t toyProvider) makeAgain(ctx context.Context, id, uuid string) error {
	_, err := t.cloud.list(ctx)
	if _, ok := errors.AsType[*toyUnseen](err); !ok {
		return err
	}

	for _, place := range toyPlaces {
		if sees(err, place) {
			machine, err := t.ensure(ctx, id, uuid, place)
			if err != nil {
				return fmt.Errorf("make it again: %w", err)
			}

			return t.cloud.start(ctx, machine.ID)
		}
	}

	return err
}
