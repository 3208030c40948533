package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// looksForRemoval is how many complete looks at both sides have to show an orphan before it is removed.
const looksForRemoval = 2

// sweeper finds what is left over: it is what keeps an error of either side from becoming the end of machines that are wanted.
//
// An orphan is a marked object whose request Omni does not have. One look consists of the cloud's complete list and, after
// that, of Omni's complete list of requests, read afresh. The order matters: nothing is made before its request is there, so
// a request that comes between the two looks is seen, and its machine, if seen, has it. A look of which either half fails
// is no look. An object is a finding when every look at the cloud has shown it without a request for the grace time. A look that could
// not see a place says nothing of what was seen there, and nothing is removed on its word: the rest of an orphan may be there.
//
// It is due for removal when, in addition, at least two looks at Omni and all of those in the grace time have missed the
// request, and each of these looks has proved itself: Omni had the request of at least one other machine that the cloud showed.
// So an answer of Omni's that is empty, or that has nothing to do with this cloud, removes nothing and begins the time anew,
// whether the provider has just started or not, and an empty answer of the cloud has nothing to remove. A place that shows none of the
// machines that were made there may be another than it was, and keeps its orphans too. What is due is removed
// in a turn of its request, which asks Omni for that one request again, so that it cannot come back unseen.
type sweeper struct {
	grace time.Duration
	// trustEmpty lets a look at Omni pass that has not proved itself.
	trustEmpty bool

	mu        sync.Mutex
	list      []driver.Machine // what the last look at the cloud showed of requests
	unseen    *driver.Unseen   // what it could not see
	strange   map[string]bool  // places that showed none of their machines
	orphans   map[string]*sighting
	looked    time.Time // when Omni was looked at
	doubted   bool      // whether that look did not prove itself
	doomed    map[string]bool
	hurried   map[string]time.Time // when stuck requests got a turn out of the row
	toldAbout map[string]string
}

// sighting is an object that has had no request in any look since.
type sighting struct {
	machine driver.Machine
	first   time.Time
	// sure is since when all looks at Omni have proved themselves; looks is how many.
	sure  time.Time
	looks int
}

func (s *sweeper) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.list, s.unseen, s.strange, s.looked, s.doubted = nil, nil, nil, time.Time{}, false
	s.orphans, s.doomed, s.hurried, s.toldAbout = map[string]*sighting{}, map[string]bool{}, map[string]time.Time{}, map[string]string{}
}

// saw takes in a list of the cloud. known says which requests there are, as far as that is known without asking; strange are the places
// that show none of the machines that were made there.
func (s *sweeper) saw(v view, providerID string, known func(id string) bool, strange map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	before := s.orphans
	s.list, s.orphans, s.unseen, s.strange = nil, map[string]*sighting{}, v.unseen, strange

	for _, machine := range v.machines {
		key := machine.RequestID

		if machine.ProviderID != providerID || key == "" {
			key = fmt.Sprintf("unreadable %s %s", machine.Ref, machine.ID)
			machine.RequestID = ""
		} else {
			s.list = append(s.list, machine)

			if known(key) {
				continue
			}
		}

		at, ok := before[key]
		if !ok {
			at = &sighting{first: time.Now()}
		}

		at.machine = machine
		s.orphans[key] = at
	}

	if v.unseen == nil {
		return
	}

	for key, at := range before {
		if s.orphans[key] == nil && hides(v.unseen, at.machine.Place) && !known(key) {
			s.orphans[key] = at
		}
	}
}

// wantsLook reports whether it is time to ask Omni about the orphans.
func (s *sweeper) wantsLook() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return len(s.orphans) > 0 && time.Since(s.looked) >= s.grace/4
}

// compare takes in Omni's complete list of requests, which was read after the cloud's.
func (s *sweeper) compare(ids map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.looked = time.Now()
	s.doubted = !slices.ContainsFunc(s.list, func(m driver.Machine) bool { return ids[m.RequestID] }) && !s.trustEmpty

	for key, at := range s.orphans {
		switch {
		case ids[key]:
			delete(s.orphans, key)
		case s.doubted:
			at.sure, at.looks = time.Time{}, 0
		default:
			setDefault(&at.sure, s.looked)

			at.looks++
		}
	}
}

