package image

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// archive writes a cpio archive in the "new ASCII" format that Linux unpacks as initramfs (kernel document
// driver-api/early-userspace/buffer-format). Directories of files are added by themselves.
type archive struct {
	w     io.Writer
	inode int
	dirs  map[string]bool
	err   error
}

const (
	modeDir     = 0o040755
	modeFile    = 0o100000
	modeConsole = 0o020600
)

func newArchive(w io.Writer) *archive {
	return &archive{w: w, dirs: map[string]bool{"": true, ".": true}}
}

// file adds a regular file; name has no leading slash.
func (a *archive) file(name string, mode uint32, data []byte) {
	a.parents(name)
	a.entry(name, modeFile|mode, data, 0, 0)
}

// dir adds an empty directory.
func (a *archive) dir(name string) {
	a.parents(name)

	if !a.dirs[name] {
		a.dirs[name] = true
		a.entry(name, modeDir, nil, 0, 0)
	}
}

// console adds the device that the kernel gives to init as input and output.
func (a *archive) console() {
	a.dir("dev")
	a.entry("dev/console", modeConsole, nil, 5, 1)
}

// close ends the archive and returns the first error.
func (a *archive) close() error {
	a.inode = -1
	a.entry("TRAILER!!!", 0, nil, 0, 0)

	return a.err
}

func (a *archive) parents(name string) {
	if parent := path.Dir(name); !a.dirs[parent] {
		a.dir(parent)
	}
}

func (a *archive) entry(name string, mode uint32, data []byte, major, minor uint32) {
	if a.err != nil {
		return
	}

	a.inode++

	var header strings.Builder

	header.WriteString("070701")

	for _, field := range []uint32{
		uint32(a.inode), mode, 0, 0, 1, 0, uint32(len(data)), 0, 0, major, minor, uint32(len(name) + 1), 0,
	} {
		fmt.Fprintf(&header, "%08x", field)
	}

	header.WriteString(name + "\x00")
	a.write([]byte(header.String()))
	a.write(data)
}

// write pads to four bytes, as every header and file is.
func (a *archive) write(data []byte) {
	for _, part := range [][]byte{data, make([]byte, -len(data)&3)} {
		if a.err == nil {
			_, a.err = a.w.Write(part)
		}
	}
}

// modules are what a guest needs on QEMU's devices, in any bus that Debian's cloud kernel has a driver for.
var modules = []string{
	"virtio_pci", "virtio_net", "virtio_blk", "virtio_scsi", "sd_mod", "sr_mod", "ata_piix", "isofs", "vfat",
	"nls_cp437", "nls_ascii", "nls_utf8", "nls_iso8859_1", "evdev", "button", "virtio_console", "virtio_rng",
}

// moduleFiles returns the paths of the modules and of all they depend on, in the order in which they can be loaded. all maps
// the names of a kernel's modules to their files.
func moduleFiles(all map[string]string) ([]string, error) {
	var (
		files []string
		add   func(name string) error
		seen  = map[string]bool{}
	)

	add = func(name string) error {
		if seen[name] {
			return nil
		}

		seen[name] = true

		file, ok := all[name]
		if !ok {
			return fmt.Errorf("the kernel has no module %s", name)
		}

		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}

		for _, needed := range dependencies(content) {
			if err = add(needed); err != nil {
				return fmt.Errorf("module %s: %w", name, err)
			}
		}

		files = append(files, file)

		return nil
	}

	for _, name := range modules {
		if err := add(name); err != nil {
			return nil, err
		}
	}

	return files, nil
}

// dependencies reads the field depends of a module's .modinfo section.
func dependencies(module []byte) []string {
	_, rest, ok := bytes.Cut(module, []byte("\x00depends="))
	if !ok {
		return nil
	}

	field, _, _ := bytes.Cut(rest, []byte{0})
	if len(field) == 0 {
		return nil
	}

	return strings.Split(moduleName(string(field)), ",")
}

// moduleName writes a name as the kernel does, whatever its file is called.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }
