package talos_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/talos"
	"github.com/omni-infra/omni-infra-providers/sim/talos/internal/omnitest"
	"github.com/omni-infra/omni-infra-providers/sim/talos/meta"
	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

const (
	id      = "4c4c4544-0042-3510-8052-b4c04f4d4e31"
	apiArg  = "siderolink.api=grpc://omni.example:8090?jointoken=t0ken"
	joinDoc = "apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: grpc://omni.example:8090?jointoken=t0ken\n"
)

// machine returns one that joins o by a kernel argument; change may make it another.
func machine(o *omnitest.Omni, change ...func(*talos.Machine)) *talos.Machine {
	m := &talos.Machine{UUID: id, Cmdline: "console=ttyS0 " + apiArg, Dial: o.Dial}
	for _, f := range change {
		f(m)
	}

	return m
}

// run runs m until the test's bubble ends it, and returns the result of Run.
func run(t *testing.T, o *omnitest.Omni, m *talos.Machine) (ctx context.Context, cut context.CancelFunc, result <-chan error) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
	on, cut := context.WithCancel(ctx)
	ended := make(chan error, 1)

	go func() { ended <- m.Run(on) }()

	t.Cleanup(func() {
		cut()
		cancel()
		o.Stop()
	})

	return ctx, cut, ended
}

func TestUpperCaseSMBIOSUUIDJoinsInLowerCase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := omnitest.New()
		ctx, _, _ := run(t, o, machine(o, func(m *talos.Machine) {
			m.UUID = "4C4C4544-0042-3510-8052-B4C04F4D4E31"
			m.TalosVersion, m.Schematic, m.Hostname = "v1.12.1", "376567", "node-1"
			m.CPUs, m.MemoryMiB, m.Arch = 2, 2048, "amd64"
			m.Disks = []talosapi.Disk{{Name: "vda", Size: 10 << 30}}
		}))

		report := omnitest.Await(ctx, t, o.Reports, "report")
		require.NotEmpty(t, report.BootID)

		report.BootID = ""
		require.Equal(t, talosapi.Report{
			UUID: id, Stage: talosapi.StageMaintenance, TalosVersion: "v1.12.1", Schematic: "376567", Hostname: "node-1",
			Arch: "amd64", CPUs: 2, MemoryMiB: 2048, Disks: []talosapi.Disk{{Name: "vda", Size: 10 << 30}},
		}, report)

		calls := o.Calls()
		require.Len(t, calls, 1)
		require.Equal(t, id, calls[0].GetNodeUuid())
		require.Equal(t, "v1.12.1", calls[0].GetTalosVersion())
		require.Len(t, calls[0].GetNodePublicKey(), 44)
		require.Nil(t, calls[0].WireguardOverGrpc)
	})
}

func TestMachineWithoutUniqueTokenGoesThroughLimbo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := omnitest.New()
		store := &meta.Memory{}
		ctx, _, _ := run(t, o, machine(o, func(m *talos.Machine) { m.Meta = store }))

		omnitest.Await(ctx, t, o.Reports, "report in limbo")
		require.Empty(t, o.Calls()[0].GetNodeUniqueToken())

		o.Commands <- talosapi.Message{Command: talosapi.CommandUniqueToken, Value: "unique"}
		omnitest.Await(ctx, t, o.Reports, "report after joining")

		calls := o.Calls()
		require.Len(t, calls, 2)
		require.Equal(t, "unique", calls[1].GetNodeUniqueToken())
		require.Equal(t, calls[0].GetNodePublicKey(), calls[1].GetNodePublicKey(), "one boot has one key")
		require.Equal(t, map[uint8]string{meta.UniqueMachineToken: "unique"}, store.Values())
	})
}

func TestUUIDConflictIsResolvedForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := omnitest.New()
		ctx, _, _ := run(t, o, machine(o))
		other := uuid.NewString()

		omnitest.Await(ctx, t, o.Reports, "report under the UUID in conflict")

		o.Commands <- talosapi.Message{Command: talosapi.CommandUUID, Value: other}
		require.Equal(t, other, omnitest.Await(ctx, t, o.Reports, "report under the new UUID").UUID)

		o.Commands <- talosapi.Message{Command: talosapi.CommandReboot}
		require.Equal(t, talosapi.StageRebooting, omnitest.Await(ctx, t, o.Reports, "goodbye").Stage)
		require.Equal(t, other, omnitest.Await(ctx, t, o.Reports, "report after a reboot").UUID)
	})
}

