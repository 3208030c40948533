package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/omni-infra/omni-infra-providers/sim/factory/image"
)

// script starts the private libvirtd.
const script = "providers/libvirt/lab/private-libvirtd.sh"

// layout is the lab's directory.
type layout string

func (l layout) path(name ...string) string {
	return filepath.Join(append([]string{string(l)}, name...)...)
}

func (l layout) libvirt() string        { return l.path("libvirt") }
func (l layout) bin(name string) string { return l.path("bin", name) }
func (l layout) log(name string) string { return l.path("log", name+".log") }

// outside builds the programs, starts this program again beside a private libvirtd, and checks that no process, mount or file
// is left when that has ended. What needs the network is done here: there is none inside.
func outside(cfg config) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("the lab needs root, for the namespaces of its libvirtd: sudo -E make lab")
	}

	if _, err := os.Stat(script); err != nil {
		return fmt.Errorf("run the lab from the repository's root: %w", err)
	}

	temp, err := os.MkdirTemp("", "omni-lab-")
	if err != nil {
		return fmt.Errorf("make the lab's directory: %w", err)
	}

	dir := layout(temp)

	defer func() {
		if err == nil {
			err = os.RemoveAll(string(dir))

			return
		}

		// Keys, disks and programs go in any case.
		for _, name := range []string{"bin", "omni", "tmp", "libvirt/lib", "libvirt/cache"} {
			err = errors.Join(err, os.RemoveAll(dir.path(name)))
		}

		err = fmt.Errorf("%w\nThe logs are in %s and %s", err, dir.path("log"), filepath.Join(dir.libvirt(), "log"))
	}()

	for _, sub := range []string{"bin", "log", "tmp", "omni"} {
		if err := os.Mkdir(dir.path(sub), 0o700); err != nil {
			return err
		}
	}

	if err := build(dir); err != nil {
		return err
	}

	return errors.Join(startInside(cfg, dir), nothingLeft(dir))
}

func build(dir layout) error {
	fmt.Println("lab: building the programs")

	if err := goBuild(nil, dir.path("bin")+"/", "./providers/libvirt/cmd/omni-infra-provider-libvirt",
		"./sim/cmd/omni-sim", "./sim/cmd/image-factory-sim"); err != nil {
		return err
	}

	if err := goBuild([]string{"CGO_ENABLED=0"}, dir.bin("talos-init"), "./sim/cmd/talos-init"); err != nil {
		return err
	}

	fmt.Println("lab: preparing the guests' kernel, from Debian's package of it")

	builder := &image.Builder{Dir: imageCache(), Init: dir.bin("talos-init")}
	if err := builder.Prepare(context.Background()); err != nil {
		return fmt.Errorf("prepare boot images: %w", err)
	}

	return nil
}

// imageCache keeps the kernel and built images from one lab to the next.
func imageCache() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}

	return filepath.Join(cache, "image-factory-sim")
}

// goBuild builds packages. Programs say which commit they are of, but in a checkout of another user git does not tell.
func goBuild(env []string, out string, packages ...string) error {
	args := append([]string{"build", "-buildvcs=false", "-tags", "libvirt_dlopen", "-o", out}, packages...)
	cmd := exec.Command("go", args...) //nolint:noctx // A build takes as long as it takes; Ctrl-C reaches it too.
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr

	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w", strings.Join(packages, " "), err)
	}

	return nil
}

// startInside runs this program beside the private libvirtd.
func startInside(cfg config, dir layout) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}

	cmd := exec.Command(script, dir.libvirt(), self, //nolint:noctx // It is told to end by the signals below.
		"-inside", string(dir),
		"-machines", strconv.Itoa(cfg.machines), "-firmware", cfg.firmware, "-patience", cfg.patience.String(),
		"-plain="+strconv.FormatBool(cfg.plain), "-keep="+strconv.FormatBool(cfg.keep))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr

	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the private libvirtd: %w", err)
	}

	// The process stays in the namespaces' parent, and so is the door for nsenter.
	if err := os.WriteFile(dir.path("pid"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}

	// Ctrl-C reaches the inside from the terminal as well; this process waits for it to end in order.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)

	defer signal.Stop(signals)

	ended := make(chan error, 1)

	go func() { ended <- cmd.Wait() }()

	for {
		select {
		case err := <-ended:
			if err != nil {
				return fmt.Errorf("inside of the lab: %w", err)
			}

			return nil
		case s := <-signals:
			if s == syscall.SIGTERM {
				if err := cmd.Process.Kill(); err != nil {
					return err
				}
			}
		}
	}
}

// nothingLeft looks for processes and mounts of the lab outside of its namespaces, where there must be none.
func nothingLeft(dir layout) error {
	var left []string

	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}

	for _, name := range lines {
		// A process that has ended since has no command line.
		if data, err := os.ReadFile(name); err == nil && strings.Contains(string(data), string(dir)) {
			left = append(left, "process "+strings.ReplaceAll(strings.TrimRight(string(data), "\x00"), "\x00", " "))
		}
	}

	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}

	if strings.Contains(string(mounts), string(dir)) {
		left = append(left, "a mount of "+string(dir))
	}

	if len(left) > 0 {
		return fmt.Errorf("left on this machine: %s", strings.Join(left, "; "))
	}

	fmt.Println("on this machine: no process and no mount of the lab is left")

	return nil
}
