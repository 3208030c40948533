package oxide_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	api "github.com/oxidecomputer/oxide.go/oxide"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/oxide"
)

// timed is a rack whose instances take a while to change their state.
var timed = oxide.Options{Durations: map[string]time.Duration{
	"instance_create": 5 * time.Second, "instance_start": 20 * time.Second, "instance_stop": 10 * time.Second,
	"instance_reboot": 30 * time.Second, "instance_delete": 2 * time.Second,
}, Migration: time.Minute, Repair: time.Minute}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestInstanceGoesThroughItsStates(t *testing.T) {
	inBubble(t, timed, func(b *bench) {
		go func() {
			body := spec("one", "")
			body.Start = new(false)
			_, _ = b.create(body) // The test looks for what it makes.
		}()

		pass(time.Second)

		view := func() (*api.Instance, error) {
			return b.InstanceView(b.ctx(), api.InstanceViewParams{Instance: "one", Project: project})
		}

		i, err := view()
		require.NoError(t, err)
		require.Equal(t, api.InstanceStateCreating, i.RunState)

		for what, change := range map[string]func(string) error{"stop": b.stop, "reboot": b.reboot} {
			requireNo(t, change(i.Id), api.ErrInvalidRequest, "cannot change instance state while it is still being created")
			_ = what
		}

		requireNo(t, b.start(i.Id), api.ErrConflict, "instance is in state creating but must be stopped to be started")
		requireNo(t, b.delete(i.Id), api.ErrInvalidRequest, "cannot delete instance: instance is running or has not yet fully stopped")

		pass(5 * time.Second)
		require.Equal(t, api.InstanceStateStopped, b.state(i.Id))
		require.NoError(t, b.stop(i.Id), "what is stopped may be stopped")
		requireNo(t, b.reboot(i.Id), api.ErrInvalidRequest, "cannot reboot an instance in state stopped with no VMM")

		require.NoError(t, b.start(i.Id))
		require.NoError(t, b.start(i.Id), "what is started may be started")
		require.Equal(t, api.InstanceStateStarting, b.state(i.Id))
		requireNo(t, b.delete(i.Id), api.ErrInvalidRequest, "has not yet fully stopped")
		pass(20 * time.Second)
		require.Equal(t, api.InstanceStateRunning, b.state(i.Id))

		require.NoError(t, b.reboot(i.Id))
		require.Equal(t, api.InstanceStateRebooting, b.state(i.Id))
		pass(30 * time.Second)
		require.Equal(t, api.InstanceStateRunning, b.state(i.Id))

		require.NoError(t, b.Migrate(i.Id))
		require.Equal(t, api.InstanceStateMigrating, b.state(i.Id))
		pass(time.Minute)
		require.NoError(t, b.Repair(i.Id))
		require.Equal(t, api.InstanceStateRepairing, b.state(i.Id))
		requireNo(t, b.stop(i.Id), api.ErrInvalidRequest, `instance state cannot be changed from state "repairing"`)
		pass(time.Minute)
		require.Equal(t, api.InstanceStateRunning, b.state(i.Id))
		require.ErrorContains(t, b.SwitchOn(i.Id), "is running")

		require.NoError(t, b.stop(i.Id))
		requireNo(t, b.start(i.Id), api.ErrConflict, "instance is in state stopping but must be stopped to be started")
		pass(10 * time.Second)
		require.NoError(t, b.delete(i.Id))
		_, err = view()
		requireNo(t, err, api.ErrObjectNotFound, `not found: instance with name "one"`)
		require.ErrorIs(t, b.start(i.Id), api.ErrObjectNotFound)
		require.ErrorContains(t, b.Fail(i.Id), "there is none")
		require.Empty(t, b.Ledger().Leaks())
	})
}