func TestRebootLeavesAndJoinsAgainAsAnotherBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := omnitest.New()
		m := machine(o, func(m *talos.Machine) { m.BootTime, m.ShutdownTime = 20*time.Second, 5*time.Second })
		ctx, _, _ := run(t, o, m)

		first := omnitest.Await(ctx, t, o.Reports, "report")
		began := time.Now()
		o.Commands <- talosapi.Message{Command: talosapi.CommandReboot}

		require.Equal(t, talosapi.StageRebooting, omnitest.Await(ctx, t, o.Reports, "goodbye").Stage)
		require.NoError(t, omnitest.Await(ctx, t, o.Gone, "end of the tunnel"), "the tunnel is closed in order")

		second := omnitest.Await(ctx, t, o.Reports, "report of the second boot")
		require.Equal(t, 25*time.Second, time.Since(began))
		require.NotEqual(t, first.BootID, second.BootID)
		require.Equal(t, 2, m.Status().Boots)

		calls := o.Calls()
		require.NotEqual(t, calls[0].GetNodePublicKey(), calls[1].GetNodePublicKey())
	})
}

func TestEachWayToPowerOffEndsTheRun(t *testing.T) {
	ways := map[string]func(*omnitest.Omni, *talos.Machine){
		"command from Omni": func(o *omnitest.Omni, _ *talos.Machine) {
			o.Commands <- talosapi.Message{Command: talosapi.CommandShutdown}
		},
		"power button": func(_ *omnitest.Omni, m *talos.Machine) { m.PressPowerButton() },
	}

	for name, leave := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := omnitest.New()
				m := machine(o)
				ctx, _, ended := run(t, o, m)

				omnitest.Await(ctx, t, o.Reports, "report")
				leave(o, m)

				require.Equal(t, talosapi.StageShuttingDown, omnitest.Await(ctx, t, o.Reports, "goodbye").Stage)
				require.NoError(t, omnitest.Await(ctx, t, o.Gone, "end of the tunnel"))
				require.NoError(t, omnitest.Await(ctx, t, ended, "end of Run"))
				require.Empty(t, m.Status().Stage)
				require.False(t, m.Status().Joined)
			})
		})
	}
}

func TestPowerButtonOfAMachineThatIsOffDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := omnitest.New()
		m := machine(o)
		ctx, _, ended := run(t, o, m)

		omnitest.Await(ctx, t, o.Reports, "report")
		m.PressPowerButton()
		omnitest.Await(ctx, t, o.Reports, "goodbye")
		require.NoError(t, omnitest.Await(ctx, t, ended, "end of Run"))

		m.PressPowerButton()

		on, cut := context.WithCancel(ctx)
		again := make(chan error, 1)

		go func() { again <- m.Run(on) }()

		omnitest.Await(ctx, t, o.Reports, "report of the next boot")
		time.Sleep(time.Hour)
		require.True(t, m.Status().Joined)

		cut()
		require.ErrorIs(t, omnitest.Await(ctx, t, again, "end of Run"), context.Canceled)
	})
}

func TestPowerButtonIsObeyedWithoutTunnel(t *testing.T) {
	for name, change := range map[string]func(*talos.Machine){
		"while booting":         func(m *talos.Machine) { m.BootTime = time.Hour },
		"without a join config": func(m *talos.Machine) { m.Cmdline = "" },
		"while refused":         func(m *talos.Machine) { m.Cmdline = "siderolink.api=grpc://omni.example?jointoken=wrong" },
		"config unreadable": func(m *talos.Machine) {
			m.Cmdline, m.UserData = "", []byte("no machine config")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := omnitest.New()
				m := machine(o, change, func(m *talos.Machine) { m.ShutdownTime = 3 * time.Second })
				ctx, _, ended := run(t, o, m)

				time.Sleep(10 * time.Minute)
				m.PressPowerButton()
				began := time.Now()

				require.NoError(t, omnitest.Await(ctx, t, ended, "end of Run"))
				require.Equal(t, 3*time.Second, time.Since(began))
				require.Empty(t, o.Reports)
			})
		})
	}
}

func TestPowerCutSaysNoGoodbye(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := omnitest.New()
		m := machine(o)
		ctx, cut, ended := run(t, o, m)

		omnitest.Await(ctx, t, o.Reports, "report")
		cut()

		require.ErrorIs(t, omnitest.Await(ctx, t, ended, "end of Run"), context.Canceled)
		require.Error(t, omnitest.Await(ctx, t, o.Gone, "end of the tunnel"))
		require.Empty(t, o.Reports)
	})
}

func TestResetWipesMetaAndBootsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := omnitest.New()
		store := &meta.Memory{}
		require.NoError(t, store.Set(meta.UniqueMachineToken, "unique"))

		ctx, _, _ := run(t, o, machine(o, func(m *talos.Machine) { m.Meta = store }))

		omnitest.Await(ctx, t, o.Reports, "report")
		o.Commands <- talosapi.Message{Command: talosapi.CommandReset}

		require.Equal(t, talosapi.StageResetting, omnitest.Await(ctx, t, o.Reports, "goodbye").Stage)
		began := time.Now()

		omnitest.Await(ctx, t, o.Reports, "report after the reset")
		require.Equal(t, talos.DefaultResetTime, time.Since(began), "a provider has that long to remove the machine before it joins again")

		calls := o.Calls()
		require.Equal(t, "unique", calls[0].GetNodeUniqueToken())
		require.Empty(t, calls[1].GetNodeUniqueToken())
		require.Empty(t, store.Values())
	})
}

func TestMachineSurvivesARestartOfOmni(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := omnitest.New()
		m := machine(o)
		ctx, _, _ := run(t, o, m)

		first := omnitest.Await(ctx, t, o.Reports, "report")
		o.Stop()
		time.Sleep(2 * time.Hour)
		require.False(t, m.Status().Joined)
		require.Error(t, m.Status().Err)

		o.Start()

		second := omnitest.Await(ctx, t, o.Reports, "report to the new Omni")
		require.Equal(t, first.BootID, second.BootID, "the machine did not reboot")
		require.NoError(t, m.Status().Err)
	})
}

func TestRefusedMachineTriesLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := omnitest.New()
		o.RefuseNext(1 << 30)

		ctx, _, _ := run(t, o, machine(o))

		time.Sleep(time.Minute)
		early := len(o.Calls())
		time.Sleep(time.Hour)
		late := len(o.Calls()) - early

		require.GreaterOrEqual(t, early, 5)
		require.LessOrEqual(t, early, 20)
		require.GreaterOrEqual(t, late, 30, "it does not give up")
		require.LessOrEqual(t, late, 130)

		o.RefuseNext(0)
		omnitest.Await(ctx, t, o.Reports, "report")
	})
}

func TestUnreadableConfigHangsTheBootAndIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := omnitest.New()

		var data atomic.Value

		data.Store("hostname: node\n")

		m := machine(o, func(m *talos.Machine) {
			m.Cmdline = ""
			m.Volume = func() (fs.FS, error) {
				return fstest.MapFS{"user-data": {Data: []byte(data.Load().(string))}}, nil //nolint:forcetypeassert // Only strings are stored.
			}
		})
		ctx, _, _ := run(t, o, m)

		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, talosapi.StageBooting, m.Status().Stage)
		require.ErrorContains(t, m.Status().Err, "decode user data")
		require.Empty(t, o.Calls())

		data.Store(joinDoc)

		omnitest.Await(ctx, t, o.Reports, "report")
	})
}

func TestNeitherLogNorStatusShowsATokenOfTheMachine(t *testing.T) {
	for name, change := range map[string]func(*talos.Machine){
		"joined": func(*talos.Machine) {},
		"user data with a wrong scheme": func(m *talos.Machine) {
			m.Cmdline, m.UserData = "", []byte("apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: ftp://omni?jointoken=t0ken\n")
		},
		"user data with a broken URL": func(m *talos.Machine) {
			m.Cmdline, m.UserData = "", []byte("apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: https://[::1?jointoken=t0ken\n")
		},
		"kernel argument with a broken URL": func(m *talos.Machine) {
			m.Cmdline = "siderolink.api=https://[::1?jointoken=t0ken"
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var (
					o      = omnitest.New()
					output bytes.Buffer
					failed error
				)

				m := machine(o, change, func(m *talos.Machine) {
					m.Log = slog.New(slog.NewTextHandler(&output, &slog.HandlerOptions{Level: slog.LevelDebug}))
					m.Observe = func(s talos.Status) { failed = errors.Join(failed, s.Err) }
				})
				ctx, cut, ended := run(t, o, m)

				time.Sleep(time.Minute)
				cut()
				require.ErrorIs(t, omnitest.Await(ctx, t, ended, "end of Run"), context.Canceled)

				require.NotEmpty(t, output.String())
				require.NotContains(t, output.String(), "t0ken")

				if name != "joined" {
					require.Error(t, failed)
					require.NotContains(t, failed.Error(), "t0ken")
				}
			})
		})
	}
}

func TestWrongUUIDIsAnErrorThatNamesIt(t *testing.T) {
	err := (&talos.Machine{UUID: "node-1"}).Run(t.Context())
	require.ErrorContains(t, err, `SMBIOS UUID "node-1"`)
}
