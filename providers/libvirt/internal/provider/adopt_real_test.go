//go:build real

package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// officialMachine is a machine as the official libvirt provider makes and records it. It has two additional disks.
type officialMachine struct {
	driver.Foreign

	id, uuid, pool, network string
	volumes                 []string
}

// newOfficial makes one, up to a step: its volumes, the domain, or the start.
func newOfficial(t *testing.T, pool, network, upTo string) *officialMachine {
	t.Helper()

	m := &officialMachine{id: "workers-x7k2p9", uuid: uuid.NewString(), pool: pool, network: network}
	m.Ref = driver.Ref{ProviderID: "test-" + nameHash(t), RequestID: m.id}
	m.Set, m.Unfinished = "workers", upTo != "start"
	m.volumes = []string{m.id + ".qcow2", m.id + "-0-sata.qcow2", m.id + "-1-nvme.qcow2", m.id + "-cidata.iso"}

	for _, volume := range m.volumes {
		format := "qcow2"
		if strings.HasSuffix(volume, ".iso") {
			format = "raw"
		}

		virsh(t, "vol-create-as", pool, volume, "1G", "--format", format)
	}

	m.record(upTo != "volumes")
	t.Cleanup(func() { m.clear(t) })

	if upTo == "volumes" {
		return m
	}

	m.define(t, m.id, m.uuid)

	if upTo == "start" {
		virsh(t, "start", m.id)
	}

	return m
}

// record stores what the official provider would have by then.
func (m *officialMachine) record(defined bool) {
	field := func(to []byte, number protowire.Number, value string) []byte {
		return protowire.AppendString(protowire.AppendTag(to, number, protowire.BytesType), value)
	}

	state := field(field(field(nil, 1, m.uuid), 2, "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"), 10, m.volumes[0])
	state = field(state, 11, string(field(field(nil, 1, "sata"), 3, m.volumes[1])))
	state = field(state, 11, string(field(field(nil, 1, "nvme"), 3, m.volumes[2])))
	state = field(field(state, 13, m.volumes[3]), 20, m.pool)

	if defined {
		state = field(state, 21, m.id)
	}

	m.State = state
}