func TestFailedInstanceIsRestartedAsItsPolicySays(t *testing.T) {
	opts := timed
	opts.Cooldown = time.Hour

	inBubble(t, opts, func(b *bench) {
		never := spec("never", "")
		never.AutoRestartPolicy = api.InstanceAutoRestartPolicyNever
		left := b.instance(never)
		again := b.instance(spec("again", ""))

		pass(20 * time.Second)

		for _, id := range []string{left.Id, again.Id} {
			require.NoError(t, b.Fail(id))
			require.Equal(t, api.InstanceStateFailed, b.state(id))
		}

		requireNo(t, b.reboot(left.Id), api.ErrInvalidRequest, "instance state cannot be changed from failed")
		pass(time.Minute)
		require.Equal(t, api.InstanceStateFailed, b.state(left.Id))
		require.Equal(t, api.InstanceStateRunning, b.state(again.Id))
		require.NoError(t, b.stop(left.Id))
		require.Equal(t, api.InstanceStateStopped, b.state(left.Id))

		seen, err := b.InstanceView(b.ctx(), api.InstanceViewParams{Instance: api.NameOrId(again.Id)})
		require.NoError(t, err)
		require.True(t, *seen.AutoRestartEnabled)
		require.Equal(t, time.Hour, seen.AutoRestartCooldownExpiration.Sub(*seen.TimeLastAutoRestarted))

		// The second time it has to wait, and one that is stopped meanwhile stays so.
		require.NoError(t, b.Fail(again.Id))
		pass(50 * time.Minute)
		require.Equal(t, api.InstanceStateFailed, b.state(again.Id))
		require.NoError(t, b.stop(again.Id))
		pass(2 * time.Hour)
		require.Equal(t, api.InstanceStateStopped, b.state(again.Id))
	})
}

func TestGuestRestartsAndLeavesByItself(t *testing.T) {
	boots := 0

	var leave atomic.Bool

	opts := timed
	opts.SMBIOS = oxide.Swapped

	var seen oxide.Guest

	opts.Boot = func(ctx context.Context, g oxide.Guest) {
		boots++
		seen = g
		_, _ = fmt.Fprintf(g, "boot %d\n", boots)

		if boots == 1 {
			g.Reboot()
		}

		for !leave.Load() && ctx.Err() == nil {
			time.Sleep(time.Second)
		}
	}

	inBubble(t, opts, func(b *bench) {
		i := b.instance(spec("one", b.image("talos", map[int][]byte{0: []byte(padded("x"))})))
		pass(20 * time.Second)
		require.Equal(t, api.InstanceStateRebooting, b.state(i.Id))
		pass(time.Minute)
		require.Equal(t, api.InstanceStateRunning, b.state(i.Id))
		require.Equal(t, 2, boots)

		id := strings.ReplaceAll(i.Id, "-", "")
		want := id[6:8] + id[4:6] + id[2:4] + id[0:2] + id[10:12] + id[8:10] + id[14:16] + id[12:14] + id[16:]
		require.Equal(t, want, strings.ReplaceAll(seen.UUID, "-", ""))

		m := b.Machines()
		require.Len(t, m, 1)
		require.Equal(t, seen.UUID, m[0].UUID)
		require.Equal(t, 2, m[0].Boots)
		require.True(t, m[0].On)

		console := func(p api.InstanceSerialConsoleParams) string {
			p.Instance = api.NameOrId(i.Id)
			data, err := b.InstanceSerialConsole(b.ctx(), p)
			require.NoError(t, err)

			var text strings.Builder
			for _, c := range data.Data {
				text.WriteByte(byte(c))
			}

			return text.String()
		}

		require.Equal(t, "boot 2\n", console(api.InstanceSerialConsoleParams{FromStart: new(uint64(0))}))
		require.Equal(t, "2\n", console(api.InstanceSerialConsoleParams{MostRecent: new(uint64(2))}))
		require.Equal(t, "ot", console(api.InstanceSerialConsoleParams{FromStart: new(uint64(2)), MaxBytes: new(uint64(2))}))

		leave.Store(true)

		pass(20 * time.Second)
		require.Equal(t, api.InstanceStateStopped, b.state(i.Id))
		_, err := b.InstanceSerialConsole(b.ctx(), api.InstanceSerialConsoleParams{Instance: api.NameOrId(i.Id), MostRecent: new(uint64(2))})
		requireNo(t, err, api.ErrInvalidRequest, "instance is stopped and has no active serial console server")
		require.False(t, b.Machines()[0].On)
	})
}

func TestInstanceWithoutABootableDiskRunsNothing(t *testing.T) {
	boots := 0

	inBubble(t, oxide.Options{Boot: func(context.Context, oxide.Guest) { boots++ }}, func(b *bench) {
		body := spec("one", "")
		body.BootDisk = api.InstanceDiskAttachment{Value: &api.InstanceDiskAttachmentCreate{
			Name: "boot", Description: "d", Size: gib, DiskBackend: blank(),
		}}
		i := b.instance(body)
		pass(time.Hour)
		require.Equal(t, api.InstanceStateRunning, b.state(i.Id), "it is in the shell of its firmware")
		require.Zero(t, boots)
	})
}

