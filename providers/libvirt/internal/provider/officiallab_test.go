package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/resource/typed"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/google/uuid"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/client"
	omniclient "github.com/siderolabs/omni/client/pkg/client/omni"
	official "github.com/siderolabs/omni/client/pkg/infra"
	officialsteps "github.com/siderolabs/omni/client/pkg/infra/provision"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/protoenc"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connectiontest"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
	simomni "github.com/omni-infra/omni-infra-providers/sim/omni"
	"github.com/omni-infra/omni-infra-providers/sim/talos"
)

// The official provider of these tests stands on the official library, stores what the official libvirt provider stores, and makes of
// a machine what that one makes as far as adoption has to do with it.
const officialID = "official-libvirt"

// officialState is the state of a machine, with the official libvirt provider's fields.
type officialState = typed.Resource[officialSpec, officialExtension]

type officialSpec struct {
	UUID          string         `protobuf:"1"`
	VolumeName    string         `protobuf:"10"`
	Disks         []officialDisk `protobuf:"11"`
	CidataVolName string         `protobuf:"13"`
	PoolName      string         `protobuf:"20"`
	VMName        string         `protobuf:"21"`
}

type officialDisk struct {
	Type    string `protobuf:"1"`
	VolName string `protobuf:"3"`
}

func (s officialSpec) DeepCopy() officialSpec {
	s.Disks = append([]officialDisk(nil), s.Disks...)

	return s
}

func (s officialSpec) MarshalProto() ([]byte, error) { return protoenc.Marshal(&s) }

func (s *officialSpec) UnmarshalProto(data []byte) error { return protoenc.Unmarshal(data, s) }

func (officialSpec) MarshalYAML() (any, error) { return map[string]string{}, nil }

func (s officialSpec) volumes() []string {
	all := []string{s.VolumeName, s.CidataVolName}
	for _, disk := range s.Disks {
		all = append(all, disk.VolName)
	}

	return all
}

type officialExtension struct{}

func (officialExtension) ResourceDefinition() meta.ResourceDefinitionSpec {
	return meta.ResourceDefinitionSpec{
		Type: official.ResourceType("Machine", officialID), DefaultNamespace: official.ResourceNamespace(officialID),
	}
}

// lab is an Omni and a hypervisor, on the fake clock.
type lab struct {
	t    *testing.T
	ctx  context.Context
	omni *simomni.Omni
	key  string
	hv   *sim.Hypervisor
	// libvirt sees what there is.
	libvirt *sim.Connect
	// cmdline is what is built into the official provider's images.
	cmdline atomic.Pointer[string]
	logs    *observer.ObservedLogs
}

func inLab(t *testing.T, test func(l *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()

		l := &lab{t: t, ctx: ctx}

		var err error
		l.omni, err = simomni.New(simomni.Options{Unsigned: true})
		require.NoError(t, err)

		ended := make(chan error, 1)
		running, stop := context.WithCancel(ctx)

		go func() { ended <- l.omni.Run(running) }()

		l.hv = sim.New(sim.Options{Boot: l.boot})
		l.libvirt, err = l.hv.Connect()
		require.NoError(t, err)

		l.key, err = l.omni.CreateProvider(ctx, officialID)
		require.NoError(t, err)

		test(l)

		_, err = l.libvirt.Close()
		require.NoError(t, err)
		l.hv.Close()
		stop()
		require.NoError(t, <-ended)
	})
}

// boot is Talos out of an image of the official provider, which has the way to Omni in its kernel arguments.
func (l *lab) boot(ctx context.Context, g sim.Guest) {
	cmdline := l.cmdline.Load()
	if cmdline == nil {
		<-ctx.Done()

		return
	}

	m := &talos.Machine{UUID: g.UUID, Cmdline: talos.Cmdline(*cmdline), BootTime: time.Second, Dial: func(context.Context, string, []string) (*grpc.ClientConn, error) {
		return l.omni.DialMachineAPI()
	}}
	_ = m.Run(ctx)
}

// startOfficial runs the official provider until stop is called.
func (l *lab) startOfficial() (stop func()) {
	p, err := official.NewProvider(officialID, officialSteps{l}, official.ProviderConfig{Name: "libvirt", Schema: "{}"})
	require.NoError(l.t, err)

	return l.run(func(ctx context.Context) error {
		err := p.Run(ctx, zaptest.NewLogger(l.t).Named("official"), official.WithOmniEndpoint(l.omni.Endpoint()), official.WithClientOptions(l.omni.ClientOptions(l.key)...))
		if ctx.Err() == nil {
			return err
		}

		return nil // It calls its own end an error.
	})
}

