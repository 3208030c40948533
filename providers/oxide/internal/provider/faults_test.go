package provider

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	sim "github.com/omni-infra/omni-infra-providers/sim/oxide"
)

// hang makes a call of an operation, from number nth on, stay without answer.
func hang(op string, nth int) ledger.Fault {
	return ledger.Fault{Kind: ledger.Hang, Op: op, Nth: nth, Times: -1, For: time.Hour}
}

func TestThirtyRequestsAtOnceConvergeWithFourCallsAllowed(t *testing.T) {
	// The rack answers more than four with 503.
	inBubble(t, sim.Options{Durations: durations, InFlight: 4, Latency: 20 * time.Millisecond}, func(b *bench) {
		b.run(func(p *process) {
			const requests = 30

			var wg sync.WaitGroup

			for i := range requests {
				wg.Go(func() {
					_, err := p.make(request(fmt.Sprintf("r-%d", i)))
					assert.NoError(t, err)
				})
			}

			wg.Wait()
			require.Equal(t, map[string]int{"instance": requests, "disk": requests, "image": 1}, b.kinds())
			require.LessOrEqual(t, b.rack.MostInFlight(), 4)

			for i := range requests {
				wg.Go(func() { assert.NoError(t, p.remove(fmt.Sprintf("r-%d", i))) })
			}

			wg.Wait()
			b.imageOnly()
		})
	})
}

func TestPartsThatFailAreSentAgain(t *testing.T) {
	for _, kind := range []ledger.FaultKind{ledger.Cut, ledger.Lost, ledger.Unavailable, ledger.Throttled} {
		t.Run(string(kind), func(t *testing.T) {
			inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
				b.run(func(p *process) {
					defer b.inject(ledger.Fault{Kind: kind, Op: "disk_bulk_write_import", Nth: 3, Times: 3})()

					_, err := p.make(request("r-1"))
					require.NoError(t, err)
					require.Equal(t, 1, b.rack.Ledger().CallsOf("disk_create"), "one import")
					b.imageHas(b.image)
					require.NoError(t, p.remove("r-1"))
					require.NotContains(t, strings.Join(b.rack.Ledger().Leaks(), "\n"), "is called")
				})
			})
		})
	}
}

// imageHas checks the content of the only image.
func (b *bench) imageHas(want []byte) {
	b.t.Helper()

	images, err := b.client().ImageListAllPages(b.t.Context(), oxide.ImageListParams{Project: "default"})
	require.NoError(b.t, err)
	require.Len(b.t, images, 1)

	content, err := b.rack.Content("image", images[0].Id)
	require.NoError(b.t, err)

	got := make([]byte, len(want))
	_, err = content.ReadAt(got, 0)
	require.NoError(b.t, err)
	require.True(b.t, string(want) == string(got), "the image has other bytes than its source")
}

func TestWhatIsZeroIsNotSent(t *testing.T) {
	inBubble(t, sim.Options{}, func(b *bench) {
		b.run(func(p *process) {
			_, err := p.make(request("r-1"))
			require.NoError(t, err)
			b.imageHas(b.image)

			// Start and stop begin with the same word; of four parts one is a hole.
			require.Equal(t, 3+2, b.rack.Ledger().CallsOf("disk_bulk_write_import")+b.rack.Ledger().CallsOf("disk_bulk_write_import_start")+
				b.rack.Ledger().CallsOf("disk_bulk_write_import_stop"))
			require.NoError(t, p.remove("r-1"))
		})
	})
}

func TestProgressNeverFallsAndEndsAtTheWhole(t *testing.T) {
	inBubble(t, sim.Options{}, func(b *bench) {
		b.image = pattern(40 * chunkSize)

		b.run(func(p *process) {
			last, all := -1, 0

			_, err := p.try(request("r-1"), func(text string) {
				var now int
				if _, err := fmt.Sscanf(text, "boot image: %d %%", &now); err == nil {
					assert.GreaterOrEqual(t, now, last)
					last = now
					all++
				}
			})
			require.Equal(t, driver.KindPending, driver.KindOf(err))
			require.Equal(t, 100, last)
			require.Greater(t, all, 10)
			require.NoError(t, p.remove("r-1"))
		})
	})
}

func TestTwoProcessesThatImportAtOnceEndWithOneImage(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
		b.run(func(first *process) {
			var wg sync.WaitGroup

			wg.Go(func() {
				_, err := first.make(request("r-1"))
				assert.NoError(t, err)
			})
			time.Sleep(2 * time.Second)

			b.run(func(second *process) {
				_, err := second.make(request("r-2"))
				assert.NoError(t, err)
			})
			wg.Wait()

			require.Equal(t, map[string]int{"instance": 2, "disk": 2, "image": 1}, b.kinds(), "%v", b.objects())
			require.NoError(t, first.remove("r-1"))
			require.NoError(t, first.remove("r-2"))
			b.imageOnly()
		})
	})
}

func TestAnImportGoesOnWhenTheRequestThatBeganItGivesUp(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
		b.run(func(p *process) {
			leader := *p
			leader.ctx, leader.die = context.WithCancel(p.ctx)

			var wg sync.WaitGroup

			wg.Go(func() { _, _ = leader.make(request("r-1")) })
			time.Sleep(500 * time.Millisecond)
			wg.Go(func() {
				_, err := p.make(request("r-2"))
				assert.NoError(t, err)
			})
			time.Sleep(500 * time.Millisecond)
			leader.die()
			wg.Wait()

			require.Equal(t, 1, b.rack.Ledger().CallsOf("disk_create"))
			require.NoError(t, p.remove("r-1"))
			require.NoError(t, p.remove("r-2"))
			b.imageOnly()
		})
	})
}

func TestAnImportThatNobodyWaitsForIsClearedAway(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
		b.run(func(p *process) {
			one := *p
			one.ctx, one.die = context.WithTimeout(p.ctx, 1500*time.Millisecond)

			defer one.die()

			_, err := one.make(request("r-1"))
			require.Error(t, err)
			require.NoError(t, p.remove("r-1"), "it waits for what is being cleared away")
			require.Empty(t, b.kinds(), "%v", b.objects())
		})
	})
}

func TestUnusedImagesGoByAgeAndOthersStay(t *testing.T) {
	inBubble(t, sim.Options{}, func(b *bench) {
		foreign, err := b.rack.AddForeign("image", "somebodys")
		require.NoError(t, err)
		require.NotEmpty(t, foreign)

		b.run(func(p *process) {
			_, err := p.make(request("r-1"))
			require.NoError(t, err)

			look := func() {
				_, err := p.List(p.ctx, provider)
				require.NoError(t, err)
				time.Sleep(time.Minute)
			}

			for range 30 * 60 {
				look()
			}

			require.Equal(t, 2, b.kinds()["image"], "it is in use")
			require.NoError(t, p.remove("r-1"))

			for range 23 * 60 {
				look()
			}

			require.Equal(t, 2, b.kinds()["image"], "it is not old enough")

			for range 2 * 60 {
				look()
			}

			require.Equal(t, []string{"image somebodys"}, b.objects())

			_, err = p.make(request("r-2"))
			require.NoError(t, err)
			require.NoError(t, p.remove("r-2"))
		})
	})
}

func TestAnImageOfTheSiloServesAllProjects(t *testing.T) {
	inBubble(t, sim.Options{Projects: []string{"default", "other"}}, func(b *bench) {
		b.run(func(p *process) {
			_, err := p.make(requestOf("r-1", "{project: default, boot_disk_size: 2, image_scope: silo}"))
			require.NoError(t, err)
			_, err = p.make(requestOf("r-2", "{project: other, boot_disk_size: 2, image_scope: silo}"))
			require.NoError(t, err)
			require.Equal(t, 1, b.rack.Ledger().CallsOf("image_create"))
			require.Zero(t, b.kinds()["image"], "the project has none")

			images, err := b.client().ImageListAllPages(p.ctx, oxide.ImageListParams{})
			require.NoError(t, err)
			require.Len(t, images, 1)

			list, err := p.List(p.ctx, provider)
			require.NoError(t, err)
			require.Len(t, list, 2)

			require.NoError(t, p.remove("r-1"))
			require.NoError(t, p.remove("r-2"))
		})
	})
}

func TestAFullRackIsAskedSlowlyAndSaysSo(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations, Quota: sim.Resources{CPUs: 1}}, func(b *bench) {
		b.run(func(p *process) {
			_, err := p.make(request("r-1"))
			require.NoError(t, err)

			// The rack makes the instance, and has no room to start it.
			_, err = p.try(request("r-2"))
			require.Equal(t, driver.KindPending, driver.KindOf(err), "%v", err)

			for range 3 {
				time.Sleep(time.Minute)

				_, err = p.try(request("r-2"))
				require.Equal(t, driver.KindCapacity, driver.KindOf(err), "%v", err)
				require.ErrorContains(t, err, "507")
				require.Equal(t, map[string]int{"instance": 2, "disk": 2, "image": 1}, b.kinds(), "nothing is made again")
			}

			require.NoError(t, p.remove("r-1"))

			_, err = p.make(request("r-2"))
			require.NoError(t, err)
			require.NoError(t, p.remove("r-2"))
			b.imageOnly()
		})
	})
}

