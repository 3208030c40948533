package conformance

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// restartTime passes between the death of a process and the start of the next one.
	restartTime = 5 * time.Second
	// endTime is how long a process may take to end.
	endTime = 10 * time.Second
)

// process is one life of the provider.
type process struct {
	// terminate asks the process to end in order. cut ends it as a crash does: it does nothing more, and all its connections are
	// cut at once. Neither waits for the end.
	terminate, cut func()
	dying          sync.Once
	// isolate cuts the process off from Omni, or ends that; nil where that cannot be done.
	isolate func(on bool)

	done chan struct{}
	// err is what the process ended with, and early says that nobody had ended it. Both are set before done is closed.
	err   error
	early bool
}

// start runs the provider.
func (e *env) start() {
	p := e.launch(e.provider, e.key)

	e.mu.Lock()
	e.proc = p
	e.mu.Unlock()
}

// launch starts a process of a provider.
func (e *env) launch(id, key string) *process {
	e.note("provider %s starts", id)

	p, err := e.bench.launch(id, key)
	if err != nil {
		panic(fmt.Errorf("start provider %s: %w", id, err))
	}

	return p
}

// kill ends the process as a crash does.
func (p *process) kill() { p.dying.Do(p.cut) }

// crash kills the provider now, and starts it again a little later.
func (e *env) crash() {
	p := e.process()
	p.kill()

	if e.ledger != nil {
		e.ledger.Disconnect()
	}

	if e.writes != nil {
		e.writes.Disconnect()
	}

	e.note("the provider is dead")

	e.tasks.Go(func() {
		<-p.done

		if e.asked.Err() != nil || sleep(e.ctx, e.pace.cut(restartTime)) != nil {
			return
		}

		// A program that cannot be started is missed by the case.
		if err := catch(e.start); err != nil {
			e.note("%v", err)
		}
	})
}

// killAndStart lets the provider die, and waits until it has been started again.
func (e *env) killAndStart() {
	p := e.process()
	p.kill()
	<-p.done

	if e.ledger != nil {
		e.ledger.Disconnect()
	}

	e.note("the provider is dead")
	e.sleep(restartTime)
	e.start()
}

// stop ends the provider in order, which it has to do promptly and without an error.
func (e *env) stop() {
	p := e.process()
	p.terminate()

	select {
	case <-p.done:
	case <-time.After(endTime):
		e.fail("the provider ends within "+endTime.String()+" when it is told to", "it still runs")
	}

	if p.err != nil {
		e.fail("the provider ends without an error when it is told to", "%v", p.err)
	}

	e.note("provider %s has ended", e.provider)
}

// restart ends the provider in order and starts it again.
func (e *env) restart() {
	e.stop()
	e.sleep(restartTime)
	e.start()
}

func (e *env) process() *process {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.proc
}

// ended reports whether the provider ended though nobody wanted it to.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return p.early
	default:
		return false
	}
}

// over reports whether the process has ended.
func (p *process) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

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
