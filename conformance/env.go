package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// The clock that cases are written for. A place where time costs something has a pace of its own.
const (
	// patience is how long a case waits for anything.
	patience = 30 * time.Minute
	// calm is how long nothing must happen before the suite takes it that nothing will: several polls of any provider.
	calm = 10 * time.Minute
)

// env is what a case works with: a fresh Omni, a fresh cloud, and the provider between them. Its methods either do what they
// say or end the case with a failure.
type env struct {
	bench

	pace pace
	// provider is the provider's id, key its service account key, and data class data of a good machine.
	provider, key, data string
	// state is Omni as an operator sees it.
	state state.State
	// cloud is nil where the suite cannot see the provider's cloud.
	cloud owner
	// talosVersion is the one that requests ask for.
	talosVersion string
	// asked ends when whoever runs the suite wants no more of the case.
	asked context.Context
	// prefix goes before the ids that cases give to requests and sets.
	prefix string

	simulation

	log    *logWriter
	logger *zap.Logger

	ctx    context.Context // It is the life of this world.
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu    sync.Mutex
	proc  *process
	books *ledger.Ledger // nil until the cloud's are there
	// providers are the ids of all providers that the case has made.
	providers map[string]bool

	// trouble is what befalls the provider in this run. base is the number of calls when it was armed, counted that of calls from
	// then on to the end of the window, if there was one.
	trouble       trouble
	base, counted calls

	outputs outputs
	// neighbours are other providers on the same cloud, each with an Omni of its own.
	neighbours []*env
	// broken is what failed beside the case.
	broken atomic.Pointer[failure]
}

func newEnv(provider string) *env {
	e := &env{provider: provider, talosVersion: talosVersion, asked: context.Background(), providers: map[string]bool{}}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.log = &logWriter{env: e}
	e.logger = newLogger(e.log)

	return e
}

// open begins the history.
func (e *env) open(books *ledger.Ledger) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.books = books
}

// createProvider makes an infra provider in Omni and returns its service account key.
func (e *env) createProvider(id string) (key string) {
	e.mu.Lock()
	e.providers[id] = true
	e.mu.Unlock()

	e.do("create an infra provider", func(ctx context.Context) (err error) {
		key, err = e.bench.createProvider(ctx, id)

		return err
	})
	e.watchSecret("service account key", key)

	return key
}

// knows reports whether the case has made a provider.
func (e *env) knows(provider string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.providers[provider]
}

// providerIDs returns the ids of all providers that the case has made.
func (e *env) providerIDs() []string {
	e.mu.Lock()
	defer e.mu.Unlock()

	return slices.Sorted(maps.Keys(e.providers))
}

// play runs the case from the start of the provider to a world that is clean again.
func (e *env) play(c testCase, it trouble) *failure {
	defer e.end()

	return e.live(c, it)
}

// live is a case from its beginning to its end.
func (e *env) live(c testCase, it trouble) *failure {
	return e.try(func() {
		if e.trouble = it; !c.window {
			e.arm()
		}

		e.start()
		c.run(e)

		if !c.window {
			e.counted = e.since()
		}

		e.clear()
	})
}

// try runs f and returns the failure that it ended with, nil if there was none.
func (e *env) try(f func()) (found *failure) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *failure:
			books := e.history()
			found = p
			found.want, found.got, found.history = books.Redact(found.want), books.Redact(found.got), books.History()
		case error:
			panic(p)
		default:
			panic(fmt.Sprintf("%v\n\n%s", p, debug.Stack()))
		}
	}()

	f()

	return nil
}

// window arms the trouble of the run for as long as f runs.
func (e *env) window(f func()) {
	e.arm()
	f()

	e.counted = e.since()
}

func (e *env) arm() {
	e.base = e.calls()

	if e.trouble.arm != nil {
		e.note("trouble: %s", e.trouble.name)
		e.trouble.arm(e)
	}
}

