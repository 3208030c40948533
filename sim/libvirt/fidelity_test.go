package libvirt_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	real "libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

// The scripts below are sequences of calls. What a libvirtd with QEMU said to each of them is in testdata/scripts, written there by
// the test of the build tag real with -update; the simulation has to say the same, and so has every other libvirtd.

// A script speaks to either through these interfaces, which the handles of both have but for calls that return other handles.
type (
	conn interface {
		DomainDefineXMLFlags(xml string, flags real.DomainDefineFlags) (domain, error)
		DomainCreateXML(xml string, flags real.DomainCreateFlags) (domain, error)
		LookupDomainByName(name string) (domain, error)
		LookupDomainByUUIDString(id string) (domain, error)
		LookupDomainByID(id uint32) (domain, error)
		ListAllDomains(flags real.ConnectListAllDomainsFlags) ([]domain, error)
		StoragePoolDefineXML(xml string, flags real.StoragePoolDefineFlags) (pool, error)
		LookupStoragePoolByName(name string) (pool, error)
		LookupStoragePoolByUUIDString(id string) (pool, error)
		LookupStoragePoolByTargetPath(path string) (pool, error)
		LookupStorageVolByPath(path string) (volume, error)
		LookupStorageVolByKey(key string) (volume, error)
		NetworkDefineXML(xml string) (network, error)
		LookupNetworkByName(name string) (network, error)
		LookupNetworkByUUIDString(id string) (network, error)
		LookupDeviceByName(name string) (device, error)
		NewStream() (stream, error)
		GetDomainCapabilities(emulator, arch, machine, kind string, flags real.ConnectGetDomainCapabilitiesFlags) (string, error)
		GetHostname() (string, error)
		IsAlive() (bool, error)
		Ref() error
		Close() (int, error)
		RegisterCloseCallback(func()) error
		UnregisterCloseCallback() error
		// Watch registers callbacks for the events of domains, pools and networks, and returns the ids of those of domains.
		Watch(see func(string)) []int
		DomainEventDeregister(id int) error
	}

	domain interface {
		Free() error
		GetName() (string, error)
		GetUUIDString() (string, error)
		GetID() (uint, error)
		GetState() (real.DomainState, int, error)
		GetInfo() (*real.DomainInfo, error)
		GetMaxMemory() (uint64, error)
		GetXMLDesc(flags real.DomainXMLFlags) (string, error)
		GetMetadata(kind real.DomainMetadataType, uri string, flags real.DomainModificationImpact) (string, error)
		SetMetadata(kind real.DomainMetadataType, text, key, uri string, flags real.DomainModificationImpact) error
		GetAutostart() (bool, error)
		SetAutostart(bool) error
		IsActive() (bool, error)
		IsPersistent() (bool, error)
		IsUpdated() (bool, error)
		Create() error
		CreateWithFlags(flags real.DomainCreateFlags) error
		Destroy() error
		DestroyFlags(flags real.DomainDestroyFlags) error
		Shutdown() error
		ShutdownFlags(flags real.DomainShutdownFlags) error
		Reboot(flags real.DomainRebootFlagValues) error
		Reset(flags uint32) error
		Suspend() error
		Resume() error
		PMWakeup(flags uint32) error
		ManagedSave(flags real.DomainSaveRestoreFlags) error
		HasManagedSaveImage(flags uint32) (bool, error)
		ManagedSaveRemove(flags uint32) error
		Undefine() error
		UndefineFlags(flags real.DomainUndefineFlagsValues) error
		ListAllInterfaceAddresses(src real.DomainInterfaceAddressesSource) ([]real.DomainInterface, error)
		SnapshotNum(flags real.DomainSnapshotListFlags) (int, error)
		Snapshot(xml string, flags real.DomainSnapshotCreateFlags) (snapshot, error)
		SnapshotLookup(name string) (snapshot, error)
		Checkpoint(xml string) (checkpoint, error)
	}

	snapshot interface {
		GetName() (string, error)
		Delete(flags real.DomainSnapshotDeleteFlags) error
		RevertToSnapshot(flags real.DomainSnapshotRevertFlags) error
		IsCurrent(flags uint32) (bool, error)
		Free() error
	}

	checkpoint interface {
		GetName() (string, error)
		Delete(flags real.DomainCheckpointDeleteFlags) error
		Free() error
	}

	pool interface {
		Free() error
		GetName() (string, error)
		GetUUIDString() (string, error)
		GetInfo() (*real.StoragePoolInfo, error)
		GetXMLDesc(flags real.StorageXMLFlags) (string, error)
		IsActive() (bool, error)
		IsPersistent() (bool, error)
		GetAutostart() (bool, error)
		SetAutostart(bool) error
		Build(flags real.StoragePoolBuildFlags) error
		Create(flags real.StoragePoolCreateFlags) error
		Destroy() error
		Delete(flags real.StoragePoolDeleteFlags) error
		Undefine() error
		Refresh(flags uint32) error
		ListStorageVolumes() ([]string, error)
		NumOfStorageVolumes() (int, error)
		CreateVolume(xml string) (volume, error)
		CloneVolume(xml string, from volume) (volume, error)
		Volume(name string) (volume, error)
	}

	volume interface {
		Free() error
		GetName() (string, error)
		GetKey() (string, error)
		GetPath() (string, error)
		GetInfo() (*real.StorageVolInfo, error)
		GetXMLDesc(flags uint32) (string, error)
		Delete(flags real.StorageVolDeleteFlags) error
		Resize(capacity uint64, flags real.StorageVolResizeFlags) error
		Wipe(flags uint32) error
		StartUpload(s stream, offset, length uint64, flags real.StorageVolUploadFlags) error
		StartDownload(s stream, offset, length uint64, flags real.StorageVolDownloadFlags) error
	}

	stream interface {
		Free() error
		Send(p []byte) (int, error)
		SendHole(length int64, flags uint32) error
		Recv(p []byte) (int, error)
		RecvFlags(p []byte, flags real.StreamRecvFlagsValues) (int, error)
		RecvHole(flags uint32) (int64, error)
		Finish() error
		Abort() error
	}

	network interface {
		Free() error
		GetName() (string, error)
		GetUUIDString() (string, error)
		GetBridgeName() (string, error)
		GetXMLDesc(flags real.NetworkXMLFlags) (string, error)
		IsActive() (bool, error)
		IsPersistent() (bool, error)
		GetAutostart() (bool, error)
		SetAutostart(bool) error
		Create() error
		Destroy() error
		Undefine() error
		Update(cmd real.NetworkUpdateCommand, section real.NetworkUpdateSection, index int, xml string, flags real.NetworkUpdateFlags) error
		GetDHCPLeases() ([]real.NetworkDHCPLease, error)
	}

	device interface {
		Free() error
		GetName() (string, error)
	}
)

