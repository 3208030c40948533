package talos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/omni-infra/omni-infra-providers/sim/talos/meta"
	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// DefaultVersion is the Talos version of a machine that names none.
const DefaultVersion = "v1.13.5"

// DefaultResetTime is how long a reset of a machine takes that says nothing else. Talos needs that long, and more, to stop its
// services and to wipe its disks.
const DefaultResetTime = 10 * time.Second

// Meta is where a machine keeps what outlives a boot. Keys are those of Talos' META partition; package meta implements it.
type Meta interface {
	Get(key uint8) (string, bool)
	Set(key uint8, value string) error
	Wipe() error
}

// Machine is the hardware and the image of one simulated machine. Its fields are not changed after the first boot, and the
// value is not copied. Only UUID is required.
type Machine struct {
	// UUID is the SMBIOS UUID, in any case. META may override it.
	UUID string
	// Serial is the SMBIOS serial number, which may name a NoCloud seed.
	Serial string
	// Cmdline is the kernel command line.
	Cmdline Cmdline
	// Volume returns the file system labelled cidata, anew for each boot; fs.ErrNotExist or a nil Volume means that there is none.
	Volume func() (fs.FS, error)
	// UserData is what the metadata service of a cloud gives that is not NoCloud. When it is set, no seed is looked for.
	UserData []byte
	// Embedded is the machine config that was built into the image.
	Embedded []byte

	// HTTP fetches a seed; nil means http.DefaultClient.
	HTTP *http.Client
	// Dial connects to a SideroLink API, given as grpc://HOST:PORT or https://HOST:PORT. Nil means Dial of this package.
	Dial func(ctx context.Context, target string, roots []string) (*grpc.ClientConn, error)
	// Meta outlives a boot; nil means a memory of the machine's own.
	Meta Meta
	// Log gets what happens, never a token; nil discards it.
	Log *slog.Logger
	// Observe is called with each new status from the machine's goroutine, and must not block; nil means not to.
	Observe func(Status)

	// TalosVersion is "v1.2.3"; empty means DefaultVersion.
	TalosVersion string
	// Schematic, Arch, CPUs, MemoryMiB and Disks are what the machine reports of itself.
	Schematic string
	Arch      string
	CPUs      int
	MemoryMiB int
	Disks     []talosapi.Disk
	// Hostname is reported when no source names another.
	Hostname string

	// BootTime passes from power on until the machine looks for its config, ShutdownTime from the order to leave until it is off.
	BootTime, ShutdownTime time.Duration
	// ResetTime passes besides when the machine is reset, and META is wiped at its end; zero means DefaultResetTime. A machine that
	// is taken out of Omni is reset, and joins again when that is done unless its provider was faster.
	ResetTime time.Duration

	once   sync.Once
	orders chan order

	mu     sync.Mutex
	off    bool
	status Status
}

// Status is what can be seen of a machine from outside of it.
type Status struct {
	// Stage is empty while the machine is off.
	Stage talosapi.Stage
	// UUID is the one in use, which META may have overridden.
	UUID string
	// BootID is new with each boot, and Boots counts them.
	BootID string
	Boots  int
	// Joined means that the tunnel to Omni is up.
	Joined bool
	// Address is the SideroLink address, once there is one.
	Address string
	// Err is why the machine got no further, when it did not; it never quotes a token.
	Err error
}

// End is how a boot ended.
type End string

// The ways a boot ends.
const (
	EndReboot   End = "reboot"
	EndPowerOff End = "power off"
)

// order makes a machine leave.
type order struct {
	end   End
	stage talosapi.Stage
	wipe  bool
}

func (o order) Error() string { return "the machine leaves: " + string(o.end) }

// PressPowerButton asks the machine to shut down, as the ACPI power button does. A machine that has gone off does not notice.
func (m *Machine) PressPowerButton() {
	m.order(order{end: EndPowerOff, stage: talosapi.StageShuttingDown})
}

// Restart asks the machine to reboot, as a guest agent does. A machine that has gone off does not notice.
func (m *Machine) Restart() {
	m.order(order{end: EndReboot, stage: talosapi.StageRebooting})
}

func (m *Machine) order(o order) {
	m.init()

	m.mu.Lock()
	defer m.mu.Unlock()

	if m.off {
		return
	}

	select {
	case m.orders <- o:
	default: // An order is waiting already, and the machine obeys only one.
	}
}

// power notes whether the machine is on. What was ordered too late to be obeyed is forgotten when it goes off.
func (m *Machine) power(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.off = !on

	if !on {
		select {
		case <-m.orders: //nolint:errcheck // An order, not a failure.
		default:
		}
	}
}

// Status returns the present status.
func (m *Machine) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.status
}

// Run powers the machine on and boots it again after each reboot. It returns nil once the machine has powered off by itself. When
// ctx ends, power is cut: the machine says no goodbye, and ctx's error is returned.
func (m *Machine) Run(ctx context.Context) error {
	for {
		end, err := m.Boot(ctx)
		if err != nil || end == EndPowerOff {
			return err
		}
	}
}

// Boot runs the machine through one boot and returns how it ended. When ctx ends, power is cut and ctx's error is returned; any
// other error means that the machine's own fields are wrong.
func (m *Machine) Boot(ctx context.Context) (End, error) {
	m.init()
	m.power(true)

	defer m.power(false)

	id, err := uuid.Parse(m.UUID)
	if err != nil {
		return "", fmt.Errorf("boot machine: SMBIOS UUID %q: %w", m.UUID, err)
	}

	boot, err := newBoot(m, id)
	if err != nil {
		return "", fmt.Errorf("boot machine %s: %w", id, err)
	}

	m.update(func(s *Status) {
		*s = Status{Stage: talosapi.StageBooting, UUID: boot.uuid(), BootID: boot.id, Boots: s.Boots + 1}
	})
	boot.log.Info("booting")

	end, err := boot.run(ctx)

	m.update(func(s *Status) { s.Stage, s.Joined, s.Address = "", false, "" })

	return end, err
}

func (m *Machine) init() {
	m.once.Do(func() {
		m.orders = make(chan order, 1)

		if m.Meta == nil {
			m.Meta = &meta.Memory{}
		}

		if m.Dial == nil {
			m.Dial = Dial
		}

		if m.Log == nil {
			m.Log = slog.New(slog.DiscardHandler)
		}

		if m.TalosVersion == "" {
			m.TalosVersion = DefaultVersion
		}

		if m.ResetTime == 0 {
			m.ResetTime = DefaultResetTime
		}
	})
}

// update changes the status and shows it to the observer.
func (m *Machine) update(change func(*Status)) {
	m.mu.Lock()
	change(&m.status)
	status := m.status
	m.mu.Unlock()

	if m.Observe != nil {
		m.Observe(status)
	}
}

// fail notes why the machine gets no further.
func (m *Machine) fail(err error) {
	m.update(func(s *Status) { s.Err = err })
}

// uuid returns the UUID that the machine goes by, in canonical lower-case form.
func (b *boot) uuid() string {
	if override, ok := b.machine.Meta.Get(meta.UUIDOverride); ok {
		if id, err := uuid.Parse(strings.TrimSpace(override)); err == nil {
			return id.String()
		}
	}

	return b.hardware.String()
}

// sleep waits for d, or returns the reason for which ctx ended.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}

	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ordered returns the order among the reasons of err.
func ordered(err error) (order, bool) {
	var o order

	return o, errors.As(err, &o)
}
