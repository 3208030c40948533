package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

// sites is a driver with several places, each of which can be cut off. Its machines are entries "place/request" of the cloud's map.
type sites struct {
	*cloud

	mu     sync.Mutex
	places []string
	// broken says what is wrong with a place: cut or hung.
	broken map[string]string
	// choose stands in for the choice, which is the first place in reach.
	choose func(driver.Request) (string, error)
	// before stands before each call.
	before func(ctx context.Context, call, request string) error
}

const (
	// cut places refuse each call; hung ones answer none.
	cut  = "cut"
	hung = "hung"

	// patience is how long the driver waits for a place where others have answered.
	patience = 10 * time.Second
)

// withSites gives the world such a driver.
func withSites(s **sites, places ...string) func(*world) {
	return func(w *world) {
		*s = &sites{cloud: w.cloud, places: places, broken: map[string]string{}}
		w.driver = *s
	}
}

// runSites is run with places a, b and c.
func runSites(t *testing.T, f func(w *world, s *sites)) {
	var s *sites

	run(t, func(w *world) { f(w, s) }, withSites(&s, "a", "b", "c"))
}

func bySites(s *sites) func(*lifecycle.Config) {
	return func(c *lifecycle.Config) { c.Driver = s }
}

// set says what is wrong with a place from now on; nothing is when it is empty.
func (s *sites) set(place, wrong string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.broken[place] = wrong
}

// configure gives the driver other places, as another configuration does.
func (s *sites) configure(places ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.places = places
}

// at sends the requests that are placed from now on to a place.
func (s *sites) at(place string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.choose = func(driver.Request) (string, error) { return place, nil }
}

func (s *sites) Places() []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Clone(s.places)
}

// reach calls a place.
func (s *sites) reach(ctx context.Context, place string) error {
	s.mu.Lock()
	wrong := s.broken[place]
	s.mu.Unlock()

	switch wrong {
	case cut:
		return errors.New("no route to host")
	case hung:
		<-ctx.Done()

		return context.Cause(ctx)
	default:
		return ctx.Err()
	}
}

func (s *sites) begin(ctx context.Context, call, request string) error {
	s.note("%s", strings.TrimSpace(call+" "+request))

	s.mu.Lock()
	before := s.before
	s.mu.Unlock()

	if before == nil {
		return nil
	}

	return before(ctx, call, request)
}

// each calls all places at once, and returns those that did not answer.
func (s *sites) each(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	var wg sync.WaitGroup

	unseen := &driver.Unseen{Places: map[string]error{}}

	for _, place := range s.Places() {
		wg.Go(func() {
			if err := s.reach(ctx, place); err != nil {
				s.mu.Lock()
				defer s.mu.Unlock()

				unseen.Places[place] = err
			}
		})
	}

	wg.Wait()

	if len(unseen.Places) > 0 {
		return unseen
	}

	return nil
}

// seen returns the machines of a request at configured places that answered, those of all requests when id is empty.
func (s *sites) seen(id string, err error) []driver.Machine {
	unseen := driver.UnseenOf(err)
	places := s.Places()

	s.cloud.mu.Lock()
	defer s.cloud.mu.Unlock()

	var found []driver.Machine

	for _, key := range slices.Sorted(maps.Keys(s.machines)) {
		m := s.machines[key]
		if (id == "" || m.RequestID == id) && slices.Contains(places, m.Place) && (unseen == nil || unseen.Places[m.Place] == nil) {
			found = append(found, m)
		}
	}

	return found
}

func (s *sites) Place(ctx context.Context, req driver.Request) (string, error) {
	if err := s.begin(ctx, "place", req.RequestID); err != nil {
		return "", err
	}

	s.mu.Lock()
	choose := s.choose
	s.mu.Unlock()

	if choose != nil {
		return choose(req)
	}

	unseen := driver.UnseenOf(s.each(ctx))

	for _, place := range s.Places() {
		if unseen == nil || unseen.Places[place] == nil {
			return place, nil
		}
	}

	return "", driver.Capacity(unseen)
}