func TestAFullStorageLeavesNothingHalfMade(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations, Quota: sim.Resources{Storage: 3 << 30}}, func(b *bench) {
		b.run(func(p *process) {
			_, err := p.make(request("r-1"))
			require.NoError(t, err)

			for range 3 {
				_, err = p.try(request("r-2"))
				require.Equal(t, driver.KindCapacity, driver.KindOf(err), "%v", err)
				require.Equal(t, map[string]int{"instance": 1, "disk": 1, "image": 1}, b.kinds())
				time.Sleep(time.Minute)
			}

			require.NoError(t, p.remove("r-1"))

			_, err = p.make(request("r-2"))
			require.NoError(t, err)
			require.NoError(t, p.remove("r-2"))
			b.imageOnly()
		})
	})
}

func TestEveryStateOfAnInstanceIsDealtWith(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations, Migration: time.Minute, Repair: time.Minute}, func(b *bench) {
		b.run(func(p *process) {
			ref := request("r-1").Ref
			id := func() string { return b.rack.Machines()[0].ID }

			req := requestOf("r-1", "{project: default, boot_disk_size: 2, auto_restart_policy: never}")
			_, err := p.make(req)
			require.NoError(t, err)

			require.NoError(t, b.rack.Migrate(id()))
			_, err = p.try(req)
			require.NoError(t, err, "a machine that moves runs")
			time.Sleep(2 * time.Minute)

			require.NoError(t, b.rack.Repair(id()))
			_, err = p.try(req)
			require.ErrorContains(t, err, "is repairing")
			require.Equal(t, driver.KindPending, driver.KindOf(err))
			time.Sleep(2 * time.Minute)

			require.NoError(t, b.rack.Fail(id()))
			found, err := p.Find(p.ctx, ref)
			require.NoError(t, err)
			require.Equal(t, driver.PowerOff, found.Power)

			_, err = p.try(req)
			require.ErrorContains(t, err, "has failed; it is started again")
			_, err = p.make(req)
			require.NoError(t, err)

			require.NoError(t, b.rack.SwitchOff(id()))
			_, err = p.make(req)
			require.NoError(t, err)

			require.NoError(t, b.rack.Fail(id()))
			require.Equal(t, driver.KindPending, driver.KindOf(p.SetPower(p.ctx, ref, driver.PowerOn)))
			time.Sleep(time.Minute)
			require.NoError(t, p.SetPower(p.ctx, ref, driver.PowerOn))
			time.Sleep(time.Minute)

			require.NoError(t, b.rack.Fail(id()))
			require.NoError(t, p.remove("r-1"), "a failed machine can be removed")
			b.imageOnly()
		})
	})
}

// stuckFor is how long the machine of the next test takes to stop.
const stuckFor = 30 * time.Minute

func TestAMachineThatDoesNotStopHoldsUpNobody(t *testing.T) {
	slow := map[string]time.Duration{"instance_stop": stuckFor}

	inBubble(t, sim.Options{Durations: slow}, func(b *bench) {
		b.run(func(p *process) {
			_, err := p.make(request("r-1"))
			require.NoError(t, err)

			began := time.Now()
			_, err = p.Remove(p.ctx, request("r-1").Ref)
			require.Equal(t, driver.KindPending, driver.KindOf(err))
			require.Less(t, time.Since(began), time.Second, "it does not wait")

			time.Sleep(10 * time.Minute)

			_, err = p.Remove(p.ctx, request("r-1").Ref)
			require.ErrorContains(t, err, "is stopping for 10m")
			require.Equal(t, 1, b.rack.Ledger().CallsOf("instance_stop"), "it is told once")

			_, err = p.make(request("r-2"))
			require.NoError(t, err)
			require.NoError(t, p.remove("r-1"))
			require.NoError(t, p.remove("r-2"))
			b.imageOnly()
		})
	})
}

func TestListsAreWholeHoweverLongTheyAre(t *testing.T) {
	inBubble(t, sim.Options{PageLimit: 3}, func(b *bench) {
		b.run(func(p *process) {
			const requests = 8

			for i := range requests {
				_, err := p.make(requestOf(fmt.Sprintf("r-%d", i), crashClass))
				require.NoError(t, err)
			}

			list, err := p.List(p.ctx, provider)
			require.NoError(t, err)
			require.Len(t, list, requests)

			for i := range requests {
				require.NoError(t, p.remove(fmt.Sprintf("r-%d", i)))
			}

			b.imageOnly()
		})
	})
}