// hypervisor is a libvirtd, simulated or not, with the host around it.
type hypervisor interface {
	Connect() (conn, error)
	// Restart restarts the daemon. WriteFile and RemoveFile work on the host's files.
	Restart()
	WriteFile(path string, content []byte)
	RemoveFile(path string)
	HasFile(path string) bool
	// Settle waits until the events of what was done have come.
	Settle()
	// HoldCopies keeps copies of volumes to another format unfinished until release is called.
	HoldCopies() (release func())
}

// scene is a script that runs.
type scene struct {
	t *testing.T
	hypervisor

	c      conn
	text   strings.Builder
	events chan string
	last   string
}

// play runs a script and returns what was said.
func play(t *testing.T, h hypervisor, script func(*scene)) string {
	t.Helper()

	s := &scene{t: t, hypervisor: h, events: make(chan string, 1000)}

	defer func() {
		if failed := recover(); failed != nil {
			t.Fatalf("%v\n%s\n%s", failed, debug.Stack(), s.text.String())
		}
	}()

	s.connect()
	script(s)
	s.happened()

	_, _ = s.c.Close() // A script may have closed it.

	return s.text.String()
}

func (s *scene) connect() {
	c, err := s.Connect()
	require.NoError(s.t, err)

	s.c = c
	c.Watch(func(event string) { s.events <- event })
}

// happened writes down the events since it was last called. That a guest restarts is reported more than once at times.
func (s *scene) happened() {
	s.Settle()

	for {
		select {
		case event := <-s.events:
			if event != s.last || !strings.Contains(event, "rebooted") {
				fmt.Fprintf(&s.text, "    event: %s\n", event)
			}

			s.last = event
		default:
			return
		}
	}
}

