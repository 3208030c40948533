package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// SweepMode says what a running provider does about what is left over.
type SweepMode string

// The sweep modes.
const (
	// SweepTell tells of left-overs in the log and in the metrics, and removes nothing. It is the default.
	SweepTell SweepMode = "report"
	// SweepRemove removes them as well. It is for an Omni that alone uses the provider's id in its cloud: the machines of another
	// Omni with the same provider id, and those that an Omni that was set back to an old backup has forgotten, look like left-overs.
	SweepRemove SweepMode = "remove"
	// SweepOff does not look for them.
	SweepOff SweepMode = "off"
)

// FindingKind says what a sweep found.
type FindingKind string

// The kinds of finding.
const (
	// FindingOrphan is a machine or object of the cloud that carries the provider's mark, but whose request Omni does not have.
	FindingOrphan FindingKind = "orphan"
	// FindingUnreadable is one with the provider's mark whose request cannot be told. It is never removed.
	FindingUnreadable FindingKind = "unreadable"
	// FindingStuck is a request whose teardown does not come to an end.
	FindingStuck FindingKind = "stuck"
)

// Finding is one thing that a sweep found.
type Finding struct {
	Kind FindingKind
	// RequestID is empty for what is unreadable.
	RequestID string
	// Machine is what the cloud shows; it is zero for a stuck request of which the cloud has nothing.
	Machine driver.Machine
	// Since is since when this process has seen the orphan, or since when the request has been torn down, as Omni has it.
	Since time.Time
	// Detail says what is wrong and what to do, in one line.
	Detail string
	// Removed says that it is gone now: the cloud confirms it.
	Removed bool

	// due says that it may be removed.
	due bool
}

// SweepReport is the outcome of a sweep.
type SweepReport struct {
	// Machines and Requests are how many of the provider's machines the cloud, and how many of its requests Omni has.
	Machines, Requests int
	// Findings are in the order of kind and request id.
	Findings []Finding
	// Unseen says which places of the cloud could not be seen; it is empty when all were.
	Unseen string
	// Refused says why orphans were not removed although that was asked for; it is empty otherwise.
	Refused string
}

// SweepOptions say how a one-shot sweep is done. The zero value is a dry run.
type SweepOptions struct {
	// Grace is how long an orphan has to be seen all the time before it counts, and how long a request has to be torn down; a
	// minute by default. Sweep takes that long when it finds anything.
	Grace time.Duration
	// Remove removes the findings; without it they are only reported.
	Remove bool
	// TrustEmpty removes also when Omni knows none of the machines that the cloud shows, which an operator has to have looked
	// into: it is what the wrong Omni, or one that lost its data, looks like.
	TrustEmpty bool
	// Progress is told in a line what the sweep waits for; it may be nil.
	Progress func(text string)
}

// removeTimeout is how long a one-shot sweep waits for one removal.
const removeTimeout = 5 * time.Minute

// Sweep looks once for what is left over, and removes it if that is asked for. cfg is that of the running provider; st is
// Omni's state with the rights of an infra provider.
//
// To remove, it takes the provider's lease for as long as it works. While another process holds it, the error names that
// process and says that the running provider does the job when it is told to. A dry run needs no lease and writes nothing.
func Sweep(ctx context.Context, cfg Config, st state.State, opts SweepOptions) (SweepReport, error) {
	setDefault(&opts.Grace, time.Minute)

	if opts.Progress == nil {
		opts.Progress = func(string) {}
	}

	cfg.SweepGrace = opts.Grace

	p, err := New(cfg)
	if err != nil {
		return SweepReport{}, err
	}

	p.st = st
	// Nothing takes turns here; the mirrors only need somebody to tell.
	p.queue = newQueue(p.poolOf, p.unwanted, nil)
	p.sweeper.trustEmpty = opts.TrustEmpty

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	if !opts.Remove {
		return p.sweepOnce(ctx, opts)
	}

	p.lease = newLease(p.cfg, st)
	p.lease.idle = p.calls.allEnded

	opts.Progress("asking for the provider's lease")

	var report SweepReport

	err = p.lease.term(ctx, false, func(ctx context.Context) (err error) {
		report, err = p.sweepOnce(ctx, opts)

		return err
	})
	if held, ok := errors.AsType[*heldError](err); ok {
		return report, fmt.Errorf("%w, and only that process may remove anything: let it do so with --sweep=remove, or stop it first", held)
	}

	return report, err
}

