package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/omni-infra/omni-infra-providers/sim/talos/guest"
)

// initPackage is the program that is the guest's init.
const initPackage = "github.com/omni-infra/omni-infra-providers/sim/cmd/talos-init"

// kernelPackage depends on the newest kernel that Debian builds for virtual machines.
const kernelPackage = "linux-image-cloud-amd64"

// tool is a program or file that building needs, and the Debian package that has it.
type tool struct{ path, debian string }

var (
	mbrCode     = tool{"/usr/lib/syslinux/mbr/mbr.bin", "syslinux-common"}
	systemdBoot = tool{"/usr/lib/systemd/boot/efi/systemd-bootx64.efi", "systemd-boot-efi"}
	tools       = []tool{
		mbrCode, systemdBoot,
		{"mformat", "mtools"}, {"mcopy", "mtools"}, {"syslinux", "syslinux"},
		{"qemu-img", "qemu-utils"}, {"xorriso", "xorriso"},
	}
)

// Missing returns the Debian packages that have to be installed before images can be built.
func Missing() []string {
	var missing []string

	for _, tool := range tools {
		_, err := exec.LookPath(tool.path)
		if filepath.IsAbs(tool.path) {
			_, err = os.Stat(tool.path)
		}

		if err != nil && (len(missing) == 0 || missing[len(missing)-1] != tool.debian) {
			missing = append(missing, tool.debian)
		}
	}

	return missing
}

// Install installs the packages with apt-get, which takes root.
func Install(ctx context.Context, packages []string) error {
	if len(packages) == 0 {
		return nil
	}

	if err := run(ctx, nil, "apt-get", "-o", "DPkg::Lock::Timeout=300", "update"); err != nil {
		return err
	}

	return run(ctx, nil, "apt-get", append([]string{"-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends"}, packages...)...)
}

// run runs a program; its error has the end of what the program said.
func run(ctx context.Context, stdin []byte, name string, args ...string) error {
	_, err := output(ctx, "", stdin, name, args...)

	return err
}

