package controlplane

import (
	"errors"
	"os"
	"path/filepath"
)

// folderPrefix begins the name of every folder of a control plane.
const folderPrefix = "omni-infra-controlplane-"

// leastRoom is what a file system in memory needs to have free to be used. A whole conformance run writes a quarter of it, etcd ends when
// there is none left, and a container has but 64 MiB unless it is given more.
const leastRoom = 1 << 30

// parent returns where the folders of control planes are: in memory if there is room for so many bytes, else among the temporary ones.
func parent(memory string, least uint64) string {
	if memory != "" && room(memory) >= least {
		return memory
	}

	return os.TempDir()
}

// folder is one of this process's own, locked for as long as the process lives, so that everybody can tell it from one that is left.
type folder struct {
	path string
	open *os.File
}

// newFolder makes a folder, after it has removed those of processes that were killed.
func newFolder(parent string) (*folder, error) {
	if err := sweep(parent); err != nil {
		return nil, err
	}

	for {
		path, err := os.MkdirTemp(parent, folderPrefix)
		if err != nil {
			return nil, err
		}

		// Somebody who sweeps may be faster: until it is locked, the folder looks like one that is left.
		if f := take(path); f != nil {
			return f, nil
		}
	}
}

// sweep removes the folders that nobody has locked. What may not be removed is not ours.
func sweep(parent string) error {
	if !locks {
		return nil
	}

	paths, err := filepath.Glob(filepath.Join(parent, folderPrefix+"*"))
	if err != nil {
		return err
	}

	for _, path := range paths {
		if f := take(path); f != nil {
			if err := f.remove(); err != nil && !errors.Is(err, os.ErrPermission) {
				return err
			}
		}
	}

	return nil
}

// take locks a folder that is there and nobody else's, and returns nil for any other.
func take(path string) *folder {
	open, err := os.Open(path) //nolint:gosec // a folder of ours by its name
	if err != nil {
		return nil
	}

	f := &folder{path: path, open: open}
	if lock(open) && f.isThere() {
		return f
	}

	_ = open.Close() // Nothing was written.

	return nil
}

// isThere reports whether the path still leads to the folder that is locked.
func (f *folder) isThere() bool {
	there, err := os.Stat(f.path)
	if err != nil {
		return false
	}

	locked, err := f.open.Stat()

	return err == nil && os.SameFile(there, locked)
}

// remove removes the folder with all that is in it.
func (f *folder) remove() error { return errors.Join(os.RemoveAll(f.path), f.open.Close()) }