// sweepOnce looks for as long as the grace time, then removes.
func (p *Provider) sweepOnce(ctx context.Context, opts SweepOptions) (report SweepReport, err error) {
	ctx, cancel := context.WithCancel(ctx)

	var wg sync.WaitGroup

	defer wg.Wait()
	defer cancel()

	// A question that Omni answers or refuses at once, before the watches, which only ever try again.
	if _, err := p.requestIDs(ctx); err != nil {
		return report, err
	}

	p.mirrors()

	p.follow(ctx, &wg)

	if _, err := call(ctx, p.cfg.CallTimeout, "reading from Omni", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.awaitMirrors(ctx)
	}); err != nil {
		return report, err
	}

	const looks = 4

	for n := 0; ; n++ {
		if report.Machines, report.Requests, err = p.sweepLook(ctx); err != nil {
			return report, err
		}

		if p.sweeper.size() == 0 || n == looks {
			break
		}

		if n == 0 {
			opts.Progress(fmt.Sprintf("the cloud shows %d objects without a request; watching them for %s", p.sweeper.size(), opts.Grace))
		}

		sleep(ctx, opts.Grace/looks)

		if ctx.Err() != nil {
			return report, context.Cause(ctx)
		}
	}

	report.Findings, report.Unseen = p.findings(), p.sweeper.hidden()

	if !opts.Remove {
		return report, nil
	}

	report.Refused = p.sweeper.refused()

	for i := range report.Findings {
		if f := &report.Findings[i]; f.due {
			opts.Progress(fmt.Sprintf("removing what is left of %q", f.RequestID))
			p.sweepAway(withTurn(ctx, f.RequestID), f)
		}
	}

	return report, context.Cause(ctx)
}

// sweepLook takes one look at both sides, at the cloud first.
func (p *Provider) sweepLook(ctx context.Context) (machines, requests int, err error) {
	v, err := p.list(ctx)
	if err != nil {
		return 0, 0, err
	}

	p.sweeper.saw(v, p.cfg.ID, p.isRequest, p.strangePlaces(v))

	ids, err := p.requestIDs(ctx)
	if err != nil {
		return 0, 0, err
	}

	p.sweeper.compare(ids)

	return len(v.machines), len(ids), nil
}

// sweepAway removes a finding, and waits until it is gone.
func (p *Provider) sweepAway(ctx context.Context, f *Finding) {
	ctx, cancel := context.WithTimeoutCause(ctx, removeTimeout, fmt.Errorf("not gone after %s", removeTimeout))
	defer cancel()

	for tries := 1; ; tries++ {
		done, err := p.sweepTurn(ctx, f.RequestID)

		switch {
		case done:
			f.Removed, f.Detail = true, "removed"

			return
		case err != nil:
			f.Detail = plain(err.Error())
		}

		// Omni wants it after all.
		if errors.Is(err, errChanged) && !p.unwanted(f.RequestID) {
			return
		}

		pause := pendingPause
		if err != nil && driver.KindOf(err) != driver.KindPending {
			pause = p.pause(err, tries)
		}

		sleep(ctx, max(pause, driver.PauseOf(err)))

		if ctx.Err() != nil {
			f.Detail = fmt.Sprintf("%s: %s", context.Cause(ctx), f.Detail)

			return
		}
	}
}

// sweepTurn does for one request what a turn of the running provider does.
func (p *Provider) sweepTurn(ctx context.Context, id string) (done bool, err error) {
	request, ok, err := fetch(ctx, p, p.requests, infra.NewMachineRequest(id).Metadata())

	switch {
	case err != nil:
		return false, err
	case ok && request.Metadata().Phase() == resource.PhaseTearingDown:
		err = p.deprovision(ctx, request)
		if request, ok = p.requests.get(id); ok && request.Metadata().Finalizers().Has(p.owner) {
			return false, err
		}
	default:
		if err = p.orphaned(ctx, id); p.leftOver(id) {
			return false, err
		}
	}

	return err == nil, err
}