func (s *sites) Plan(ctx context.Context, req driver.Request) (driver.Plan, error) {
	if err := s.begin(ctx, "plan", req.RequestID); err != nil {
		return driver.Plan{}, err
	}

	if err := s.reach(ctx, req.Place); err != nil {
		return driver.Plan{}, err
	}

	return driver.Plan{
		UUID: req.Identity.UUID, Names: map[string]string{"machine": req.RequestID},
		Phases: []driver.Phase{{Name: "create-machine", Ensure: func(ctx context.Context, t driver.Task) error { return s.create(ctx, t.Request) }}},
	}, nil
}

func (s *sites) create(ctx context.Context, req driver.Request) error {
	if err := s.begin(ctx, "create", req.RequestID); err != nil {
		return err
	}

	if err := s.reach(ctx, req.Place); err != nil {
		return err
	}

	s.put(req.Place, req.RequestID)

	return nil
}

// put makes a machine of a request at a place, unless it is there.
func (s *sites) put(place, id string, change ...func(*driver.Machine)) {
	s.cloud.mu.Lock()
	defer s.cloud.mu.Unlock()

	ref := driver.Ref{ProviderID: providerID, RequestID: id}
	m := driver.Machine{Ref: ref, ID: "vm-" + id, UUID: driver.NewIdentity(ref).UUID, Power: driver.PowerOn, Boot: "1", Place: place}

	for _, f := range change {
		f(&m)
	}

	if _, ok := s.machines[place+"/"+id]; !ok {
		s.machines[place+"/"+id] = m
	}
}

func (s *sites) Find(ctx context.Context, ref driver.Ref) (driver.Machine, error) {
	if err := s.begin(ctx, "find", ref.RequestID); err != nil {
		return driver.Machine{}, err
	}

	// One that has the machine answers for all.
	s.mu.Lock()
	broken := &driver.Unseen{Places: map[string]error{}}
	for place, wrong := range s.broken {
		if wrong != "" {
			broken.Places[place] = errors.New(wrong)
		}
	}
	s.mu.Unlock()

	if found := s.seen(ref.RequestID, broken); len(found) > 0 {
		return found[0], nil
	}

	err := s.each(ctx)

	switch found := s.seen(ref.RequestID, err); {
	case len(found) > 0:
		return found[0], nil
	case err != nil:
		return driver.Machine{}, err
	default:
		return driver.Machine{}, driver.NotFound("machine of %s", ref)
	}
}

func (s *sites) List(ctx context.Context, _ string) ([]driver.Machine, error) {
	if err := s.begin(ctx, "list", ""); err != nil {
		return nil, err
	}

	err := s.each(ctx)

	return s.seen("", err), err
}

func (s *sites) Remove(ctx context.Context, ref driver.Ref) (bool, error) {
	if err := s.begin(ctx, "remove", ref.RequestID); err != nil {
		return false, err
	}

	err := s.each(ctx)

	for _, m := range s.seen(ref.RequestID, err) {
		s.drop(m.Place + "/" + ref.RequestID)
	}

	return err == nil, err
}

func (s *sites) RemoveFrom(ctx context.Context, ref driver.Ref, place string) (bool, error) {
	if err := s.begin(ctx, "remove-from", ref.RequestID+" "+place); err != nil {
		return false, err
	}

	if err := s.reach(ctx, place); err != nil {
		return false, fmt.Errorf("ask place %q: %w", place, err)
	}

	s.drop(place + "/" + ref.RequestID)

	return true, nil
}

func (s *sites) Check(ctx context.Context) error {
	err := s.each(ctx)
	if unseen := driver.UnseenOf(err); unseen != nil && len(unseen.Places) == len(s.Places()) {
		return errors.New("no place can be reached")
	}

	return err
}

// madeAt makes a machine at a place, and waits until it has joined Omni.
func (w *world) madeAt(s *sites, place, id string) string {
	s.at(place)

	uuid := w.joined(id)
	require.Contains(w.t, w.cloud.names(), place+"/"+id)

	return uuid
}
