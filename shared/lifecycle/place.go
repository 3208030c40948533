package lifecycle

import (
	"context"
	"fmt"
	"slices"

	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// placer returns the driver if its machines have places, else nil.
func (p *Provider) placer() driver.Placer {
	placer, _ := p.cfg.Driver.(driver.Placer) //nolint:errcheck // nil when it is none

	return placer
}

func (p *Provider) hasPlace(place string) bool {
	placer := p.placer()

	return placer != nil && slices.Contains(placer.Places(), place)
}

// recordedPlace returns the place of a request's machine, empty when none is recorded or the driver has no places.
func (p *Provider) recordedPlace(id string) string {
	if rec, ok := p.records.get(id); ok && p.placer() != nil {
		return rec.spec.Place
	}

	return ""
}

// isGone reports whether an operator has said that a place will not come back.
func (p *Provider) isGone(place string) bool { return slices.Contains(p.cfg.GonePlaces, place) }

// covers reports whether a look that could not see some places, none when unseen is nil, would have shown a machine that is
// recorded to be at a place. Without a record it can be anywhere. Of a place that the driver does not have nothing is known, unless it
// is gone: then nothing is there.
func (p *Provider) covers(unseen *driver.Unseen, place string) bool {
	if place == "" {
		return unseen == nil
	}

	if !p.hasPlace(place) {
		return p.isGone(place)
	}

	return !hides(unseen, place)
}

// judges reports whether a look would have shown a request's machine: it covers where that is recorded to be, and has hidden no
// place where something of it was seen last. A machine that somebody has moved may be there.
func (p *Provider) judges(unseen *driver.Unseen, id string) bool {
	return p.covers(unseen, p.recordedPlace(id)) && !slices.ContainsFunc(p.looks.placesOf(id), func(at string) bool { return hides(unseen, at) })
}

// hides reports whether a look could not see a place; one with a nil unseen has seen all.
func hides(unseen *driver.Unseen, place string) bool {
	if unseen == nil {
		return false
	}

	_, hidden := unseen.Places[place]

	return hidden
}

// place returns the recorded place of a request's machine. Without one it records a place and ends the turn, so that all that follows is
// done by that place's own workers. Nothing else is recorded or made before.
func (p *Provider) place(ctx context.Context, request *infra.MachineRequest, wish driver.Request) (string, error) {
	id := wish.RequestID

	if p.placer() == nil {
		return "", nil
	}

	if place := p.recordedPlace(id); place != "" && !p.isGone(place) {
		if !p.hasPlace(place) {
			return "", p.provisionFailed(ctx, request, "place", noSuchPlace(place))
		}

		return place, nil
	}

	place, err := p.choose(ctx, wish)
	if err != nil {
		return "", p.provisionFailed(ctx, request, "place", err)
	}

	if _, err := p.keep(ctx, id, func(r *recordSpec) { r.Place = place }); err != nil {
		return "", fmt.Errorf("record the place of %q in Omni: %w", id, err)
	}

	p.log.Info("machine is placed", zap.String("request", id), zap.String("place", place))

	return "", errPlaced
}

// errPlaced ends a turn that has recorded the place of a machine.
var errPlaced = fmt.Errorf("the place is recorded: %w", errChanged)

// choose returns where a machine is, or else where it is to be.
func (p *Provider) choose(ctx context.Context, wish driver.Request) (string, error) {
	rec, ok := p.records.get(wish.RequestID)

	// A release that recorded no places may have begun to make it. It is not made elsewhere before all places have been seen.
	if ok && (rec.spec.UUID != "" || rec.spec.Names != nil) {
		v, err := p.list(ctx)

		switch place := v.placeOf(wish.RequestID); {
		case err != nil:
			return "", err
		case place != "":
			return place, nil
		case v.unseen != nil:
			return "", fmt.Errorf("find out whether there is a machine already: %w", v.unseen)
		}
	}

	// Omni may have lost the record. What the places in reach have is known after one look.
	if !ok {
		if err := p.firstLook(ctx); err != nil {
			return "", err
		}
	}

	if at := p.looks.placesOf(wish.RequestID); !ok && len(at) > 0 {
		return at[0], nil
	}

	place, err := ask(ctx, p, p.cfg.CallTimeout, "placing", func(ctx context.Context) (string, error) { return p.placer().Place(ctx, wish) })
	if err != nil {
		return "", err
	}

	if !p.hasPlace(place) {
		return "", fmt.Errorf("internal error of the provider, please report it: it chose the place %q, and has only %q", place, p.placer().Places())
	}

	return place, nil
}

// firstLook sees to it that the places in reach have been looked at since the start.
func (p *Provider) firstLook(ctx context.Context) error {
	select {
	case p.looking <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}

	defer func() { <-p.looking }()

	if p.looks.begun() {
		return nil
	}

	_, err := p.list(ctx)

	return err
}

// learnPlace records where a machine was seen, if that is not recorded: a release without places made it, its place has another name
// now, or somebody has moved it.
func (p *Provider) learnPlace(ctx context.Context, id string) error {
	rec, ok := p.records.get(id)
	if !ok || !rec.ours() || p.placer() == nil {
		return nil
	}

	// One of which there is something at two places stays where it is recorded; its removal asks both.
	at := p.looks.placesOf(id)
	if machine, ok := p.looks.machine(id); !ok || len(at) != 1 || at[0] != machine.Place || at[0] == rec.spec.Place || !p.hasPlace(at[0]) {
		return nil
	}

	_, err := p.keep(ctx, id, func(r *recordSpec) { r.Place = at[0] })

	return wrap(err, "record the place of %q in Omni", id)
}

// removeFromCloud asks the place of a request's machine to remove it; all places when none is recorded, or something of it was
// seen elsewhere.
func (p *Provider) removeFromCloud(ctx context.Context, id string) (done bool, err error) {
	if p.placer() != nil {
		// Somebody may have moved the machine while no process ran. A cloud that cannot be listed is not in the way of a removal.
		if err := p.firstLook(ctx); err != nil && ctx.Err() != nil {
			return false, err
		}
	}

	place, err := p.placeOfRemoval(ctx, id)
	if err != nil {
		return false, err
	}

	placer, remove := p.placer(), p.cfg.Driver.Remove

	switch elsewhere := slices.ContainsFunc(p.looks.placesOf(id), func(at string) bool { return at != place }); {
	case place != "" && !p.hasPlace(place) && !p.isGone(place):
		return false, noSuchPlace(place)
	case place == "" || elsewhere:
		// All places are asked.
	case p.isGone(place):
		p.log.Warn("machine is given up, not removed: its place is gone", zap.String("request", id), zap.String("place", place))

		return true, nil
	default:
		remove = func(ctx context.Context, ref driver.Ref) (bool, error) { return placer.RemoveFrom(ctx, ref, place) }
	}

	done, err = change(ctx, p, p.cfg.CallTimeout, "removing the machine", func(ctx context.Context) (bool, error) { return remove(ctx, p.ref(id)) })
	if err != nil || !done {
		return done, err
	}

	return p.discard(ctx, id)
}

// placeOfRemoval returns the recorded place of a request's machine. When that is not configured any more, and the whole machine was seen at
// another one, that is recorded first: it has another name now, or the machine was moved. What is left there alone says nothing of the machine.
func (p *Provider) placeOfRemoval(ctx context.Context, id string) (string, error) {
	place := p.recordedPlace(id)

	machine, ok := p.looks.machine(id)
	if place == "" || p.hasPlace(place) || p.isGone(place) || !ok || machine.Incomplete || !p.hasPlace(machine.Place) {
		return place, nil
	}

	if _, err := p.keep(ctx, id, func(r *recordSpec) { r.Place = machine.Place }); err != nil {
		return "", fmt.Errorf("record the place of %q in Omni: %w", id, err)
	}

	return machine.Place, nil
}

func noSuchPlace(place string) error {
	return fmt.Errorf("the provider is not configured for the place %q, where the machine was made: configure it again; "+
		"if it will not come back, say so with --gone-places, and its machines are given up", place)
}
