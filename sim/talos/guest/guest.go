//go:build linux

// Package guest runs a simulated Talos machine as the init of a Linux guest: it mounts, loads drivers, gets an address, finds
// the seed and META on the disks, and obeys the power button and the QEMU guest agent's host. cmd/talos-init is its only
// importer; everything that makes the machine a Talos is in sim/talos.
package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/omni-infra/omni-infra-providers/sim/talos"
)

// The files that the image builder puts into the initramfs.
const (
	// ModuleDir holds the kernel modules; they are loaded in the order of their names.
	ModuleDir = "/modules"
	// ImageFile is an Image as JSON.
	ImageFile = "/etc/image.json"
	// EmbeddedFile is the machine config of the image, when it has one.
	EmbeddedFile = "/etc/config.yaml"
	// RootsFile holds PEM certificates that the machine trusts.
	RootsFile = "/etc/roots.pem"
)

// Image says what the guest was booted from.
type Image struct {
	TalosVersion string `json:"talos_version"`
	Schematic    string `json:"schematic"`
}

// Run is the whole life of the guest. It returns only an error, after which init must not go on.
func Run(ctx context.Context) error {
	if err := mountAll(); err != nil {
		return err
	}

	log := slog.New(slog.NewTextHandler(os.Stdout, nil))

	if err := loadModules(log); err != nil {
		return err
	}

	settled := time.Now().Add(settleTime)

	image, err := readImage()
	if err != nil {
		return err
	}

	id := strings.ToLower(readLine("/sys/class/dmi/id/product_uuid"))
	hostname := "talos-" + strings.SplitN(id, "-", 2)[0]

	if err = unix.Sethostname([]byte(hostname)); err != nil {
		log.Warn("set host name", "error", err)
	}

	network := &network{hostname: hostname, log: log, ready: make(chan struct{})}

	machine := &talos.Machine{
		UUID:         id,
		Serial:       readLine("/sys/class/dmi/id/product_serial"),
		Cmdline:      talos.Cmdline(readLine("/proc/cmdline")),
		Volume:       func() (fs.FS, error) { return findSeed(log, settled) },
		HTTP:         network.client(),
		Dial:         network.dial,
		Log:          log,
		TalosVersion: image.TalosVersion,
		Schematic:    image.Schematic,
		Arch:         runtime.GOARCH,
		CPUs:         runtime.NumCPU(),
		MemoryMiB:    memoryMiB(),
		Hostname:     hostname,
	}

	if machine.Embedded, err = os.ReadFile(EmbeddedFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	watchPowerButton(log, machine.PressPowerButton)

	go (&agent{powerOff: machine.PressPowerButton, reboot: machine.Restart, version: image.TalosVersion, log: log}).run()
	go network.run(ctx)

	machine.Meta = findMeta(log, settled)
	machine.Disks = disks()

	end, err := machine.Boot(ctx)
	if err != nil {
		return err
	}

	return leave(end == talos.EndReboot)
}

// client returns an HTTP client that waits for the network.
func (n *network) client() *http.Client {
	var dialer net.Dialer

	return &http.Client{
		Timeout: time.Minute,
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if err := n.wait(ctx); err != nil {
				return nil, err
			}

			return dialer.DialContext(ctx, network, address)
		}},
	}
}

// dial connects to Omni once the network is up; the roots of the image are trusted as well.
func (n *network) dial(ctx context.Context, target string, roots []string) (*grpc.ClientConn, error) {
	if err := n.wait(ctx); err != nil {
		return nil, err
	}

	if pem, err := os.ReadFile(RootsFile); err == nil {
		roots = append(slices.Clone(roots), string(pem))
	}

	return talos.Dial(ctx, target, roots)
}

func readImage() (Image, error) {
	var image Image

	data, err := os.ReadFile(ImageFile)
	if err != nil {
		return image, fmt.Errorf("read what was booted: %w", err)
	}

	if err = json.Unmarshal(data, &image); err != nil {
		return image, fmt.Errorf("read %s: %w", ImageFile, err)
	}

	return image, nil
}

func mountAll() error {
	for _, m := range []struct{ kind, target string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}

		if err := unix.Mount(m.kind, m.target, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}

	return nil
}

// loadModules loads every module that the image brings. One that finds no device of its own is no error.
func loadModules(log *slog.Logger) error {
	files, err := filepath.Glob(ModuleDir + "/*.ko")
	if err != nil {
		return err
	}

	slices.Sort(files)

	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return err
		}

		err = unix.FinitModule(int(file.Fd()), "", 0)
		file.Close() //nolint:errcheck // Only read from.

		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
			log.Warn("load module", "file", filepath.Base(name), "error", err)
		}
	}

	return nil
}
