package controlplane

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// process is a program that runs until it is killed.
type process struct {
	cmd   *exec.Cmd
	log   string
	ended <-chan struct{}
}

// start starts a program in a folder, where its output goes to a file.
func start(dir, log, program string, args ...string) (*process, error) {
	log = filepath.Join(dir, log)

	output, err := os.Create(log) //nolint:gosec // a file in a folder of ours
	if err != nil {
		return nil, err
	}
	defer output.Close() //nolint:errcheck // The program has it.

	cmd := exec.Command(program, args...) //nolint:gosec,noctx // It outlives the call that starts it.
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output

	p := &process{cmd: cmd, log: log}
	if p.ended, err = StartProgram(cmd); err != nil {
		return nil, fmt.Errorf("start %q: %w", program, err)
	}

	return p, nil
}

// StartProgram starts a program that the kernel kills when this process dies, whatever it dies of, and returns what is closed when the
// program has ended: cmd.ProcessState tells how.
func StartProgram(cmd *exec.Cmd) (ended <-chan struct{}, err error) {
	endWithUs(cmd)

	started, done := make(chan error, 1), make(chan struct{})

	go func() {
		// The kernel takes the end of the thread for that of the process, and threads end when Go has no use for them.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()

		err := cmd.Start()
		started <- err

		if err == nil {
			_ = cmd.Wait() // How it ended, its state says.
		}

		close(done)
	}()

	return done, <-started
}

// hasEnded reports whether the program has ended.
func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// kill ends the program and waits for its end.
func (p *process) kill() error {
	if p.hasEnded() {
		return nil
	}

	err := p.cmd.Process.Kill()
	<-p.ended

	// It may have ended by itself meanwhile.
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}

	return err
}

// failure says that the program has ended, which it should not have done by itself.
func (p *process) failure() error {
	return fmt.Errorf("%s has ended: %s: %s", filepath.Base(p.cmd.Path), p.cmd.ProcessState, p.tail())
}

// tail returns the end of what the program has written.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}

	return clip(string(text), 2000)
}