func TestInstanceIsMadeWholeOrNotAtAll(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		image := b.image("talos", map[int][]byte{0: []byte(padded("x"))})
		data := func(n int) (all []api.InstanceDiskAttachment) {
			for i := range n {
				all = append(all, api.InstanceDiskAttachment{Value: &api.InstanceDiskAttachmentCreate{
					Name: api.Name(fmt.Sprintf("data-%d", i)), Description: "d", Size: gib, DiskBackend: blank(),
				}})
			}

			return all
		}

		for problem, change := range map[string]func(*api.InstanceCreate){
			"cannot attach more than 12 disks to instance": func(s *api.InstanceCreate) { s.Disks = data(12) },
			`not found: disk with name "none"`: func(s *api.InstanceCreate) {
				s.Disks = append(data(2), api.InstanceDiskAttachment{Value: &api.InstanceDiskAttachmentAttach{Name: "none"}})
			},
			`already exists: disk "data-0"`: func(s *api.InstanceCreate) { s.Disks = append(data(1), data(1)...) },
			"disk is in state ImportReady": func(s *api.InstanceCreate) {
				s.BootDisk.Value.(*api.InstanceDiskAttachmentCreate).DiskBackend = importing() //nolint:forcetypeassert // It is one.
			},
			"fewer than 254 vCPUs":               func(s *api.InstanceCreate) { s.Ncpus = 255 },
			"memory must be at least 1 GiB":      func(s *api.InstanceCreate) { s.Memory = gib / 2 },
			"memory must be divisible by 1 GiB":  func(s *api.InstanceCreate) { s.Memory = gib + 1 },
			"less than or equal to 1536 GiB":     func(s *api.InstanceCreate) { s.Memory = 1537 * gib },
			"hostnames must comply":              func(s *api.InstanceCreate) { s.Hostname = "a_b" },
			"invalid length 32769":               func(s *api.InstanceCreate) { s.UserData = base64.StdEncoding.EncodeToString(make([]byte, 32769)) },
			"invalid base64 string":              func(s *api.InstanceCreate) { s.UserData = "_" },
			`not found: ssh-key with name`:       func(s *api.InstanceCreate) { s.SshPublicKeys = []api.NameOrId{"none"} },
			`not found: anti-affinity-group`:     func(s *api.InstanceCreate) { s.AntiAffinityGroups = []api.NameOrId{"none"} },
			"more than 16 anti-affinity groups":  func(s *api.InstanceCreate) { s.AntiAffinityGroups = make([]api.NameOrId, 17) },
			"more than 100 ssh keys":             func(s *api.InstanceCreate) { s.SshPublicKeys = make([]api.NameOrId, 101) },
			"more than 8 network interfaces":     func(s *api.InstanceCreate) { s.NetworkInterfaces = nics(9, "default") },
			"All interfaces must be in the same": func(s *api.InstanceCreate) { s.NetworkInterfaces = nics(1, "default", "other") },
			`not found: vpc with name "none"`:    func(s *api.InstanceCreate) { s.NetworkInterfaces = nics(1, "none") },
			"already has an interface in VPC":    func(s *api.InstanceCreate) { s.NetworkInterfaces = nics(2, "default") },
		} {
			body := spec("one", image)
			change(body)

			_, err := b.create(body)
			require.ErrorContains(t, err, problem)
		}

		require.Empty(t, b.Ledger().Leaks(), b.Ledger().History())

		whole := spec("one", image)
		whole.UserData = base64.StdEncoding.EncodeToString(make([]byte, 32768))
		whole.Disks = data(11)
		i := b.instance(whole)

		disks, err := b.InstanceDiskListAllPages(b.ctx(), api.InstanceDiskListParams{Instance: api.NameOrId(i.Id)})
		require.NoError(t, err)
		require.Len(t, disks, 12)
		require.Equal(t, "one-boot", string(disks[11].Name), "lists do not begin with the boot disk")
		require.Equal(t, disks[11].Id, i.BootDiskId)
	})
}

func nics(each int, vpcs ...api.Name) api.InstanceNetworkInterfaceAttachment {
	all := &api.InstanceNetworkInterfaceAttachmentCreate{}

	for _, vpc := range vpcs {
		for i := range each {
			all.Params = append(all.Params, api.InstanceNetworkInterfaceCreate{
				Name: api.Name(fmt.Sprintf("nic-%s-%d", vpc, i)), Description: "d", VpcName: vpc, SubnetName: "default",
				IpConfig: api.PrivateIpStackCreate{Value: &api.PrivateIpStackCreateV4{Value: api.PrivateIpv4StackCreate{
					Ip: api.Ipv4Assignment{Value: &api.Ipv4AssignmentAuto{}},
				}}},
			})
		}
	}

	return api.InstanceNetworkInterfaceAttachment{Value: all}
}