// found returns the orphans that have been there for the grace time.
func (s *sweeper) found() []Finding {
	s.mu.Lock()
	defer s.mu.Unlock()

	var all []Finding

	for _, at := range s.orphans {
		if time.Since(at.first) < s.grace {
			continue
		}

		f := Finding{Kind: FindingOrphan, RequestID: at.machine.RequestID, Machine: at.machine, Since: at.first}

		switch {
		case f.RequestID == "":
			f.Kind = FindingUnreadable
			f.Detail = "it carries the provider's mark, but not that of a request; it is left alone: look whose it is and remove it by hand"
		case s.doubted:
			f.Detail = "Omni does not have its request, " + doubt
		case s.unseen != nil:
			// Without the reasons, which may read otherwise each time: a finding that reads otherwise is told again.
			f.Detail = fmt.Sprintf("Omni does not have its request; nothing is removed before all places can be seen, as %q cannot", slices.Sorted(maps.Keys(s.unseen.Places)))
		case s.strange[f.Machine.Place]:
			f.Detail = fmt.Sprintf("Omni does not have its request, but place %q shows none of the machines that were made there, so nothing is removed: is it the right one?", f.Machine.Place)
		default:
			f.due = at.looks >= looksForRemoval && time.Since(at.sure) >= s.grace
			f.Detail = "Omni does not have its request; the command `sweep --remove`, or --sweep=remove on the running provider, removes it"
		}

		all = append(all, f)
	}

	return all
}

const doubt = "but neither has it that of any other machine in the cloud, so nothing is removed: is it the right Omni, with all its data, and the right cloud?"

// refused says why no orphan is removed, or nothing.
func (s *sweeper) refused() string {
	s.mu.Lock()
	defer s.mu.Unlock()

	switch {
	case len(s.orphans) == 0:
		return ""
	case s.doubted:
		return "Omni does not have the request of any machine that the cloud shows. That is how the wrong Omni looks, one that has lost its data, or the wrong cloud"
	case s.unseen != nil:
		return "not all places could be seen: " + plain(s.unseen.Error())
	default:
		return ""
	}
}

// hidden says which places the last look could not see, or nothing.
func (s *sweeper) hidden() string {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.unseen == nil {
		return ""
	}

	return plain(s.unseen.Error())
}

func (s *sweeper) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return len(s.orphans)
}

// machine returns what the last look at the cloud showed of a request.
func (s *sweeper) machine(id string) driver.Machine {
	s.mu.Lock()
	defer s.mu.Unlock()

	if i := slices.IndexFunc(s.list, func(m driver.Machine) bool { return m.RequestID == id }); i >= 0 {
		return s.list[i]
	}

	return driver.Machine{}
}

// doom marks an orphan for removal, and reports whether that is news.
func (s *sweeper) doom(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	had := s.doomed[id]
	s.doomed[id] = true

	return !had
}

func (s *sweeper) isDoomed(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.doomed[id]
}

// spare takes the mark off again: the orphan is gone, or its request is there after all.
func (s *sweeper) spare(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	delete(s.doomed, id)
}

// wantsHurry reports whether a stuck request should get a turn at once: when it is found, and after each grace time again.
func (s *sweeper) wantsHurry(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	if at, ok := s.hurried[id]; ok && time.Since(at) < s.grace {
		return false
	}

	s.hurried[id] = time.Now()

	return true
}

// news returns the findings that were not told before, or not like this, and the keys of those that are gone.
func (s *sweeper) news(findings []Finding) (told []Finding, gone []string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	now := map[string]string{}

	for _, f := range findings {
		key := fmt.Sprintf("%s %s", f.Kind, cmp.Or(f.RequestID, f.Machine.ID))
		now[key] = f.Detail

		if s.toldAbout[key] != f.Detail {
			told = append(told, f)
		}
	}

	for key := range s.toldAbout {
		if _, ok := now[key]; !ok {
			gone = append(gone, key)
		}
	}

	s.toldAbout = now

	maps.DeleteFunc(s.hurried, func(id string, _ time.Time) bool { _, ok := now[string(FindingStuck)+" "+id]; return !ok })
	slices.Sort(gone)

	return told, gone
}

// requestIDs asks Omni for all requests of the provider, past the mirror.
func (p *Provider) requestIDs(ctx context.Context) (map[string]bool, error) {
	list, err := call(ctx, p.cfg.CallTimeout, "listing the machine requests", func(ctx context.Context) (resource.List, error) {
		return p.st.List(ctx, resource.NewMetadata(resources.InfraProviderNamespace, infra.MachineRequestType, "", resource.VersionUndefined),
			state.WithLabelQuery(resource.LabelEqual(omni.LabelInfraProviderID, p.cfg.ID)))
	})
	if err != nil {
		return nil, fmt.Errorf("list machine requests: %w", err)
	}

	ids := make(map[string]bool, len(list.Items))
	for _, item := range list.Items {
		ids[item.Metadata().ID()] = true
	}

	return ids, nil
}

