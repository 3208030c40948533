package lifecycle

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"go.uber.org/zap"
)

// releaseTimeout bounds the last call of a process that ends.
const releaseTimeout = 2 * time.Second

// errLeaseLost ends everything that this process does for the provider.
var errLeaseLost = errors.New("this process does not hold the provider's lease any more")

// lease makes one process at a time act for a provider. It lies in Omni, in the provider's own namespace, and its version
// there decides: whoever writes it on the version that he has read has it.
//
// Clocks of different machines are never compared. The holder counts its time from the moment it sent a renewal that
// succeeded, and stops when that time is over, whatever Omni or the network do. Another process counts from the moment it saw
// the version, which is later, and takes the lease when the version has not changed for the whole time and a margin.
type lease struct {
	st       state.State
	log      *zap.Logger
	metrics  *Metrics
	empty    *leaseRecord
	owner    string
	holder   string
	instance string
	duration time.Duration
	timeout  time.Duration
	// idle says, when the work is over, whether nothing of it is left at the cloud.
	idle func() bool

	mu    sync.Mutex
	held  *leaseRecord // as it was last written; nil when this process does not hold it
	until time.Time
	end   context.CancelCauseFunc
	timer *time.Timer
}

// newLease takes part in the contest for the lease with a configuration that has its defaults.
func newLease(cfg Config, st state.State) *lease {
	return &lease{
		st: st, log: cfg.Logger, metrics: cfg.Metrics, empty: newLeaseRecord(cfg.ID), owner: ownerOf(cfg.ID),
		holder: cfg.Holder, instance: rand.Text(), duration: cfg.LeaseDuration, timeout: min(cfg.CallTimeout, cfg.LeaseDuration),
		idle: func() bool { return true },
	}
}

// refusedPause is how long a process that Omni once accepted waits when Omni does not any more.
const refusedPause = 30 * time.Second

// serve works whenever this process holds the lease, until ctx ends. An error in the first term, before Omni has shown that it
// accepts the provider, is returned.
func (l *lease) serve(ctx context.Context, work func(context.Context) error) error {
	for again := false; ; again = true {
		err := l.term(ctx, true, work)

		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end was asked for
		case err != nil && !again:
			return err
		case err != nil:
			l.log.Error("the provider does not act", zap.Error(err), zap.Duration("tries_again_in", refusedPause))
			sleep(ctx, refusedPause)
		}
	}
}

// term gets the lease and works for as long as this process holds it. When it returns, nothing is under way
// but what the driver does not end.
func (l *lease) term(ctx context.Context, wait bool, work func(context.Context) error) error {
	working, err := l.acquire(ctx, wait)
	if err != nil {
		return err
	}

	// What is under way when ctx ends still needs the lease.
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))

	var keep sync.WaitGroup

	keep.Go(func() { l.keep(keeping) })

	err = work(working)

	stop()
	keep.Wait()

	// A call that was left behind may still change the cloud. The lease runs out in its own time then.
	if l.idle() {
		l.release(ctx)
	}

	return err
}

// defaultHolder names this process to the operators of another one.
func defaultHolder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}

	return fmt.Sprintf("%s (process %d)", host, os.Getpid())
}

// heldError says that another process holds the lease and is alive.
type heldError struct {
	holder string
	since  time.Time
}

func (e *heldError) Error() string {
	return fmt.Sprintf("process %q holds the lease of this provider since %s", e.holder, e.since.UTC().Format(time.RFC3339))
}