func TestDisksAreAttachedToAStoppedInstance(t *testing.T) {
	inBubble(t, timed, func(b *bench) {
		image := b.image("talos", map[int][]byte{0: []byte(padded("x"))})
		i, other := b.instance(spec("one", image)), b.instance(spec("two", image))
		id := api.NameOrId(i.Id)

		_, err := b.disk("data", blank(), gib)
		require.NoError(t, err)

		attach := func(to, disk string) error {
			_, err := b.InstanceDiskAttach(b.ctx(), api.InstanceDiskAttachParams{
				Instance: api.NameOrId(to), Body: &api.DiskPath{Disk: api.NameOrId(disk)},
			})

			return err
		}
		detach := func(disk string) error {
			_, err := b.InstanceDiskDetach(b.ctx(), api.InstanceDiskDetachParams{Instance: id, Body: &api.DiskPath{Disk: api.NameOrId(disk)}})

			return err
		}

		pass(20 * time.Second)
		requireNo(t, attach(i.Id, "data"), api.ErrInvalidRequest, "cannot attach disk to instance in running state")
		requireNo(t, detach("one-boot"), api.ErrInvalidRequest, "cannot detach disk from instance in running state")
		require.NoError(t, b.stop(i.Id))
		require.NoError(t, b.stop(other.Id))
		pass(10 * time.Second)
		require.NoError(t, attach(i.Id, "data"))
		require.NoError(t, attach(i.Id, "data"), "what is attached may be attached")
		requireNo(t, attach(other.Id, "data"), api.ErrInvalidRequest, `cannot attach disk "data": disk is attached to another instance`)
		requireNo(t, detach("one-boot"), api.ErrConflict, "boot disk cannot be detached")
		require.NoError(t, detach("data"))
		require.NoError(t, detach("data"), "what is detached may be detached")

		// Disks stay when their instance goes, and are free a while later.
		go func() { _ = b.delete(i.Id) }()

		pass(time.Second)
		require.Equal(t, "detaching", b.diskState(i.BootDiskId))
		pass(2 * time.Second)
		require.Equal(t, "detached", b.diskState(i.BootDiskId))
	})
}

func TestInstanceIsChangedWhileItIsStopped(t *testing.T) {
	inBubble(t, timed, func(b *bench) {
		i := b.instance(spec("one", b.image("talos", map[int][]byte{0: []byte(padded("x"))})))
		pass(20 * time.Second)

		update := func(change func(*api.InstanceUpdate)) (*api.Instance, error) {
			body := &api.InstanceUpdate{
				Ncpus: 2, Memory: 4 * gib, BootDisk: new(api.NameOrId(i.BootDiskId)), EnableJumboFrames: new(false),
				AutoRestartPolicy: new(api.InstanceAutoRestartPolicyNever),
			}
			change(body)

			return b.InstanceUpdate(b.ctx(), api.InstanceUpdateParams{Instance: api.NameOrId(i.Id), Body: body})
		}

		changed, err := update(func(*api.InstanceUpdate) {})
		require.NoError(t, err)
		require.False(t, *changed.AutoRestartEnabled)

		for problem, change := range map[string]func(*api.InstanceUpdate){
			"instance must be stopped to be resized":                  func(u *api.InstanceUpdate) { u.Ncpus = 4 },
			"instance must be stopped to set boot disk":               func(u *api.InstanceUpdate) { u.BootDisk = nil },
			"instance must be stopped to change minimum CPU platform": func(u *api.InstanceUpdate) { u.CpuPlatform = new(api.InstanceCpuPlatformAmdTurin) },
		} {
			_, err := update(change)
			requireNo(t, err, api.ErrConflict, problem)
		}

		require.NoError(t, b.stop(i.Id))
		pass(10 * time.Second)

		changed, err = update(func(u *api.InstanceUpdate) { u.Ncpus, u.BootDisk, u.AutoRestartPolicy = 4, nil, nil })
		require.NoError(t, err)
		require.EqualValues(t, 4, changed.Ncpus)
		require.Empty(t, changed.BootDiskId)
		require.True(t, *changed.AutoRestartEnabled, "it is best effort where nothing else is said")

		_, err = b.disk("data", blank(), gib)
		require.NoError(t, err)
		_, err = update(func(u *api.InstanceUpdate) { u.BootDisk = new(api.NameOrId("data")) })
		requireNo(t, err, api.ErrConflict, "boot disk must be attached")
	})
}

