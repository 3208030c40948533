package controlplane

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// process is a program that runs until it is killed.
type process struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
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
	endWithUs(cmd)

	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %q: %w", program, err)
	}

	p := &process{cmd: cmd, log: log, ended: make(chan struct{})}

	go func() {
		defer close(p.ended)

		_ = cmd.Wait() // How it ended is in its log.
	}()

	return p, nil
}

// kill ends the program and waits for its end.
func (p *process) kill() error {
	select {
	case <-p.ended:
		return nil
	default:
	}

	err := p.cmd.Process.Kill()
	<-p.ended

	return err
}

// tail returns the end of what the program has written.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}

	return clip(string(text), 2000)
}