// start runs this provider until stop is called.
func (l *lab) start(hosts ...hypervisor.Config) (stop func()) {
	core, logs := observer.New(zap.InfoLevel)
	l.logs = logs
	log := zaptest.NewLogger(l.t).Named("ours").WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core { return zapcore.NewTee(c, core) }))

	if len(hosts) == 0 {
		hosts = []hypervisor.Config{{Config: connection.Config{Open: connectiontest.Open(l.hv.Client())}}}
	}

	d := New(Config{Hosts: hosts, Logger: log})

	c, err := client.New(l.omni.Endpoint(), append(l.omni.ClientOptions(l.key), client.WithOmniClientOptions(omniclient.WithProviderID(officialID)))...)
	require.NoError(l.t, err)

	engine, err := lifecycle.New(lifecycle.Config{ID: officialID, Driver: d, Logger: log, Schema: "{}"})
	require.NoError(l.t, err)

	end := l.run(func(ctx context.Context) error { return engine.Run(ctx, c.Omni().State()) })

	return func() {
		end()
		d.Close()
		require.NoError(l.t, c.Close())
	}
}

func (l *lab) run(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(l.ctx)
	ended := make(chan error, 1)

	go func() { ended <- f(ctx) }()

	return func() {
		cancel()
		require.NoError(l.t, <-ended)
	}
}

func (l *lab) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (l *lab) request(id string) {
	r := infra.NewMachineRequest(id)
	r.Metadata().Labels().Set(omni.LabelInfraProviderID, officialID)
	r.TypedSpec().Value.TalosVersion = "1.13.5"
	require.NoError(l.t, l.omni.State().Create(l.ctx, r))
}

func (l *lab) teardown(id string) {
	_, err := l.omni.State().Teardown(l.ctx, infra.NewMachineRequest(id).Metadata())
	require.NoError(l.t, err)
}

func (l *lab) status(id string) *specs.MachineRequestStatusSpec {
	status, err := safe.StateGetByID[*infra.MachineRequestStatus](l.ctx, l.omni.State(), id)
	require.NoError(l.t, err)

	return status.TypedSpec().Value
}

func (l *lab) annotate(id, key, value string) {
	_, err := safe.StateUpdateWithConflicts(l.ctx, l.omni.State(), infra.NewMachineRequest(id).Metadata(), func(r *infra.MachineRequest) error {
		r.Metadata().Annotations().Set(key, value)

		return nil
	})
	require.NoError(l.t, err)
}

// is asserts in which state a domain is, and returns its id, which each start changes.
func (l *lab) is(name string, want libvirt.DomainState) uint {
	dom, err := l.libvirt.LookupDomainByName(name)
	require.NoError(l.t, err)

	defer func() { require.NoError(l.t, dom.Free()) }()

	got, _, err := dom.GetState()
	require.NoError(l.t, err)
	require.Equal(l.t, want, got)

	id, _ := dom.GetID()

	return id
}

// nothingLeft asserts that neither Omni nor the hypervisor has anything of a request.
func (l *lab) nothingLeft(id string) {
	l.t.Helper()

	request, err := safe.StateGetByID[*infra.MachineRequest](l.ctx, l.omni.State(), id)
	if !state.IsNotFoundError(err) {
		require.NoError(l.t, err)
		require.Empty(l.t, *request.Metadata().Finalizers())
	}

	_, err = l.omni.State().Get(l.ctx, infra.NewMachineRequestStatus(id).Metadata())
	require.True(l.t, state.IsNotFoundError(err))

	_, err = l.omni.State().Get(l.ctx, resource.NewMetadata(official.ResourceNamespace(officialID), official.ResourceType("Machine", officialID), id, resource.VersionUndefined))
	require.True(l.t, state.IsNotFoundError(err), "the official provider's state goes as well")

	domains, volumes := l.objects()
	require.Empty(l.t, domains)
	require.Empty(l.t, volumes)
}

func (l *lab) objects() (domains, volumes []string) {
	all, err := l.libvirt.ListAllDomains(0)
	require.NoError(l.t, err)

	for i := range all {
		name, err := all[i].GetName()
		require.NoError(l.t, errors.Join(err, all[i].Free()))

		domains = append(domains, name)
	}

	pool, err := l.libvirt.LookupStoragePoolByName("default")
	require.NoError(l.t, err)

	volumes, err = pool.ListStorageVolumes()
	require.NoError(l.t, errors.Join(err, pool.Free()))

	return domains, volumes
}

// officialSteps is the official provider's provisioner.
type officialSteps struct{ *lab }

