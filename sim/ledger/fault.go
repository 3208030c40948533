package ledger

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// FaultKind is what befalls a call.
type FaultKind string

// Kinds that the books play by themselves, in every cloud. The caller sees ErrDisconnected, or the error of its context.
const (
	// Cut loses the connection before the call has had any effect.
	Cut FaultKind = "cut"
	// Lost loses the reply: the call has its effect.
	Lost FaultKind = "reply-lost"
	// Hang leaves the call without effect and answer for Fault.For, or until its context ends.
	Hang FaultKind = "hang"
	// Slow lets the call have its effect after Fault.For, even if the caller has given up by then.
	Slow FaultKind = "slow"
)

// Kinds that answer with a *FaultError, without effect. A simulated cloud that plays them turns that into the error which the
// cloud's real client shows for such an answer, and changes nothing else.
const (
	// NotFound says that something the call needs is not there.
	NotFound FaultKind = "not-found"
	// Conflict says that something else is going on with the object.
	Conflict FaultKind = "conflict"
	// Throttled asks the client to be quiet for Fault.For. A call of the same session in that time is an offence, which Leaks reports.
	Throttled FaultKind = "throttled"
	// Unavailable is a failure of the cloud itself.
	Unavailable FaultKind = "unavailable"
	// Full says that there is no room for what is to be made.
	Full FaultKind = "full"
	// Unauthorized says that the credentials do not hold.
	Unauthorized FaultKind = "unauthorized"
	// Echo is a failure whose text repeats the whole request, with the secrets in it.
	Echo FaultKind = "echo"
)

// defaultFor is how long a fault lasts that does not say so.
const defaultFor = 20 * time.Second

// Fault is something that goes wrong with calls.
type Fault struct {
	// Kind is what happens; empty is nothing but Then.
	Kind FaultKind
	// Op is what the call's op begins with; empty means any.
	Op string
	// Nth is the number of the first such call that it befalls, counted from 1 at the injection; 0 means 1.
	Nth int
	// Times is how many such calls it befalls; 0 means 1, less than 0 all.
	Times int
	// For is how long Hang, Slow and Throttled last; 20 seconds if zero.
	For time.Duration
	// Grace is how soon after Throttled calls may come nevertheless, for clients whose steps of several calls cannot be stopped;
	// 100 milliseconds if zero.
	Grace time.Duration
	// Then is called, if not nil, when the fault strikes, from the goroutine of the call.
	Then func()
}

// FaultError is the answer to a call that a fault befell, before the cloud has put it into its own words.
type FaultError struct {
	Kind FaultKind
	// RetryAfter is set for Throttled.
	RetryAfter time.Duration
}

// Error returns the kind.
func (e *FaultError) Error() string { return fmt.Sprintf("injected fault: %s", e.Kind) }

type armedFault struct {
	Fault
	seen, struck int
}

// Inject makes calls go wrong from now on until remove is called. Of several faults that fit a call, the first that was injected
// befalls it; the others still count it.
func (l *Ledger) Inject(f Fault) (remove func()) {
	f.For, f.Grace = cmp.Or(f.For, defaultFor), cmp.Or(f.Grace, defaultGrace)

	armed := &armedFault{Fault: f}

	l.mu.Lock()
	defer l.mu.Unlock()

	l.faults = append(l.faults, armed)

	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()

		l.faults = slices.DeleteFunc(l.faults, func(a *armedFault) bool { return a == armed })
	}
}

// faultLocked counts a call and returns what befalls it, the zero Fault if nothing does.
func (l *Ledger) faultLocked(op string) (hit Fault) {
	found := false

	for _, f := range l.faults {
		if !strings.HasPrefix(op, f.Op) {
			continue
		}

		f.seen++

		if !found && f.seen >= max(f.Nth, 1) && (f.Times < 0 || f.struck < max(f.Times, 1)) {
			f.struck++
			hit, found = f.Fault, true
		}
	}

	return hit
}

// play makes the call suffer the fault.
func (l *Ledger) play(ctx context.Context, f Fault, effect func() error) error {
	if f.Then != nil {
		f.Then()
	}

	switch f.Kind {
	case "":
		return effect()
	case Cut:
		return ErrDisconnected
	case Lost:
		_ = effect()

		return ErrDisconnected
	case Hang:
		if err := sleep(ctx, f.For); err != nil {
			return err
		}

		return ErrDisconnected
	case Slow:
		return l.delay(ctx, f.For, effect)
	case Throttled:
		return &FaultError{Kind: f.Kind, RetryAfter: f.For}
	default:
		return &FaultError{Kind: f.Kind}
	}
}

// delay does the cloud's work after a while, whether or not somebody still waits for the answer.
func (l *Ledger) delay(ctx context.Context, d time.Duration, effect func() error) error {
	done := make(chan error, 1)

	l.slow.Go(func() {
		time.Sleep(d)
		done <- effect()
	})

	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Settle waits until all slow calls have had their effects, also those that were given up.
func (l *Ledger) Settle() { l.slow.Wait() }

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// defaultGrace is how long a client may take to learn that it was asked to be quiet: other calls may be under way.
const defaultGrace = 100 * time.Millisecond

// quietLocked notes a call of a session that was asked to be quiet.
func (s *Session) quietLocked(op string) {
	since := time.Since(s.quietSince)

	if since > s.grace && since < s.quiet {
		s.ledger.exposed = append(s.ledger.exposed, fmt.Sprintf("%s is called %s after the cloud had asked for %s without calls", op, since, s.quiet))
		s.quiet = 0
	}
}