// define defines a domain of the official provider's kind, but for what the machine that runs the tests does not have: KVM, and NVMe in
// libvirt. It boots from the network after the disk, so that its firmware asks for a lease.
func (m *officialMachine) define(t *testing.T, name, uuid string) {
	t.Helper()

	disks := ""

	for i, dev := range []string{"vda", "vdb", "vdc"} {
		disks += fmt.Sprintf(`<disk type='volume' device='disk'><driver name='qemu' type='qcow2'/><source pool='%s' volume='%s'/>`+
			`<target dev='%s' bus='virtio'/></disk>`, m.pool, m.volumes[i], dev)
	}

	nic := "<interface type='user'><model type='virtio'/></interface>"
	if m.network != "" {
		nic = fmt.Sprintf("<interface type='network'><source network='%s'/><model type='virtio'/></interface>", m.network)
	}

	file := filepath.Join(t.TempDir(), "domain.xml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `<domain type='qemu'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>128</memory>
		<vcpu placement='static'>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type><boot dev='hd'/><boot dev='network'/></os>
		<features><acpi/><apic/></features><devices>%s
		<disk type='volume' device='cdrom'><driver name='qemu' type='raw'/><source pool='%s' volume='%s'/><target dev='sda' bus='sata'/><readonly/></disk>
		%s<console type='pty'><target type='serial'/></console>
		<channel type='unix'><source mode='bind' path='/var/lib/libvirt/qemu/channel/target/omni-node-001.org.qemu.guest_agent.0'/>
		<target type='virtio' name='org.qemu.guest_agent.0'/></channel><memballoon model='virtio'/></devices></domain>`,
		name, uuid, disks, m.pool, m.volumes[3], nic), 0o600))
	virsh(t, "define", file)
}

// clear takes away what a test has left.
func (m *officialMachine) clear(t *testing.T) {
	for _, name := range domainNames(t) {
		if virsh(t, "domstate", name) == "running" {
			virsh(t, "destroy", name)
		}

		virsh(t, "undefine", name, "--snapshots-metadata", "--managed-save")
	}

	for _, name := range volumeNames(t, m.pool) {
		virsh(t, "vol-delete", name, "--pool", m.pool)
	}
}

// discard is what the lifecycle does at the end of a request.
func (m *officialMachine) discard(ctx context.Context, d *Driver) error {
	for _, step := range []func() (bool, error){
		func() (bool, error) { return d.Remove(ctx, m.Ref) }, func() (bool, error) { return d.Discard(ctx, m.Foreign) },
	} {
		if done, err := step(); err != nil || !done {
			return errors.Join(err, driver.Pending(time.Millisecond, "not done"))
		}
	}

	return nil
}

func TestMachineOfTheOfficialProviderIsAdoptedAndRemoved(t *testing.T) {
	pool, dir := newPool(t)
	m := newOfficial(t, pool, "", "start")
	d := newDriver(t, hypervisor.Config{Version: "v0.1.0"})
	started := virsh(t, "domid", m.id)
	before := virsh(t, "dumpxml", m.id, "--inactive")

	listed, err := d.List(t.Context(), m.ProviderID)
	require.NoError(t, err)
	require.Empty(t, listed, "nobody takes it for the provider's because of its name")
	_, err = d.Find(t.Context(), m.Ref)
	require.True(t, driver.IsNotFound(err))

	adoption, err := d.Adopt(t.Context(), m.Foreign)
	require.NoError(t, err)
	again, err := d.Adopt(t.Context(), m.Foreign)
	require.NoError(t, err)
	require.Equal(t, adoption, again, "the second time finds it adopted")

	require.Equal(t, m.uuid, adoption.Machine.UUID)
	require.Equal(t, map[string]string{
		"domain": m.id, "volume-1": pool + "/" + m.volumes[0], "volume-2": pool + "/" + m.volumes[1],
		"volume-3": pool + "/" + m.volumes[2], "volume-4": pool + "/" + m.volumes[3],
	}, adoption.Names)
	require.Equal(t, started, virsh(t, "domid", m.id), "it was not restarted")

	after := virsh(t, "dumpxml", m.id, "--inactive")
	require.Equal(t, before, strings.Replace(after, between2(after, "  <metadata>", "</metadata>\n"), "", 1), "nothing but the mark is new")
	require.Contains(t, virsh(t, "dumpxml", m.id), m.volumes[3]+`"`, "a machine that runs shows the mark at once")

	found, err := d.Find(t.Context(), m.Ref)
	require.NoError(t, err)
	require.Equal(t, adoption.Machine, found)

	listed, err = d.List(t.Context(), m.ProviderID)
	require.NoError(t, err)
	require.Equal(t, []driver.Machine{found}, listed)

	// Another process knows it by what libvirt keeps.
	other := newDriver(t, hypervisor.Config{})
	settled(t, func() error { return other.Reboot(t.Context(), m.Ref) })
	settled(t, func() error { return other.SetPower(t.Context(), m.Ref, driver.PowerOff) })
	require.Equal(t, "shut off", virsh(t, "domstate", m.id))
	settled(t, func() error { return other.SetPower(t.Context(), m.Ref, driver.PowerOn) })
	require.Equal(t, "running", virsh(t, "domstate", m.id))

	// libvirt names no overlay for a disk that is given by pool and volume.
	virsh(t, "snapshot-create-as", m.id, "before-upgrade", "--disk-only", "--diskspec", "vda,file="+filepath.Join(dir, "overlay-a"),
		"--diskspec", "vdb,file="+filepath.Join(dir, "overlay-b"), "--diskspec", "vdc,snapshot=no", "--diskspec", "sda,snapshot=no")
	virsh(t, "vol-create-as", pool, "not-theirs.qcow2", "1G")

	settled(t, func() error { return m.discard(t.Context(), other) })
	require.Empty(t, domainNames(t))
	require.Equal(t, []string{"not-theirs.qcow2"}, files(t, dir))
	settled(t, func() error { return m.discard(t.Context(), other) })
}

// between2 is the text from one mark to another, both included.
func between2(text, from, to string) string {
	_, rest, _ := strings.Cut(text, from)
	inner, _, _ := strings.Cut(rest, to)

	return from + inner + to
}

func TestMachineThatTheOfficialProviderDidNotStartIsStarted(t *testing.T) {
	pool, dir := newPool(t)
	m := newOfficial(t, pool, "", "domain")
	d := newDriver(t, hypervisor.Config{})

	adoption, err := d.Adopt(t.Context(), m.Foreign)
	require.NoError(t, err)
	require.Equal(t, driver.PowerOn, adoption.Machine.Power)
	settled(t, func() error { return m.discard(t.Context(), d) })
	require.Empty(t, files(t, dir))
}

func TestMachineThatTheOfficialProviderHadOnlyBegunIsCleared(t *testing.T) {
	pool, dir := newPool(t)
	m := newOfficial(t, pool, "", "volumes")
	d := newDriver(t, hypervisor.Config{})

	_, err := d.Adopt(t.Context(), m.Foreign)
	require.True(t, driver.IsNotFound(err), "%v", err)
	require.ElementsMatch(t, m.volumes, files(t, dir))

	settled(t, func() error { return m.discard(t.Context(), d) })
	require.Empty(t, files(t, dir))
}

func TestAdoptedMachineThatWasUndefinedByHandLeavesNothing(t *testing.T) {
	pool, dir := newPool(t)
	m := newOfficial(t, pool, "", "start")
	d := newDriver(t, hypervisor.Config{})

	_, err := d.Adopt(t.Context(), m.Foreign)
	require.NoError(t, err)
	virsh(t, "destroy", m.id)
	virsh(t, "undefine", m.id)

	settled(t, func() error { return m.discard(t.Context(), d) })
	require.Empty(t, files(t, dir))
}

func TestAdoptedMachineThatWasRenamedIsNotLost(t *testing.T) {
	pool, dir := newPool(t)
	m := newOfficial(t, pool, "", "domain")
	d := newDriver(t, hypervisor.Config{})
	m.Unfinished = false

	_, err := d.Adopt(t.Context(), m.Foreign)
	require.NoError(t, err)
	virsh(t, "domrename", m.id, "renamed")

	require.ErrorContains(t, m.discard(t.Context(), d), "virsh domrename renamed "+m.id)
	require.ElementsMatch(t, m.volumes, files(t, dir))

	virsh(t, "domrename", "renamed", m.id)
	settled(t, func() error { return m.discard(t.Context(), d) })
	require.Empty(t, domainNames(t))
	require.Empty(t, files(t, dir))
}

func TestWhatIsNotWhatTheOfficialProviderRecordedIsLeftAlone(t *testing.T) {
	type world struct {
		*officialMachine
		d *Driver
	}

	mark := func(t *testing.T, w world, f driver.Foreign) {
		_, err := w.d.Adopt(t.Context(), f)
		require.NoError(t, err)
	}

	for name, tt := range map[string]struct {
		change func(t *testing.T, w world)
		// refusal is what Adopt says; stays says that the domain and its volumes outlive the request.
		refusal string
		stays   bool
	}{
		"the name has another UUID": {func(t *testing.T, w world) {
			virsh(t, "undefine", w.id)
			w.define(t, w.id, "0c0a1d0e-7a52-4f5e-9d8e-6c7e8f901234")
		}, `the domain called "workers-x7k2p9" has UUID 0c0a1d0e-7a52-4f5e-9d8e-6c7e8f901234`, true},
		"the UUID has another name": {func(t *testing.T, w world) {
			virsh(t, "domrename", w.id, "somebody")
		}, `is called "somebody", not "workers-x7k2p9"`, true},
		"the mark of another provider": {func(t *testing.T, w world) {
			f := w.Foreign
			f.ProviderID = "other"
			mark(t, w, f)
		}, `carries the mark of request "workers-x7k2p9" of provider "other"`, true},
		"a disk is missing": {func(t *testing.T, w world) {
			virsh(t, "detach-disk", w.id, "vdb", "--config")
		}, `volume "workers-x7k2p9-0-sata.qcow2" in storage pool`, false},
		"a volume is gone": {func(t *testing.T, w world) {
			virsh(t, "vol-delete", w.volumes[2], "--pool", w.pool)
		}, `libvirt has no volume "workers-x7k2p9-1-nvme.qcow2"`, false},
		"somebody else uses a volume": {func(t *testing.T, w world) {
			w.define(t, "somebody", "0c0a1d0e-7a52-4f5e-9d8e-6c7e8f901234")
		}, `is a disk of domain "somebody"`, true},
		"no domain": {func(t *testing.T, w world) {
			virsh(t, "undefine", w.id)
		}, `is this the host that it was made on?`, false},
	} {
		t.Run(name, func(t *testing.T) {
			pool, dir := newPool(t)
			w := world{newOfficial(t, pool, "", "domain"), newDriver(t, hypervisor.Config{})}
			w.Unfinished = false
			tt.change(t, w)

			domains, volumes := domainNames(t), files(t, dir)

			var described []string
			for _, domain := range domains {
				described = append(described, virsh(t, "dumpxml", domain))
			}

			_, err := w.d.Adopt(t.Context(), w.Foreign)
			require.ErrorContains(t, err, tt.refusal)
			require.Equal(t, driver.KindTerminal, driver.KindOf(err))

			unchanged := func() {
				require.Equal(t, domains, domainNames(t))
				require.Equal(t, volumes, files(t, dir))

				for i, domain := range domains {
					require.Equal(t, described[i], virsh(t, "dumpxml", domain))
				}
			}
			unchanged()

			if !tt.stays {
				settled(t, func() error { return w.discard(t.Context(), w.d) })
				require.Empty(t, domainNames(t))
				require.Empty(t, files(t, dir))

				return
			}

			for range 2 {
				require.Error(t, w.discard(t.Context(), w.d))
				unchanged()
			}
		})
	}
}

func TestDiskThatWasAddedOutlivesAnAdoptedMachine(t *testing.T) {
	pool, dir := newPool(t)
	m := newOfficial(t, pool, "", "start")
	d := newDriver(t, hypervisor.Config{})

	virsh(t, "vol-create-as", pool, "added.qcow2", "1G", "--format", "qcow2")
	virsh(t, "attach-disk", m.id, filepath.Join(dir, "added.qcow2"), "vdz", "--persistent", "--subdriver", "qcow2")

	_, err := d.Adopt(t.Context(), m.Foreign)
	require.NoError(t, err)
	settled(t, func() error { return m.discard(t.Context(), d) })
	require.Equal(t, []string{"added.qcow2"}, files(t, dir))
}

func TestCloneOfAnAdoptedMachineIsNotAdopted(t *testing.T) {
	pool, dir := newPool(t)
	m := newOfficial(t, pool, "", "domain")
	d := newDriver(t, hypervisor.Config{})
	m.Unfinished = false

	_, err := d.Adopt(t.Context(), m.Foreign)
	require.NoError(t, err)

	// As virt-clone makes it: the description with the mark, other disks, name and UUID.
	file := filepath.Join(t.TempDir(), "clone.xml")
	desc := strings.NewReplacer("<name>"+m.id, "<name>clone", m.uuid+"</uuid>", uuid.NewString()+"</uuid>").Replace(virsh(t, "dumpxml", m.id, "--inactive"))

	for _, volume := range m.volumes {
		virsh(t, "vol-create-as", pool, "clone-"+volume, "1G", "--format", "raw")
		desc = strings.Replace(desc, "volume='"+volume, "volume='clone-"+volume, 1)
	}

	require.NoError(t, os.WriteFile(file, []byte(desc), 0o600))
	virsh(t, "define", file)

	listed, err := d.List(t.Context(), m.ProviderID)
	require.NoError(t, err)
	require.Len(t, listed, 1)
	settled(t, func() error { return m.discard(t.Context(), d) })
	require.Equal(t, []string{"clone"}, domainNames(t))
	require.Len(t, files(t, dir), len(m.volumes))
}

// Whatever call to libvirt an adoption or a removal dies at: it ends with one adopted machine, or with nothing.
func TestCrashAtAnyCallOfAnAdoption(t *testing.T) {
	pool, dir := newPool(t)
	config := hypervisor.Config{ShutdownTimeout: time.Second}

	for _, removing := range []bool{false, true} {
		for at := 1; ; at++ {
			// The simulated hypervisor loses both at each call.
			loseReply := at%4 > 1
			m := newOfficial(t, pool, "", "domain")
			m.Unfinished = removing // A start takes a second of each round.
			alive := newOf(config)

			if removing && at%2 == 0 {
				// Half of the removals are of a machine that was never adopted.
				_, err := alive.Adopt(t.Context(), m.Foreign)
				require.NoError(t, err)
			}

			work := func(d *Driver) error {
				if removing {
					return m.discard(t.Context(), d)
				}

				_, err := d.Adopt(t.Context(), m.Foreign)

				return err
			}

			c := &crasher{at: at, loseReply: loseReply}
			dead := newOf(hypervisor.Config{Config: connection.Config{Intercept: c.intercept}})
			err := work(dead)
			dead.Close()

			where := fmt.Sprintf("removing %v, call %d lost reply %v: %s", removing, at, loseReply, c.what)

			settled(t, func() error { return work(alive) })

			if !removing {
				found, err := alive.Find(t.Context(), m.Ref)
				require.NoError(t, err, where)
				require.Equal(t, m.uuid, found.UUID, where)
				require.Len(t, files(t, dir), len(m.volumes), where)
				settled(t, func() error { return m.discard(t.Context(), alive) })
			}

			require.Empty(t, domainNames(t), where)
			require.Empty(t, files(t, dir), where)
			alive.Close()

			if c.calls < at {
				require.NoError(t, err)
				t.Logf("removing %v: %d calls", removing, c.calls)

				break
			}
		}
	}
}

func TestAddressesAreThoseThatLibvirtLeases(t *testing.T) {
	pool, _ := newPool(t)
	network := "lease-" + nameHash(t)

	file := filepath.Join(t.TempDir(), "network.xml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `<network><name>%s</name><bridge name='virbr77'/>
		<ip address='192.168.177.1' netmask='255.255.255.0'><dhcp><range start='192.168.177.10' end='192.168.177.99'/></dhcp></ip></network>`, network), 0o600))
	virsh(t, "net-define", file)
	virsh(t, "net-start", network)
	t.Cleanup(func() {
		virsh(t, "net-destroy", network)
		virsh(t, "net-undefine", network)
	})

	m := newOfficial(t, pool, network, "domain")
	d := newDriver(t, hypervisor.Config{})
	m.Unfinished = false

	_, err := d.Adopt(t.Context(), m.Foreign)
	require.NoError(t, err)

	off, err := d.Addresses(t.Context(), m.ProviderID)
	require.NoError(t, err)
	require.Empty(t, off, "a machine that is off has none")

	virsh(t, "start", m.id, "--paused")

	waiting, err := d.Addresses(t.Context(), m.ProviderID)
	require.NoError(t, err)
	require.Len(t, waiting[m.Ref], 1)
	require.Equal(t, "no lease", waiting[m.Ref][0].Missing)
	require.Empty(t, waiting[m.Ref][0].IPs)

	virsh(t, "resume", m.id)

	var nic driver.Interface

	require.Eventually(t, func() bool {
		told, err := d.Addresses(t.Context(), m.ProviderID)
		require.NoError(t, err)
		nic = told[m.Ref][0]

		return len(nic.IPs) > 0
	}, 2*time.Minute, time.Second, "the firmware asks for a lease")

	require.Contains(t, virsh(t, "net-dhcp-leases", network), nic.IPs[0].String())
	require.Contains(t, virsh(t, "domiflist", m.id), nic.MAC)
	require.Equal(t, "lease", nic.Source)
	require.Empty(t, nic.Missing)
	require.True(t, slices.Equal(nic.IPs, slices.Compact(slices.Clone(nic.IPs))))

	settled(t, func() error { return m.discard(t.Context(), d) })
}