func (p *Provider) isRequest(id string) bool {
	_, ok := p.requests.get(id)

	return ok
}

// strangePlaces returns the places that have been seen, and show none of the machines that were made there.
func (p *Provider) strangePlaces(v view) map[string]bool {
	found, strange := v.whole(), map[string]bool{}

	// What was given up lately counts as well: it may be where the place has been until then.
	for _, status := range p.statuses.all(func(s *infra.MachineRequestStatus) bool {
		return isProvisioned(s) || s.Metadata().Phase() == resource.PhaseTearingDown
	}) {
		id := status.Metadata().ID()

		place := p.recordedPlace(id)
		if place == "" || !p.covers(v.unseen, place) {
			continue
		}

		if _, ok := found[id]; ok {
			strange[place] = false
		} else if _, known := strange[place]; !known {
			strange[place] = true
		}
	}

	return strange
}

// sweepMachines takes a look at what the cloud shows, and asks Omni about what has no request.
func (p *Provider) sweepMachines(ctx context.Context, v view) {
	p.sweeper.saw(v, p.cfg.ID, p.isRequest, p.strangePlaces(v))

	if !p.sweeper.wantsLook() {
		return
	}

	ids, err := p.requestIDs(ctx)

	switch {
	case err == nil:
		p.sweeper.compare(ids)
	case ctx.Err() == nil:
		p.log.Warn("left-overs are not looked for", zap.Error(err))
	}
}

// sweep tells of what is left over, and gives what is to be removed its turns.
func (p *Provider) sweep() {
	findings := p.findings()
	told, gone := p.sweeper.news(findings)

	p.cfg.Metrics.leftOver(findings)

	for _, f := range told {
		p.log.Warn("left over", zap.String("kind", string(f.Kind)), zap.String("request", f.RequestID), zap.String("machine", f.Machine.ID),
			zap.String("state", f.Machine.State), zap.Time("since", f.Since), zap.String("detail", f.Detail))
	}

	for _, key := range gone {
		p.log.Info("not left over any more", zap.String("what", key))
	}

	if p.cfg.Sweep != SweepRemove {
		return
	}

	for _, f := range findings {
		switch {
		case !f.due:
		case f.Kind == FindingOrphan && p.sweeper.doom(f.RequestID):
			p.log.Warn("left-over is removed", zap.String("request", f.RequestID), zap.String("machine", f.Machine.ID))
			p.queue.hurry(f.RequestID)
		case f.Kind == FindingStuck && p.sweeper.wantsHurry(f.RequestID):
			p.queue.hurry(f.RequestID)
		}
	}
}

// findings returns all that is left over now, by kind and request.
func (p *Provider) findings() []Finding {
	all := p.sweeper.found()

	for _, request := range p.requests.all(func(r *infra.MachineRequest) bool {
		return r.Metadata().Phase() == resource.PhaseTearingDown && r.Metadata().Finalizers().Has(p.owner) &&
			time.Since(r.Metadata().Updated()) >= p.sweeper.grace
	}) {
		id := request.Metadata().ID()
		all = append(all, Finding{
			Kind: FindingStuck, RequestID: id, Machine: p.sweeper.machine(id), Since: request.Metadata().Updated(), Detail: p.whyStuck(id), due: true,
		})
	}

	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.RequestID, b.RequestID), cmp.Compare(a.Machine.ID, b.Machine.ID))
	})

	return all
}

// whyStuck says what keeps a request from going, as far as this process knows.
func (p *Provider) whyStuck(id string) string {
	if err := p.stuck.of(id); err != nil {
		return fmt.Sprintf("its machine is not removed: %s. It is tried until the cloud confirms that nothing is left; when the error cannot be mended, "+
			"remove the machine's objects in the cloud by hand", plain(err.Error()))
	}

	if status, ok := p.statuses.get(id); ok && !status.Metadata().Finalizers().Empty() {
		return fmt.Sprintf("Omni has not let go of its machine: %v hold the request's status. If it is the node of a cluster and does not run any more, "+
			"let the node go with: omnictl delete link %s", *status.Metadata().Finalizers(), status.TypedSpec().Value.Id)
	}

	return "it is torn down, and no provider has finished that: start the provider, or use the command `sweep --remove`"
}
