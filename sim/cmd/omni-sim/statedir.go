package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// stateDir is where the files with keys are.
type stateDir struct {
	path      string
	temporary bool
}

// openStateDir makes the directory; an empty path makes a temporary one.
func openStateDir(path string) (*stateDir, error) {
	if path == "" {
		path, err := os.MkdirTemp("", "omni-sim-")
		if err != nil {
			return nil, fmt.Errorf("make state directory: %w", err)
		}

		return &stateDir{path: path, temporary: true}, nil
	}

	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}

	d := &stateDir{path: path}

	return d, d.removeKeys()
}

// close removes a temporary directory, or the files in another: their keys are worth nothing without this Omni.
func (d *stateDir) close(err *error) {
	if d.temporary {
		*err = errors.Join(*err, os.RemoveAll(d.path))
	} else {
		*err = errors.Join(*err, d.removeKeys())
	}
}

// removeKeys removes the files with keys of this Omni or of an earlier one, so that nobody takes an old one for new.
func (d *stateDir) removeKeys() error {
	for _, pattern := range []string{"admin.env", "provider-*.env", "tls.pem"} {
		files, err := filepath.Glob(filepath.Join(d.path, pattern))
		if err != nil {
			return err
		}

		for _, file := range files {
			if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("remove an old key: %w", err)
			}
		}
	}

	return nil
}

// writeEnv writes a file of export lines and returns its path.
func (d *stateDir) writeEnv(name, lines string) (string, error) {
	path := filepath.Join(d.path, filepath.Base(name))

	if err := writeSecret(path, lines); err != nil {
		return "", fmt.Errorf("write key: %w", err)
	}

	return path, nil
}

// writeSecret writes a file that only its owner can read, whoever could read an older one of that name, and in one step, so
// that whoever waits for it finds it whole.
func writeSecret(path, content string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".omni-sim-")
	if err != nil {
		return err
	}

	_, err = f.WriteString(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}

	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}

	return nil
}

// serveTLS returns a listener with TLS and writes its certificate.
func (d *stateDir) serveTLS(l net.Listener) (net.Listener, error) {
	host, _, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return nil, err
	}

	listener, certificate, err := omni.TLS(l, host, "localhost")
	if err != nil {
		return nil, err
	}

	return listener, writeSecret(filepath.Join(d.path, "tls.pem"), string(certificate))
}