func (o officialSteps) ProvisionSteps() []officialsteps.Step[*officialState] {
	step := func(name string, f func(r officialsteps.Context[*officialState], s *officialSpec) error) officialsteps.Step[*officialState] {
		return officialsteps.NewStep(name, func(_ context.Context, _ *zap.Logger, r officialsteps.Context[*officialState]) error {
			return f(r, r.State.TypedSpec())
		})
	}

	return []officialsteps.Step[*officialState]{
		step("generateUUID", func(r officialsteps.Context[*officialState], s *officialSpec) error {
			s.UUID = uuid.NewString()
			r.SetMachineUUID(s.UUID)

			return nil
		}),
		step("provisionDisks", func(r officialsteps.Context[*officialState], s *officialSpec) error {
			id := r.GetRequestID()
			s.PoolName, s.VolumeName, s.CidataVolName = "default", id+".qcow2", id+"-cidata.iso"
			s.Disks = []officialDisk{{Type: "sata", VolName: id + "-0-sata.qcow2"}}

			return o.makeVolumes(s)
		}),
		step("createVM", func(r officialsteps.Context[*officialState], s *officialSpec) error {
			if strings.HasPrefix(r.GetRequestID(), "begun") {
				return officialsteps.NewRetryInterval(time.Minute)
			}

			s.VMName = r.GetRequestID()

			return o.define(s)
		}),
		step("startVM", func(r officialsteps.Context[*officialState], s *officialSpec) error {
			if strings.HasPrefix(r.GetRequestID(), "defined") {
				return officialsteps.NewRetryInterval(time.Minute)
			}

			cmdline := strings.Join(r.ConnectionParams.KernelArgs, " ")
			o.cmdline.Store(&cmdline)

			dom, err := o.libvirt.LookupDomainByName(s.VMName)
			if err != nil {
				return err
			}

			return errors.Join(dom.Create(), dom.Free())
		}),
	}
}

func (o officialSteps) makeVolumes(s *officialSpec) error {
	pool, err := o.libvirt.LookupStoragePoolByName(s.PoolName)
	if err != nil {
		return err
	}

	defer func() { _ = pool.Free() }()

	for _, name := range s.volumes() {
		format := "qcow2"
		if strings.HasSuffix(name, ".iso") {
			format = "raw"
		}

		vol, err := pool.StorageVolCreateXML(fmt.Sprintf(`<volume><name>%s</name><capacity unit='GiB'>1</capacity><target><format type='%s'/></target></volume>`, name, format), 0)
		if err != nil {
			return err
		}

		_ = vol.Free()
	}

	return nil
}

func (o officialSteps) define(s *officialSpec) error {
	dom, err := o.libvirt.DomainDefineXML(fmt.Sprintf(`<domain type='kvm'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>2048</memory><vcpu>2</vcpu>
		<os><type arch='x86_64' machine='q35'>hvm</type><boot dev='hd'/></os><features><acpi/><apic/></features><devices>
		<disk type='volume' device='disk'><driver name='qemu' type='qcow2'/><source pool='%[3]s' volume='%[4]s'/><target dev='vda' bus='virtio'/></disk>
		<disk type='volume' device='disk'><driver name='qemu' type='qcow2'/><source pool='%[3]s' volume='%[5]s'/><target dev='vdb' bus='virtio'/></disk>
		<disk type='volume' device='cdrom'><driver name='qemu' type='raw'/><source pool='%[3]s' volume='%[6]s'/><target dev='sda' bus='sata'/><readonly/></disk>
		<interface type='network'><source network='default'/><model type='virtio'/></interface></devices></domain>`,
		s.VMName, s.UUID, s.PoolName, s.VolumeName, s.Disks[0].VolName, s.CidataVolName))
	if err != nil {
		return err
	}

	return dom.Free()
}

// Deprovision takes away what the state names.
func (o officialSteps) Deprovision(_ context.Context, _ *zap.Logger, machine *officialState, request *infra.MachineRequest) error {
	if dom, err := o.libvirt.LookupDomainByName(request.Metadata().ID()); err == nil {
		defer func() { _ = dom.Free() }()

		if active, _ := dom.IsActive(); active {
			return errors.Join(dom.Destroy(), officialsteps.NewRetryInterval(3*time.Second))
		}

		if err := dom.Undefine(); err != nil {
			return err
		}
	}

	s := machine.TypedSpec()

	pool, err := o.libvirt.LookupStoragePoolByName(s.PoolName)
	if err != nil {
		return err
	}

	defer func() { _ = pool.Free() }()

	for _, name := range s.volumes() {
		vol, err := pool.LookupStorageVolByName(name)
		if connection.Is(err, libvirt.ERR_NO_STORAGE_VOL) {
			continue
		}

		if err := errors.Join(err, vol.Delete(0), vol.Free()); err != nil {
			return err
		}
	}

	return nil
}