// acquire waits until this process holds the lease and returns a context that ends, with errLeaseLost as its cause, when it
// does not any more.
//
// A live holder is waited for, or is a heldError when wait is false; a holder whose life has to be seen is watched in both cases.
func (l *lease) acquire(ctx context.Context, wait bool) (context.Context, error) {
	changed := make(chan struct{}, 1)

	var watch sync.WaitGroup
	defer watch.Wait()

	watching, stop := context.WithCancel(ctx)
	defer stop()

	pause := backoff{first: time.Second, most: l.duration}
	w := waiting{lease: l}

	for tries := 0; ; {
		var cur *leaseRecord

		err := retry(ctx, l.log, "read the provider's lease in Omni", l.timeout, func(ctx context.Context) (err error) {
			cur, err = l.read(ctx)

			return err
		})
		if err != nil {
			return nil, err
		}

		if !l.isFree(cur) && !w.isOver(cur) {
			if w.saw(cur) && !wait {
				return nil, &heldError{holder: cur.spec.Holder, since: time.Unix(cur.spec.Since, 0)}
			}

			w.tell(cur)

			if !w.watching {
				w.watching = true

				watch.Go(func() { l.follow(watching, changed) })
			}

			if err := w.rest(ctx, changed); err != nil {
				return nil, err
			}

			continue
		}

		term, err := l.take(ctx, cur)
		if err == nil {
			return term, nil
		}

		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}

		if !isRace(err) {
			l.log.Warn("the provider's lease is not taken, trying again", zap.Error(err))
			sleep(ctx, pause.after(tries))

			tries++
		}
	}
}

// isFree reports whether nobody holds the lease; what this very process held before it has given up.
func (l *lease) isFree(cur *leaseRecord) bool {
	return cur == nil || cur.spec.Holder == "" || cur.spec.Instance == l.instance
}

// read gets the lease's record from Omni, nil when there is none.
func (l *lease) read(ctx context.Context) (*leaseRecord, error) {
	res, err := l.st.Get(ctx, l.empty.Metadata())
	if state.IsNotFoundError(err) {
		return nil, nil //nolint:nilnil // there is none, and that is fine
	}

	if err != nil {
		return nil, err
	}

	cur, _, err := decodeLease(res)

	return cur, err
}

// follow says when the lease's record changes. It only makes the wait shorter: what is decided is read.
func (l *lease) follow(ctx context.Context, changed chan<- struct{}) {
	m := newMirror(l.empty.Metadata().Namespace(), l.empty.Metadata().Type(), nil, func(_, _ *leaseRecord) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	m.decode = decodeLease

	m.run(ctx, l.st, func(error) {})
}

// take writes the lease as this process's own.
func (l *lease) take(ctx context.Context, cur *leaseRecord) (context.Context, error) {
	next, sent := l.empty.DeepCopy().(*leaseRecord), time.Now() //nolint:forcetypeassert,errcheck // a copy
	epoch, before := int64(0), ""

	if cur != nil {
		next.md = cur.md.Copy()
		epoch, before = cur.spec.Epoch, cur.spec.Holder
	}

	next.spec = leaseSpec{
		Version: leaseVersion, Holder: l.holder, Instance: l.instance, Epoch: epoch + 1,
		DurationSeconds: int64((l.duration + time.Second - 1) / time.Second), Since: sent.Unix(), Renewed: sent.UnixNano(),
	}

	if err := l.put(ctx, next, cur == nil); err != nil {
		return nil, err
	}

	term, end := context.WithCancelCause(ctx)

	l.mu.Lock()
	l.held, l.until, l.end = next, sent.Add(l.duration), end
	l.timer = time.AfterFunc(time.Until(l.until), func() { _ = l.check() })
	l.mu.Unlock()

	l.metrics.leads(true)
	l.log.Info("this process acts for the provider", zap.String("holder", l.holder), zap.Int64("epoch", next.spec.Epoch), zap.String("before", before))

	return term, nil
}

func (l *lease) put(ctx context.Context, next *leaseRecord, create bool) error {
	_, err := call(ctx, min(l.timeout, l.duration/3), "writing the lease", func(ctx context.Context) (struct{}, error) {
		if create {
			return struct{}{}, l.st.Create(ctx, next, state.WithCreateOwner(l.owner))
		}

		return struct{}{}, l.st.Update(ctx, next, state.WithUpdateOwner(next.Metadata().Owner()), state.WithExpectedPhaseAny())
	})

	return err
}

// keep renews the lease until ctx ends or the lease is lost.
func (l *lease) keep(ctx context.Context) {
	pause := l.duration / 3

	for {
		sleep(ctx, pause)

		if ctx.Err() != nil || l.check() != nil {
			return
		}

		sent := time.Now()
		next, err := l.rewrite(ctx, l.record(), func(s *leaseSpec) { s.Renewed = sent.UnixNano() })

		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			l.extend(next, sent)

			pause = l.duration / 3
		case errors.Is(err, errLeaseLost):
			l.lose(err)

			return
		default:
			l.log.Warn("the provider's lease is not renewed, trying again", zap.Error(err))

			pause = l.duration / 30
		}
	}
}

