package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
	"github.com/omni-infra/omni-infra-providers/sim/talos"
)

const (
	// patience is how long a case waits for anything. It passes on the fake clock.
	patience = 30 * time.Minute
	// calm is how long nothing must happen before the suite takes it that nothing will: several polls of any provider.
	calm = 10 * time.Minute
)

// env is what a case works with: a fresh Omni, a fresh cloud, and the provider between them. Its methods either do what they
// say or end the case with a failure.
type env struct {
	opts     Options
	provider string
	key      string

	world   *World
	omni    *omni.Omni
	subject Subject
	log     *logWriter
	logger  *zap.Logger

	ctx    context.Context // It is the life of this world.
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex
	proc    *process
	ledger  *ledger.Ledger // nil until there is a subject
	foreign map[string]bool

	// writes has the provider's calls to Omni that write.
	writes *ledger.Ledger
}

func newEnv(t *testing.T, opts Options) *env {
	t.Helper()

	e := &env{opts: opts, provider: opts.Provider, foreign: map[string]bool{}, writes: ledger.New()}
	e.ctx, e.cancel = context.WithCancel(context.Background())

	var err error

	if e.omni, err = omni.New(omni.Options{Log: func(text string) { e.note("omni: %s", text) }}); err != nil {
		t.Fatalf("conformance suite: %v", err)
	}

	e.tasks.Go(func() {
		if err := e.omni.Run(e.ctx); err != nil {
			panic(err)
		}
	})

	e.world = &World{omni: e.omni, metas: map[string]talos.Meta{}, exposed: e.watchSecret}
	e.subject = opts.New(t, e.world)
	e.log = &logWriter{env: e}
	e.logger = newLogger(e.log)

	e.mu.Lock()
	e.ledger = e.subject.Cloud.Ledger()
	e.mu.Unlock()

	e.key = e.createProvider(e.provider)

	return e
}

// createProvider makes an infra provider in Omni and returns its service account key.
func (e *env) createProvider(id string) (key string) {
	e.do("create an infra provider", func(ctx context.Context) (err error) {
		key, err = e.omni.CreateProvider(ctx, id)

		return err
	})
	e.watchSecret("service account key", key)

	return key
}

// play runs the case from the start of the provider to a world that is clean again.
func (e *env) play(c testCase, it trouble) (f *failure) {
	defer e.end()

	defer func() {
		switch p := recover().(type) {
		case nil:
		case *failure:
			f = p
			f.history = e.ledger.History()
		default:
			panic(fmt.Sprintf("%v\n\n%s", p, debug.Stack()))
		}
	}()

	if it.arm != nil {
		e.note("trouble: %s", it.name)
		it.arm(e)
	}

	e.start()
	c.run(e)
	e.clear()

	return nil
}

// end cuts everything off and waits for it.
func (e *env) end() {
	e.cancel()

	if p := e.process(); p != nil {
		p.kill()
	}

	e.tasks.Wait()
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
	pause := 50 * time.Millisecond

	for start := time.Now(); ; time.Sleep(pause) {
		got, ok := check()

		switch {
		case ok:
			return
		case e.process().ended():
			e.fail(want, "%s; the provider has ended by itself: %v", got, e.process().err)
		case time.Since(start) > patience:
			e.fail(want, "%s, after %s", got, patience)
		}

		if time.Since(start) > 10*time.Second {
			pause = time.Second
		}
	}
}

// throughout looks at a fact again and again, and ends the case when it does not hold.
func (e *env) throughout(d time.Duration, want string, check func() (got string, ok bool)) {
	for start := time.Now(); time.Since(start) < d; time.Sleep(time.Second) {
		if got, ok := check(); !ok {
			e.fail(want, "%s, after %s", got, time.Since(start).Truncate(time.Second))
		}
	}
}

// note adds a line to the history.
func (e *env) note(format string, args ...any) {
	if l := e.books(); l != nil {
		l.Note(format, args...)
	}
}

func (e *env) books() *ledger.Ledger {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.ledger
}

// watchSecret makes the suite look for value in all that passes.
func (e *env) watchSecret(name, value string) {
	if l := e.books(); l != nil {
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

	e.ledger.Scan(place, string(text))
}

// clear takes everything back that the case has asked for, ends the provider, and looks whether anything is left.
func (e *env) clear() {
	e.scan("the cloud's machines", e.subject.Cloud.Machines())
	e.scanStatuses()
	e.removeAll()
	e.stop()

	e.ledger.Scan("the provider's log", e.log.String())

	var left []string

	left = append(left, e.ledger.Leaks()...)
	left = append(left, e.leftInOmni()...)

	for _, call := range e.omni.Unmodelled() {
		left = append(left, "the provider makes a call that the simulated Omni does not know: "+call)
	}

	if len(left) > 0 {
		e.fail("nothing is left when the requests are gone, and no secret was exposed", "%s", strings.Join(left, "\n"))
	}
}