// say writes down what a step has led to, and returns whether it went well.
func (s *scene) say(step string, err error, results ...any) bool {
	text := "ok"

	switch e, ok := errors.AsType[real.Error](err); {
	case ok && e.Code == real.ERR_OK:
		text = "an error without number"
	case ok:
		text = fmt.Sprintf("error %d/%d %s", e.Code, e.Domain, e.Message)
	case err != nil:
		text = err.Error()
	case len(results) > 0:
		text = strings.TrimSuffix(fmt.Sprintln(results...), "\n")
	}

	fmt.Fprintf(&s.text, "%s: %s\n", step, steady(text))
	s.happened()

	return err == nil
}

// number is say without the error's words, which are those of other programs.
func (s *scene) number(step string, err error) {
	if e, ok := errors.AsType[real.Error](err); ok {
		e.Message = "..."
		err = e
	}

	s.say(step, err)
}

// got writes down a step's result. What it takes is what a call returns.
func got[T any](s *scene, step string) func(T, error) T {
	return func(value T, err error) T {
		s.t.Helper()

		if err != nil {
			s.say(step, err)
		} else {
			s.say(step, nil, value)
		}

		return value
	}
}

// made writes down whether a step has made something.
func made[T any](s *scene, step string) func(T, error) T {
	return func(value T, err error) T {
		s.say(step, err)

		return value
	}
}

// state writes down the state of a domain.
func (s *scene) state(d domain) {
	state, reason, err := d.GetState()
	s.say("state", err, state, reason)
}

var unsteady = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "<uuid>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z qemu`), "qemu"},
	{regexp.MustCompile(`52:54:00(:[0-9a-f]{2}){3}`), "<mac>"},
	{regexp.MustCompile(`virbr\d+`), "<bridge>"},
}

// steady replaces what differs between two runs.
func steady(text string) string {
	for _, u := range unsteady {
		text = u.pattern.ReplaceAllString(text, u.text)
	}

	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
}

var update = flag.Bool("update", false, "write the answers of the real libvirtd into testdata")

func golden(name string) string { return filepath.Join("testdata", "scripts", name+".txt") }

// simulated is the simulation as scripts see it.
type simulated struct {
	t *testing.T
	h *libvirt.Hypervisor
}

func (s simulated) Connect() (conn, error) {
	c, err := s.h.Connect()
	if err != nil {
		return nil, err
	}

	return simConn{c}, nil
}

func (s simulated) Restart()                              { s.h.Restart() }
func (s simulated) WriteFile(path string, content []byte) { s.h.WriteFile(path, content) }
func (s simulated) RemoveFile(path string)                { require.NoError(s.t, s.h.RemoveFile(path)) }
func (s simulated) Settle()                               { synctest.Wait() }
func (s simulated) HoldCopies() func()                    { return func() {} } // They take their time on the fake clock.

func (s simulated) HasFile(path string) bool {
	_, err := s.h.ReadFile(path)

	return err == nil
}

// bare is a host like the one of the real libvirtd: nothing is there, devices cannot be passed through, and guests have no software.
func bare() libvirt.Options {
	return libvirt.Options{
		Pools: []libvirt.Pool{}, Networks: []string{},
		Host:         libvirt.Host{Arches: []string{"x86_64", "aarch64"}, NoIOMMU: true, Interfaces: []string{}},
		ShutdownTime: 24 * time.Hour, // There is no software that would obey.
		Durations:    map[string]time.Duration{"StoragePool.StorageVolCreateXMLFrom": time.Second},
	}
}

func TestSimulationSaysWhatLibvirtSays(t *testing.T) {
	for _, script := range scripts {
		t.Run(script.name, func(t *testing.T) {
			want, err := os.ReadFile(golden(script.name))
			require.NoError(t, err)

			synctest.Test(t, func(t *testing.T) {
				h := libvirt.New(bare())
				defer h.Close()

				require.Equal(t, string(want), play(t, simulated{t, h}, script.run))
				time.Sleep(time.Hour) // Nothing is left that waits for its time.
			})
		})
	}
}