// record returns the lease's record as it was last written, nil when this process does not hold it.
func (l *lease) record() *leaseRecord {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.held
}

// rewrite changes the lease that this process holds, on the version that it wrote last. When somebody wrote in between, the
// record says who: this process itself, when an answer was lost, or another one.
func (l *lease) rewrite(ctx context.Context, cur *leaseRecord, change func(*leaseSpec)) (*leaseRecord, error) {
	if cur == nil {
		return nil, errLeaseLost
	}

	for tries := 1; ; tries++ {
		next := cur.DeepCopy().(*leaseRecord) //nolint:forcetypeassert,errcheck // a copy
		change(&next.spec)

		err := l.put(ctx, next, false)
		if err == nil {
			return next, nil
		}

		if !isRace(err) || tries == mostRaces {
			return nil, err
		}

		fresh, err := call(ctx, min(l.timeout, l.duration/3), "reading the lease", l.read)

		switch {
		case err != nil:
			return nil, err
		case fresh == nil:
			return nil, fmt.Errorf("%w: Omni has no record of it", errLeaseLost)
		case fresh.spec.Instance != cur.spec.Instance || fresh.spec.Epoch != cur.spec.Epoch:
			return nil, fmt.Errorf("%w: %q has it, with epoch %d", errLeaseLost, cmp.Or(fresh.spec.Holder, "nobody"), fresh.spec.Epoch)
		}

		cur = fresh
	}
}

func (l *lease) extend(next *leaseRecord, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.held != nil {
		l.held, l.until = next, sent.Add(l.duration)
		l.timer.Reset(time.Until(l.until))
	}
}

// check returns errLeaseLost when this process must not act any more. A process that wakes up after a pause may come here
// before anything else has noticed how late it is; one whose host was asleep sees it by the wall clock alone. A nil lease is
// that of a process that changes nothing.
func (l *lease) check() error {
	if l == nil {
		return nil
	}

	l.mu.Lock()
	now := time.Now()
	valid := l.held != nil && now.Before(l.until) && now.Round(0).Before(l.until.Round(0))
	l.mu.Unlock()

	if valid {
		return nil
	}

	l.lose(fmt.Errorf("%w: it was not renewed for %s", errLeaseLost, l.duration))

	return errLeaseLost
}

// lose ends the term.
func (l *lease) lose(cause error) {
	if l.drop(cause) != nil {
		l.log.Warn("the provider's lease is lost; nothing is done until it is held again", zap.Error(cause))
	}
}

// drop ends the term and returns the record as it was last written, nil when the term had ended before.
func (l *lease) drop(cause error) *leaseRecord {
	l.mu.Lock()
	defer l.mu.Unlock()

	held := l.held
	if held == nil {
		return nil
	}

	l.held = nil
	l.timer.Stop()
	l.end(cause)
	l.metrics.leads(false)

	return held
}

// release frees the lease for the next process. Nothing may be under way any more.
func (l *lease) release(ctx context.Context) {
	held := l.drop(errLeaseLost)
	if held == nil {
		return
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()

	if _, err := l.rewrite(ctx, held, func(s *leaseSpec) { s.Holder, s.Instance = "", "" }); err != nil {
		l.log.Warn("the provider's lease is not released: the next process waits until it runs out", zap.Error(err),
			zap.Duration("runs_out_in", held.spec.restFor(l.duration)))
	}
}