func output(ctx context.Context, dir string, stdin []byte, name string, args ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer

	command := exec.CommandContext(ctx, name, args...)
	command.Dir, command.Stdin, command.Stdout, command.Stderr = dir, bytes.NewReader(stdin), &stdout, &stderr
	command.Env = append(os.Environ(), "MTOOLS_SKIP_CHECK=1", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")

	if err := command.Run(); err != nil {
		said := strings.TrimSpace(stderr.String() + stdout.String())
		if len(said) > 400 {
			said = "…" + said[len(said)-400:]
		}

		return nil, fmt.Errorf("run %s: %w: %s", name, err, said)
	}

	return stdout.Bytes(), nil
}

// parts are what every image is made of.
type parts struct {
	kernel string // a file
	initrd string // a file: init and modules, compressed
	// sum changes when one of them does.
	sum string
}

// prepare makes the parts, or takes those that are in the cache.
func (b *Builder) prepare(ctx context.Context) (parts, error) {
	if missing := Missing(); len(missing) > 0 {
		return parts{}, fmt.Errorf("building images needs Debian packages: apt-get install --no-install-recommends %s", strings.Join(missing, " "))
	}

	kernel, err := b.kernel(ctx)
	if err != nil {
		return parts{}, err
	}

	program, err := b.init(ctx)
	if err != nil {
		return parts{}, err
	}

	sum := sha256.Sum256(append([]byte(kernel+"\x00"+strings.Join(modules, ",")+"\x00"), program...))
	made := parts{kernel: filepath.Join(kernel, "vmlinuz"), sum: hex.EncodeToString(sum[:8])}
	made.initrd = filepath.Join(b.Dir, "initrd-"+made.sum+".zst")

	if _, err = os.Stat(made.initrd); err == nil {
		return made, nil
	}

	return made, b.publish(made.initrd, func(temporary string) error {
		return writeInitrd(temporary, program, filepath.Join(kernel, "modules"))
	})
}

// init returns the guest's init, built with Go when the builder names no file.
func (b *Builder) init(ctx context.Context) ([]byte, error) {
	if b.Init != "" {
		if err := checkInit(b.Init); err != nil {
			return nil, err
		}

		return os.ReadFile(b.Init)
	}

	dir, err := os.MkdirTemp("", "talos-init-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // A temporary directory.

	name := filepath.Join(dir, "init")

	if err = run(ctx, nil, "env", "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64",
		"go", "build", "-ldflags=-s -w", "-o", name, initPackage); err != nil {
		return nil, fmt.Errorf("build the guest's init (or name a built one): %w", err)
	}

	return os.ReadFile(name)
}

// checkInit refuses a program that could not start in the guest, which has no libraries.
func checkInit(name string) error {
	program, err := elf.Open(name)
	if err != nil {
		return fmt.Errorf("read the guest's init %q: %w", name, err)
	}
	defer program.Close() //nolint:errcheck // it was only read

	if slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return fmt.Errorf("the guest's init %q needs shared libraries, which the guest does not have: build it with CGO_ENABLED=0", name)
	}

	return nil
}

// kernelName is how Debian names a kernel's package.
var kernelName = regexp.MustCompile(`Depends: (linux-image-\S+)`)

// kernel returns a directory with vmlinuz and modules. A kernel that is not in the cache is downloaded and unpacked, but never
// installed.
func (b *Builder) kernel(ctx context.Context) (string, error) {
	if b.Kernel != "" {
		return b.Kernel, nil
	}

	// Only the modules that are needed are kept, so the directory's name says which.
	sum := sha256.Sum256([]byte(strings.Join(modules, " ")))
	suffix := "+" + hex.EncodeToString(sum[:4])

	cached, err := filepath.Glob(filepath.Join(b.Dir, "linux-image-*"+suffix, "vmlinuz"))
	if err != nil {
		return "", err
	}

	if len(cached) > 0 {
		return filepath.Dir(cached[0]), nil
	}

	name, err := newestKernel(ctx)
	if err != nil {
		return "", err
	}

	dir := filepath.Join(b.Dir, name+suffix)

	return dir, b.publish(dir, func(temporary string) error { return unpackKernel(ctx, name, temporary) })
}

// newestKernel asks apt for the name of the kernel's package. Lists that do not know it are brought up to date, for which apt has
// to run as root.
func newestKernel(ctx context.Context) (string, error) {
	var stale error

	for range 2 {
		depends, err := output(ctx, "", nil, "apt-cache", "depends", kernelPackage)
		if match := kernelName.FindSubmatch(depends); err == nil && match != nil {
			return string(match[1]), nil
		}

		if stale != nil {
			break
		}

		stale = errors.Join(err, fmt.Errorf("apt does not know the package %s", kernelPackage))

		if err = run(ctx, nil, "apt-get", "update"); err != nil {
			return "", fmt.Errorf("look for a kernel (run apt-get update as root): %w", errors.Join(stale, err))
		}
	}

	return "", fmt.Errorf("look for a kernel: %w", stale)
}

func unpackKernel(ctx context.Context, name, dir string) error {
	download, err := os.MkdirTemp("", "kernel-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(download) //nolint:errcheck // A temporary directory.

	if _, err = output(ctx, download, nil, "apt-get", "download", name); err != nil {
		return fmt.Errorf("download kernel: %w", err)
	}

	packages, err := filepath.Glob(filepath.Join(download, "*.deb"))
	if err != nil || len(packages) != 1 {
		return errors.Join(err, fmt.Errorf("download kernel: got %d packages", len(packages)))
	}

	unpacked := filepath.Join(download, "unpacked")
	if err = run(ctx, nil, "dpkg", "-x", packages[0], unpacked); err != nil {
		return err
	}

	kernels, err := filepath.Glob(filepath.Join(unpacked, "boot", "vmlinuz-*"))
	if err != nil || len(kernels) != 1 {
		return errors.Join(err, fmt.Errorf("package %s has %d kernels", name, len(kernels)))
	}

	if err = os.MkdirAll(filepath.Join(dir, "modules"), 0o755); err != nil {
		return err
	}

	all, err := listModules(filepath.Join(unpacked, "lib", "modules"))
	if err != nil {
		return err
	}

	files, err := moduleFiles(all)
	if err != nil {
		return err
	}

	for _, file := range files {
		if err = copyFile(filepath.Join(dir, "modules", filepath.Base(file)), file); err != nil {
			return err
		}
	}

	return copyFile(filepath.Join(dir, "vmlinuz"), kernels[0])
}

// listModules maps the names of the modules below dir to their files.
func listModules(dir string) (map[string]string, error) {
	all := map[string]string{}

	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if module, ok := strings.CutSuffix(filepath.Base(name), ".ko"); ok {
			all[moduleName(module)] = name
		}

		return err
	})

	return all, err
}

// writeInitrd writes the part of the initramfs that all images share.
func writeInitrd(name string, program []byte, moduleDir string) error {
	all, err := listModules(moduleDir)
	if err != nil {
		return err
	}

	files, err := moduleFiles(all)
	if err != nil {
		return err
	}

	var content bytes.Buffer

	packed := newArchive(&content)
	packed.console()

	for _, dir := range []string{"proc", "sys", "etc", "tmp"} {
		packed.dir(dir)
	}

	packed.file("init", 0o755, program)

	for i, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}

		packed.file(fmt.Sprintf("%s/%02d-%s", strings.TrimPrefix(guest.ModuleDir, "/"), i, filepath.Base(file)), 0o644, data)
	}

	if err = packed.close(); err != nil {
		return err
	}

	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
	if err != nil {
		return err
	}
	defer encoder.Close() //nolint:errcheck // Writes nowhere.

	return os.WriteFile(name, encoder.EncodeAll(content.Bytes(), nil), 0o644)
}

func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}

	return os.WriteFile(to, data, 0o644)
}
