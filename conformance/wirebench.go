package conformance

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

const (
	// maxOutput is how much of a program's output is kept to look for secrets in, and maxLine how much of a line the history has.
	maxOutput = 8 << 20
	maxLine   = 2000
	// pipeTime is how long the output of a program is waited for when the program itself has ended.
	pipeTime = 2 * time.Second
	// deafTime is how long a program may take until it listens to signals.
	deafTime = time.Second
)

// wireBench runs the provider's program.
type wireBench struct {
	env      *env
	command  []string
	endpoint string
	create   func(ctx context.Context, id string) (key string, err error)

	mu sync.Mutex
	// started are all processes of the case. None is started once it is closed.
	started []*process
	closed  bool
}

func (b *wireBench) createProvider(ctx context.Context, id string) (key string, err error) {
	if key, err = b.create(ctx, id); err != nil {
		return "", err
	}

	return key, b.env.watchJoinTokens(ctx, id)
}

// launch starts the program in a process group of its own: Ctrl-C on the terminal is for the suite, and what the program has
// started dies with it.
func (b *wireBench) launch(id, key string) (*process, error) {
	var args []string
	for _, arg := range b.command {
		args = append(args, strings.ReplaceAll(arg, "{id}", id))
	}

	out := &output{env: b.env, name: id}

	cmd := exec.Command(args[0], args[1:]...) //nolint:noctx // cases end it in several ways
	cmd.Env = append(cleanEnv(), "OMNI_ENDPOINT="+b.endpoint, "OMNI_SERVICE_ACCOUNT_KEY="+key, "PROVIDER_ID="+id)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = pipeTime

	b.mu.Lock()
	defer b.mu.Unlock()

	if b.closed {
		return nil, errors.New("the case is over")
	}

	if err := cmd.Start(); err != nil {
		return nil, err
	}

	var (
		p     = &process{done: make(chan struct{})}
		mu    sync.Mutex
		asked bool
	)

	send := func(pid int, signal syscall.Signal) {
		mu.Lock()
		defer mu.Unlock()

		asked = true

		if signal == syscall.SIGTERM && p.over() {
			return
		}

		// It may have ended by itself.
		_ = syscall.Kill(pid, signal)
	}

	b.started = append(b.started, p)
	begun := time.Now()

	p.terminate = func() {
		// A program that has only just begun does not hear a signal yet.
		time.Sleep(time.Until(begun.Add(deafTime)))
		send(cmd.Process.Pid, syscall.SIGTERM)
	}
	p.cut = func() { send(-cmd.Process.Pid, syscall.SIGKILL) }

	b.env.tasks.Go(func() {
		defer close(p.done)

		p.err = cmd.Wait()
		out.flush()

		mu.Lock()
		p.early = !asked
		mu.Unlock()

		if p.early {
			b.env.note("provider %s ends by itself: %v", id, cmd.ProcessState)
		}

		// What it has started and left behind ends, too.
		p.kill()
	})

	return p, nil
}

// close kills all processes that run, and lets no other begin.
func (b *wireBench) close() {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.closed = true

	for _, p := range b.started {
		p.kill()
	}
}

// cleanEnv is this process's environment without what belongs to another Omni.
func cleanEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "OMNI_") || strings.HasPrefix(v, "PROVIDER_ID=")
	})
}

// output puts what a program prints into the history, line by line, and keeps it.
type output struct {
	env  *env
	name string
	line []byte
}

// Write is called from one goroutine.
func (o *output) Write(data []byte) (int, error) {
	o.line = append(o.line, data...)

	for {
		i := bytes.IndexByte(o.line, '\n')
		if i < 0 && len(o.line) < maxLine {
			return len(data), nil
		}

		if i < 0 {
			i = len(o.line) - 1
		}

		o.put(string(o.line[:i+1]))
		o.line = o.line[i+1:]
	}
}

func (o *output) flush() {
	if len(o.line) > 0 {
		o.put(string(o.line))
	}
}

func (o *output) put(line string) {
	o.env.log.keep(line)

	if line = strings.TrimSpace(line); line != "" {
		o.env.note("%s: %s", o.name, line)
	}
}

// simulate runs a fresh simulated Omni for a case.
func (r *wireRun) simulate(ctx context.Context, e *env, b *wireBench, setup omni.Options) error {
	var config net.ListenConfig

	api, err := config.Listen(ctx, "tcp", cmp.Or(r.Local.Listen, "127.0.0.1:0"))
	if err != nil {
		return fmt.Errorf("listen for Omni's API: %w", err)
	}

	machine, err := config.Listen(ctx, "tcp", cmp.Or(r.Local.MachineListen, "127.0.0.1:0"))
	if err != nil {
		return errors.Join(fmt.Errorf("listen for machines: %w", err), api.Close())
	}

	b.endpoint = "http://" + api.Addr().String()

	setup.APIURL, setup.MachineAPIURL = b.endpoint, cmp.Or(r.Local.MachineURL, "grpc://"+machine.Addr().String())
	setup.FactoryURL, setup.TalosVersions = r.Local.FactoryURL, append(slices.Clone(omni.DefaultTalosVersions), r.TalosVersion)
	setup.Log = func(text string) { e.note("omni: %s", text) }

	if e.omni, err = omni.New(setup); err != nil {
		return errors.Join(err, api.Close(), machine.Close())
	}

	e.state, b.create = e.omni.State(), e.omni.CreateProvider

	for _, run := range []func() error{
		func() error { return e.omni.Run(e.ctx) },
		func() error { return e.omni.Serve(e.ctx, api, machine) },
	} {
		e.tasks.Go(func() {
			if err := run(); err != nil {
				e.note("omni: %v", err)
			}
		})
	}

	return nil
}