func TestWhatAnOperatorHasAddedStays(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
		disk, err := b.rack.AddForeign("disk", "backups")
		require.NoError(t, err)
		ip, err := b.rack.AddForeign("floating-ip", "ingress")
		require.NoError(t, err)

		b.run(func(p *process) {
			ref := request("r-1").Ref

			_, err := p.make(request("r-1"))
			require.NoError(t, err)
			require.NoError(t, p.SetPower(p.ctx, ref, driver.PowerOff))
			time.Sleep(time.Minute)

			c, instance := b.client(), oxide.NameOrId(b.rack.Machines()[0].ID)
			_, err = c.InstanceDiskAttach(p.ctx, oxide.InstanceDiskAttachParams{Instance: instance, Body: &oxide.DiskPath{Disk: oxide.NameOrId(disk)}})
			require.NoError(t, err)
			_, err = c.FloatingIpAttach(p.ctx, oxide.FloatingIpAttachParams{FloatingIp: oxide.NameOrId(ip), Body: &oxide.FloatingIpAttach{
				Kind: oxide.FloatingIpParentKindInstance, Parent: instance,
			}})
			require.NoError(t, err)

			require.NoError(t, p.remove("r-1"))
			require.Equal(t, map[string]int{"disk": 1, "floating-ip": 1, "image": 1}, b.kinds())
		})
	})
}

func TestWhatCannotWorkIsRefusedBeforeAnythingIsMade(t *testing.T) {
	inBubble(t, sim.Options{}, func(b *bench) {
		b.run(func(p *process) {
			old := request("r-1")
			old.TalosVersion = "v1.11.0"

			for _, test := range []struct {
				req  driver.Request
				want string
			}{
				{requestOf("r-1", ""), "project: required"},
				{old, "does not boot on an Oxide rack"},
				{request(strings.Repeat("a", 64)), "at most 63"},
				{request("a_b"), "hostname"},
				{requestOf("r-1", "{project: other}"), "the configuration allows default alone"},
			} {
				_, err := p.try(test.req)
				require.ErrorContains(t, err, strings.Replace(test.want, "the configuration", "the provider's configuration", 1))
				require.Equal(t, driver.KindTerminal, driver.KindOf(err), "%v", err)
			}

			require.Empty(t, b.kinds())
			require.Zero(t, b.rack.Ledger().CallsOf("disk_create"))

			_, err := p.try(request(strings.Repeat("a", 63)))
			require.Equal(t, driver.KindPending, driver.KindOf(err), "%v", err)
			require.NoError(t, p.remove(strings.Repeat("a", 63)))
		}, func(c *Config) { c.Projects = []string{"default"} })

		b.run(func(p *process) {
			_, err := p.try(requestOf("r-1", "{project: nowhere}"))
			require.ErrorContains(t, err, `the rack has no project "nowhere", or the provider's token may not see it`)
			require.Equal(t, driver.KindTransient, driver.KindOf(err), "somebody may make it")
		})
	})
}

func TestAnErrorOfAListSaysNothingOfAMachine(t *testing.T) {
	inBubble(t, sim.Options{}, func(b *bench) {
		b.run(func(p *process) {
			_, err := p.make(request("r-1"))
			require.NoError(t, err)

			for _, op := range []string{"instance_list", "disk_list", "floating_ip_list", "project_list"} {
				time.Sleep(2 * time.Minute)

				remove := b.inject(ledger.Fault{Kind: ledger.NotFound, Op: op, Times: -1})
				_, err := p.List(p.ctx, provider)
				require.Error(t, err, op)
				require.False(t, driver.IsNotFound(err), "%s: %v", op, err)
				remove()
			}

			require.NoError(t, p.remove("r-1"))
		})
	})
}

func TestASourceThatBreaksOffLeavesNothing(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
		b.run(func(p *process) {
			image := b.image
			b.image = nil

			_, err := p.try(request("r-1"))
			require.ErrorContains(t, err, "it is empty")
			require.Empty(t, b.kinds())

			// It is read once to learn its size, and breaks off when it is read again.
			b.image, b.breaks = image, b.opened+2

			_, err = p.try(request("r-1"))
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			time.Sleep(cleanupTimeout)
			require.Empty(t, b.kinds(), "%v", b.objects())

			_, err = p.make(request("r-1"))
			require.NoError(t, err)
			b.imageHas(image)
			require.NoError(t, p.remove("r-1"))
			b.imageOnly()
		})
	})
}

func TestAFloatingIPThatAnotherMachineHasYetIsWaitedFor(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
		_, err := b.rack.AddForeign("floating-ip", "ingress")
		require.NoError(t, err)

		b.run(func(p *process) {
			of := func(id string) driver.Request {
				return requestOf(id, "{project: default, boot_disk_size: 2, external_ips: [{kind: floating, name: ingress}]}")
			}

			_, err := p.make(of("r-1"))
			require.NoError(t, err)

			// The machine that takes its place may be asked for before it has gone.
			_, err = p.try(of("r-2"))
			require.ErrorContains(t, err, "attached to another")
			require.Equal(t, driver.KindTransient, driver.KindOf(err))
			require.NoError(t, p.remove("r-1"))

			_, err = p.make(of("r-2"))
			require.NoError(t, err)
			require.NoError(t, p.remove("r-2"))
			require.Equal(t, map[string]int{"floating-ip": 1, "image": 1}, b.kinds())
		})
	})
}
