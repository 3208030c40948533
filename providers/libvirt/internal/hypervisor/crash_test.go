package hypervisor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

// smallDisk is the size of a boot image that is soon uploaded.
const smallDisk = 64<<10 + 512

var errCrashed = errors.New("the provider is dead")

// crasher lets calls through up to one, whose call or reply is lost; no call after it is made.
type crasher struct {
	at        int
	loseReply bool
	calls     int
	what      string
}

func (c *crasher) intercept(what string, next func() error) error {
	if c.calls >= c.at {
		return errCrashed
	}

	if c.calls++; c.calls < c.at {
		return next()
	}

	c.what = what

	if c.loseReply {
		_ = next() // Nobody hears the answer.
	}

	return errCrashed
}

// A provider that dies at any call, and is started again or is not, ends with one machine whose disks are whole, and then with nothing,
// whatever the pools are. Volumes of the machine's names that others have in other pools stay.
func TestCrashAtAnyCallLeavesOneMachineThenNothingInEveryKindOfPool(t *testing.T) {
	for name, class := range map[string]string{
		"files":         "storage_pool: files\nadditional_disks: [{size: 1}]",
		"files and lvm": "storage_pool: files\nadditional_disks: [{size: 1, storage_pool: lvm}]",
		"lvm and files": "storage_pool: lvm\nadditional_disks: [{size: 1, storage_pool: files}, {size: 1, storage_pool: ceph}]",
	} {
		for _, loseReply := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reply lost %v", name, loseReply), func(t *testing.T) {
				inImageLab(t, sim.Options{}, func(l *imageLab) { l.crashEverywhere(class, loseReply) })
			})
		}
	}
}

func (l *imageLab) crashEverywhere(class string, loseReply bool) {
	t := l.t
	req := l.request("m")
	n := machine.NamesOf(req.Ref)
	theirs := []string{"/dev/zvol/zfs/" + n.Root, "/dev/zvol/zfs/" + n.Raw().Disk(0)}

	for _, file := range theirs {
		l.s.WriteFile(file, []byte("theirs"))
	}

	alive := l.host(Config{ImageMaxAge: -1})
	pools := []string{"files", "lvm", "ceph"}

	nothingLeft := func(where string) {
		require.NoError(t, alive.SweepImages(t.Context(), "libvirt"), where)
		require.Empty(t, l.domains(), where)

		for _, pool := range pools {
			require.Empty(t, l.volumes(pool), where)
		}

		require.Subset(t, l.volumes("zfs"), []string{n.Root, n.Raw().Disk(0)}, where)
	}

	one := func(where string) {
		require.Equal(t, []string{n.Domain}, l.domains(), where)

		m, err := alive.Find(t.Context(), req.Ref)
		require.NoError(t, err, where)
		require.False(t, m.Incomplete, where)
		require.Equal(t, driver.PowerOn, m.Power, where)

		images := 0

		for _, pool := range pools {
			images += len(slices.DeleteFunc(l.volumes(pool), func(name string) bool { return !isImage(name) }))
		}

		require.Equal(t, 2, images, where)

		if slices.Contains(l.volumes("lvm"), n.Raw().Root) {
			content, _ := l.read("lvm", n.Raw().Root, smallDisk)
			require.Equal(t, diskContent(smallDisk), content, where)
		}
	}

	for at := 1; ; at++ {
		c := &crasher{at: at, loseReply: loseReply}
		config := Config{}
		config.Intercept = c.intercept
		dying := l.host(config)
		err := l.make(t.Context(), dying, req, class, &diskImage{size: smallDisk}, quiet)
		dying.Close()

		where := fmt.Sprintf("making, call %d: %s", at, c.what)

		if at%2 == 0 {
			require.NoError(t, l.make(t.Context(), alive, req, class, &diskImage{size: smallDisk}, quiet), where)
			one(where)
		}

		listed, listErr := alive.List(t.Context(), "libvirt")
		require.NoError(t, listErr)
		require.LessOrEqual(t, len(listed), 1)

		l.remove(alive, req)
		nothingLeft(where)

		if c.calls < at {
			require.NoError(t, err)
			t.Logf("a machine takes %d calls", c.calls)

			break
		}
	}

	for at := 1; ; at++ {
		require.NoError(t, l.make(t.Context(), alive, req, class, &diskImage{size: smallDisk}, quiet))

		c := &crasher{at: at, loseReply: loseReply}
		config := Config{}
		config.Intercept = c.intercept
		dying := l.host(config)
		_, err := dying.Remove(t.Context(), req.Ref)
		dying.Close()

		l.remove(alive, req)
		nothingLeft(fmt.Sprintf("removing, call %d: %s", at, c.what))

		if c.calls < at {
			require.NoError(t, err)
			t.Logf("its removal takes %d calls", c.calls)

			break
		}
	}
}

// The domain is the claim on a machine's volumes. When somebody takes it away, in the middle or at the end, what tells whose they are
// is in the volumes, for as long as there are any.
func TestVolumesAreTheMachinesOwnWithoutItsDomain(t *testing.T) {
	for _, class := range []string{
		"storage_pool: files\nadditional_disks: [{size: 1, storage_pool: lvm}]",
		"storage_pool: lvm\nadditional_disks: [{size: 1}, {size: 1, storage_pool: files}]",
	} {
		t.Run(class, func(t *testing.T) {
			inImageLab(t, sim.Options{}, func(l *imageLab) {
				t := l.t
				alive, req := l.host(Config{ImageMaxAge: -1}), l.request("m")

				for at := 1; ; at++ {
					require.NoError(t, l.make(t.Context(), alive, req, class, &diskImage{size: smallDisk}, quiet))

					dom, err := l.witness.LookupDomainByName(machine.NamesOf(req.Ref).Domain)
					require.NoError(t, err)
					require.NoError(t, dom.DestroyFlags(0))
					require.NoError(t, dom.UndefineFlags(libvirt.DOMAIN_UNDEFINE_NVRAM))

					left, err := alive.Find(t.Context(), req.Ref)
					require.NoError(t, err)
					require.True(t, left.Incomplete)

					c := &crasher{at: at, loseReply: true}
					config := Config{}
					config.Intercept = c.intercept
					dying := l.host(config)
					_, _ = dying.Remove(t.Context(), req.Ref)
					dying.Close()

					l.remove(alive, req)
					require.NoError(t, alive.SweepImages(t.Context(), "libvirt"))

					for _, pool := range []string{"files", "lvm"} {
						require.Empty(t, l.volumes(pool), "call %d: %s", at, c.what)
					}

					if c.calls < at {
						break
					}
				}
			})
		})
	}
}

// libvirt forgets a domain that was undefined while it ran as soon as it stops, and leaves its firmware's variables where they are.
func TestDomainThatWasUndefinedWhileItRunsGoesWithAllItHas(t *testing.T) {
	inImageLab(t, sim.Options{}, func(l *imageLab) {
		t := l.t
		h, req := l.host(Config{ImageMaxAge: -1}), l.request("m")
		require.NoError(t, l.make(t.Context(), h, req, "storage_pool: files\nfirmware: uefi", &diskImage{size: smallDisk}, quiet))
		require.Contains(t, strings.Join(l.s.Files(), " "), "nvram")

		dom, err := l.witness.LookupDomainByName(machine.NamesOf(req.Ref).Domain)
		require.NoError(t, err)
		require.NoError(t, dom.UndefineFlags(libvirt.DOMAIN_UNDEFINE_KEEP_NVRAM))

		l.remove(h, req)
		require.NoError(t, h.SweepImages(t.Context(), "libvirt"))
		require.Empty(t, l.s.Files())
	})
}
