package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// stopTime is how long a program may take to end in order.
const stopTime = 20 * time.Second

// process is a program that runs beside the story. It writes into its log file.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   string
	ended chan error
}

// start runs a program of the lab with the given environment besides the lab's.
func (l *lab) start(name string, env []string, args ...string) (*process, error) {
	p := &process{name: name, log: l.dir.log(name), ended: make(chan error, 1)}

	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()

	// Not bound to a context: the programs end in order, the last one first.
	p.cmd = exec.Command(l.dir.bin(name), args...) //nolint:noctx
	p.cmd.Env = append(append(os.Environ(), "TMPDIR="+l.dir.path("tmp"), "XDG_CACHE_HOME="+l.dir.path("tmp")), env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// Ctrl-C on the terminal is for the lab alone.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}

	go func() { p.ended <- p.cmd.Wait() }()

	l.running = append(l.running, p)

	return p, nil
}

// awaitLog returns once the program has logged text, and fails when it ends before.
func (p *process) awaitLog(ctx context.Context, text string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()

	for {
		if data, err := os.ReadFile(p.log); err == nil && strings.Contains(string(data), text) {
			return nil
		}

		select {
		case <-tick.C:
		case err := <-p.ended:
			p.ended <- err

			return fmt.Errorf("%s ended at once: %w: %s", p.name, err, p.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("%s is not up: %w: %s", p.name, context.Cause(ctx), p.lastWords())
		}
	}
}

// stop asks the program to end, and says so if it does not, or not well.
func (p *process) stop() error {
	// It may have ended by itself.
	_ = p.cmd.Process.Signal(syscall.SIGTERM)

	select {
	case err := <-p.ended:
		if err != nil {
			return fmt.Errorf("%s: %w: %s", p.name, err, p.lastWords())
		}

		return nil
	case <-time.After(stopTime):
		return errors.Join(fmt.Errorf("%s does not end within %s", p.name, stopTime), p.cmd.Process.Kill())
	}
}

func (l *lab) stopAll() error {
	var errs []error

	for len(l.running) > 0 {
		last := len(l.running) - 1
		errs = append(errs, l.running[last].stop())
		l.running = l.running[:last]
	}

	return errors.Join(errs...)
}

func (p *process) lastWords() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}

	return string(data[max(0, len(data)-600):])
}