// since returns the number of calls since the trouble was armed.
func (e *env) since() calls {
	now := e.calls()

	return calls{cloud: now.cloud - e.base.cloud, omni: now.omni - e.base.omni}
}

// calls returns the number of calls so far, as far as they are counted here.
func (e *env) calls() (n calls) {
	if e.ledger != nil {
		n.cloud = e.ledger.Calls()
	}

	if e.writes != nil {
		n.omni = e.writes.Calls()
	}

	return n
}

// end cuts everything off and waits for it.
func (e *env) end() {
	e.cancel()

	if p := e.process(); p != nil {
		p.kill()
	}

	e.tasks.Wait()

	if e.ledger != nil {
		e.ledger.Settle()
	}
}

// fail ends the case.
func (e *env) fail(want, format string, args ...any) {
	panic(&failure{want: want, got: fmt.Sprintf(format, args...)})
}

// equal ends the case unless got is want.
func equal[T comparable](e *env, what string, want, got T) {
	if got != want {
		e.fail(fmt.Sprintf("%s: %v", what, want), "%v", got)
	}
}

// await waits until check reports true. Its text says what there is instead.
func (e *env) await(want string, check func() (got string, ok bool)) {
	pause := e.pace.poll

	for start := time.Now(); ; e.sleep(pause) {
		got, ok := check()

		e.broke()

		switch {
		case ok:
			return
		case e.process().ended():
			e.fail(want, "%s; the provider has ended by itself: %v", got, e.process().err)
		case time.Since(start) > e.pace.patience:
			e.fail(want, "%s, after %s", got, e.pace.patience)
		}

		if time.Since(start) > 10*time.Second {
			pause = e.pace.slowPoll
		}
	}
}

// throughout looks at a fact again and again, and ends the case when it does not hold.
func (e *env) throughout(d time.Duration, want string, check func() (got string, ok bool)) {
	d = e.pace.cut(d)

	for start := time.Now(); time.Since(start) < d; e.sleep(e.pace.slowPoll) {
		if got, ok := check(); !ok {
			e.fail(want, "%s, after %s", got, time.Since(start).Truncate(time.Second))
		}
	}
}

// sleep lets the time d pass, or as much as there is time for here.
func (e *env) sleep(d time.Duration) {
	if err := sleep(e.asked, e.pace.cut(d)); err != nil {
		panic(err)
	}
}

// note adds a line to the history.
func (e *env) note(format string, args ...any) {
	if l := e.history(); l != nil {
		l.Note(format, args...)
	}
}

func (e *env) history() *ledger.Ledger {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.books
}

// watchSecret makes the suite look for value in all that passes.
func (e *env) watchSecret(name, value string) {
	if l := e.history(); l != nil {
		// What is too short to look for is no secret.
		_ = l.Secret(name, value)
	}
}

// scan looks for secrets in what others can read.
func (e *env) scan(place string, what any) {
	text, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}

	e.history().Scan(place, string(text))
}

// clear takes everything back that the case has asked for, ends the provider, and looks whether anything is left.
func (e *env) clear() {
	e.scan("the cloud's machines", e.machines())
	e.scanStatuses()
	e.removeAll()

	left := e.clearNeighbours()

	e.stop()

	if e.ledger != nil {
		e.ledger.Settle()
	}

	e.history().Scan("the provider's log", e.log.String())
	e.scanOutputs()
	e.broke()

	left = append(left, e.history().Leaks()...)
	left = append(left, e.leftInOmni()...)

	if e.ledger == nil {
		for _, what := range e.made() {
			left = append(left, what+" is left")
		}
	}

	if e.omni != nil {
		for _, call := range e.omni.Unmodelled() {
			left = append(left, "the provider makes a call that the simulated Omni does not know: "+call)
		}
	}

	if len(left) > 0 {
		e.fail("nothing is left when the requests are gone, and no secret was exposed", "%s", strings.Join(left, "\n"))
	}
}
