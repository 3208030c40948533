package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The network and the storage pool of the lab. They are the operator's; the provider is told their names.
const (
	poolName = "default"
	gateway  = "192.168.121.1"
	network  = `<network>
  <name>default</name>
  <forward mode='nat'/>
  <bridge name='omnilab0' stp='off' delay='0'/>
  <ip address='` + gateway + `' netmask='255.255.255.0'><dhcp><range start='192.168.121.10' end='192.168.121.250'/></dhcp></ip>
</network>`
)

// virsh is the operator, and the witness: nothing in it is code of the provider. It implements story.Cloud.
type virsh struct{}

func (virsh) run(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "virsh", append([]string{"-q", "-c", "qemu:///system"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "LC_ALL=C")

	var stderr bytes.Buffer

	cmd.Stderr = &stderr

	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("virsh %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}

	return string(out), nil
}

func (v virsh) lines(ctx context.Context, args ...string) ([]string, error) {
	out, err := v.run(ctx, "", args...)

	return slices.DeleteFunc(strings.Split(out, "\n"), func(line string) bool { return strings.TrimSpace(line) == "" }), err
}

// setUp makes the network and the pool.
func (v virsh) setUp(ctx context.Context, pool string) error {
	if err := os.MkdirAll(pool, 0o711); err != nil {
		return err
	}

	for _, step := range []struct {
		stdin string
		args  []string
	}{
		{network, []string{"net-define", "/dev/stdin"}},
		{"", []string{"net-start", "default"}},
		{"", []string{"pool-define-as", poolName, "dir", "--target", pool}},
		{"", []string{"pool-start", poolName}},
	} {
		if _, err := v.run(ctx, step.stdin, step.args...); err != nil {
			return err
		}
	}

	return nil
}

// nameSuffix is what the provider puts behind a request's id.
var nameSuffix = regexp.MustCompile(`-[0-9a-f]{12}$`)

// Machines returns the domains, by the ids of their requests.
func (v virsh) Machines(ctx context.Context) ([]string, error) {
	names, err := v.lines(ctx, "list", "--all", "--name")
	for i, name := range names {
		names[i] = nameSuffix.ReplaceAllString(name, "")
	}

	return names, err
}

// Remove takes a domain away as somebody with virsh would: its disks stay, for the provider to find.
func (v virsh) Remove(ctx context.Context, request string) error {
	names, err := v.lines(ctx, "list", "--all", "--name")
	if err != nil {
		return err
	}

	for _, name := range names {
		if nameSuffix.ReplaceAllString(name, "") == request {
			_, err := v.run(ctx, "", "destroy", name)
			_, undefineErr := v.run(ctx, "", "undefine", name, "--nvram")

			return errors.Join(err, undefineErr)
		}
	}

	return fmt.Errorf("libvirt has no domain of request %q", request)
}

// finding is one thing that was looked for, how, and what was there.
type finding struct {
	how  string
	what []string
}

// witness looks for everything that a machine could leave: names beginning with prefix are the machines'.
func (v virsh) witness(ctx context.Context, prefix string) ([]finding, error) {
	domains, err := v.lines(ctx, "list", "--all", "--name")
	if err != nil {
		return nil, err
	}

	volumes, err := v.lines(ctx, "vol-list", poolName)
	if err != nil {
		return nil, err
	}

	networks, err := v.lines(ctx, "net-list", "--all", "--name")
	if err != nil {
		return nil, err
	}

	nvram, err := files("/var/lib/libvirt/qemu/nvram", "")
	if err != nil {
		return nil, err
	}

	named, err := files("/var/lib/libvirt", prefix)
	if err != nil {
		return nil, err
	}

	runtime, err := files("/run/libvirt", prefix)
	if err != nil {
		return nil, err
	}

	guests, err := guests()

	return []finding{
		{"virsh list --all", domains},
		{"virsh vol-list " + poolName + " (but for the boot image, which stays for a day)", withoutImages(firstFields(volumes))},
		{"virsh net-list --all", networks},
		{"find /var/lib/libvirt/qemu/nvram", nvram},
		{"find /var/lib/libvirt /run/libvirt -name '" + prefix + "*'", append(named, runtime...)},
		{"ps, for qemu", guests},
	}, err
}

func firstFields(lines []string) []string {
	for i, line := range lines {
		lines[i] = strings.Fields(line)[0]
	}

	return lines
}

// withoutImages leaves out the boot image, which the provider keeps for the next machine, and for a day when there is none.
func withoutImages(volumes []string) []string {
	return slices.DeleteFunc(volumes, func(name string) bool { return strings.HasPrefix(name, "omni-image-") })
}

// files returns the files below root whose names begin with prefix.
func files(root, prefix string) ([]string, error) {
	var found []string

	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasPrefix(entry.Name(), prefix) {
			found = append(found, path)
		}

		// What goes away during the walk, or was never there, is what one hopes for.
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}

		return err
	})

	return found, err
}

// guests returns the programs of QEMU that run. One that has ended and waits to be reaped has no command line.
func guests() ([]string, error) {
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")

	var found []string

	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // It has ended.
		}

		if program, _, _ := strings.Cut(string(data), "\x00"); strings.HasPrefix(filepath.Base(program), "qemu-system") {
			found = append(found, program)
		}
	}

	return found, err
}