func TestInstanceThatFindsNoRoomIsMadeAndStaysStopped(t *testing.T) {
	for name, tt := range map[string]struct {
		opts oxide.Options
		want string
	}{
		"processors of the quota": {oxide.Options{Quota: oxide.Resources{CPUs: 3}}, "vCPU Limit Exceeded"},
		"memory of the quota":     {oxide.Options{Quota: oxide.Resources{Memory: 7 * gib}}, "Memory Limit Exceeded"},
		"processors of sleds":     {oxide.Options{Sleds: []oxide.Sled{{CPUs: 3, Memory: 64 * gib}}}, "No sleds can fit the requested instance"},
		"memory of sleds":         {oxide.Options{Sleds: []oxide.Sled{{CPUs: 64, Memory: 7 * gib}}}, "No sleds can fit the requested instance"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, tt.opts, func(b *bench) {
				first, second := b.instance(spec("one", "")), b.instance(spec("two", ""))
				require.Equal(t, api.InstanceStateRunning, b.state(first.Id))
				require.Equal(t, api.InstanceStateStopped, second.RunState)

				err := b.start(second.Id)
				requireNo(t, err, api.ErrInsufficientCapacity, tt.want)
				require.ErrorIs(t, err, api.ErrHTTP507)

				require.NoError(t, b.stop(first.Id))
				require.NoError(t, b.start(second.Id))
			})
		})
	}
}

func TestSledsKeepMembersApartAndHaveTheirProcessor(t *testing.T) {
	sled := func(platform api.InstanceCpuPlatform) oxide.Sled {
		return oxide.Sled{CPUs: 64, Memory: 64 * gib, Platform: platform}
	}

	inBubble(t, oxide.Options{Sleds: []oxide.Sled{sled(""), sled(api.InstanceCpuPlatformAmdTurin)}}, func(b *bench) {
		for _, policy := range []api.AffinityPolicy{api.AffinityPolicyAllow, api.AffinityPolicyFail} {
			group, err := b.AntiAffinityGroupCreate(b.ctx(), api.AntiAffinityGroupCreateParams{Project: project, Body: &api.AntiAffinityGroupCreate{
				Name: api.Name("apart-" + string(policy)), Description: "d", Policy: policy, FailureDomain: api.FailureDomainSled,
			}})
			require.NoError(t, err)

			states := []api.InstanceState{}

			for n := range 3 {
				body := spec(fmt.Sprintf("%s-%d", policy, n), "")
				body.AntiAffinityGroups = []api.NameOrId{api.NameOrId(group.Id)}
				states = append(states, b.instance(body).RunState)
			}

			third := api.InstanceStateRunning
			if policy == api.AffinityPolicyFail {
				third = api.InstanceStateStopped
			}

			require.Equal(t, []api.InstanceState{api.InstanceStateRunning, api.InstanceStateRunning, third}, states)
		}

		body := spec("newest", "")
		body.CpuPlatform = api.InstanceCpuPlatformAmdTurinV2
		require.Equal(t, api.InstanceStateStopped, b.instance(body).RunState)
	})
}

func TestForeignObjectsMayStay(t *testing.T) {
	inBubble(t, oxide.Options{Projects: []string{"default", "other"}}, func(b *bench) {
		for _, kind := range []string{"instance", "disk", "image", "snapshot", "floating-ip", "anti-affinity-group"} {
			for range 2 {
				id, err := b.AddForeign(kind, "theirs")
				require.NoError(t, err)
				require.NotEmpty(t, id)
			}

			_, err := b.AddForeign(kind, "theirs")
			require.ErrorContains(t, err, "already exists", "the name is taken in both projects")
		}

		_, err := b.AddForeign("vm", "theirs")
		require.ErrorContains(t, err, "a rack has no such objects")
		require.Empty(t, b.Ledger().Leaks())

		m := b.Machines()
		require.Len(t, m, 2)
		b.HideMachine(m[0].ID, 1)

		for _, want := range []int{0, 1} {
			all, err := b.InstanceListAllPages(b.ctx(), api.InstanceListParams{Project: project, Limit: new(100)})
			require.NoError(t, err)
			require.Len(t, all, want)
		}

		require.NoError(t, b.SwitchOff(m[0].ID))
		require.NoError(t, b.SwitchOn(m[0].ID))
		require.NoError(t, b.DeleteMachine(m[0].ID))
		require.ErrorContains(t, b.DeleteMachine(m[0].ID), "there is none")
	})
}
