package provider

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	sim "github.com/omni-infra/omni-infra-providers/sim/oxide"
)

// crashClass has an object of each kind.
const crashClass = "{project: default, boot_disk_size: 2, disks: [{size: 1}], external_ips: [{kind: floating, ip_version: v4}]}"

// callsOf counts the calls of a whole life.
func callsOf(t *testing.T) (making, removing int) {
	inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
		b.run(func(p *process) {
			_, err := p.make(requestOf("r-1", crashClass))
			require.NoError(t, err)

			making = b.rack.Ledger().Calls()

			require.NoError(t, p.remove("r-1"))

			removing = b.rack.Ledger().Calls() - making
		})
	})

	return making, removing
}

func TestAKillAtAnyCallOfTheMakingLeavesOneMachineOrNothing(t *testing.T) {
	making, _ := callsOf(t)
	require.Greater(t, making, 15)

	for n := 1; n <= making; n++ {
		for _, lost := range []bool{true, false} {
			for _, wanted := range []bool{true, false} {
				t.Run(fmt.Sprintf("call %d, lost %t, wanted %t", n, lost, wanted), func(t *testing.T) {
					inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
						b.run(func(p *process) {
							p.dieAfter(n, lost)

							_, _ = p.make(requestOf("r-1", crashClass))
						})
						time.Sleep(10 * time.Second)

						b.run(func(p *process) {
							// A planned death that did not come is none.
							b.rack.Ledger().CrashAfter(0, false, nil)

							if wanted {
								_, err := p.make(requestOf("r-1", crashClass))
								require.NoError(t, err)
								require.Equal(t, map[string]int{"instance": 1, "disk": 2, "image": 1, "floating-ip": 1}, b.kinds(), "%v", b.objects())
							}

							require.NoError(t, p.remove("r-1"))
							b.imageOnly()
						})
					})
				})
			}
		}
	}
}

func TestAKillAtAnyCallOfTheRemovalLeavesNothing(t *testing.T) {
	making, removing := callsOf(t)
	require.Greater(t, removing, 10)

	for n := 1; n <= removing; n++ {
		for _, lost := range []bool{true, false} {
			t.Run(fmt.Sprintf("call %d, lost %t", n, lost), func(t *testing.T) {
				inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
					b.run(func(p *process) {
						p.dieAfter(making+n, lost)

						if _, err := p.make(requestOf("r-1", crashClass)); err == nil {
							_ = p.remove("r-1")
						}
					})

					b.run(func(p *process) {
						b.rack.Ledger().CrashAfter(0, false, nil)
						require.NoError(t, p.remove("r-1"))
						b.imageOnly()
					})
				})
			})
		}
	}
}

func TestARequestTornDownBetweenCreateAndRecordLeavesNothing(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
		b.run(func(p *process) {
			for b.rack.Ledger().CallsOf("instance_create") == 0 {
				_, _ = p.try(request("r-1"))
			}

			require.NoError(t, p.remove("r-1"))
			b.imageOnly()
		})
	})
}

// An import that was killed leaves a disk that the rack does not let go of before it is told that the import is over.
func TestWhatAKilledImportHasLeftIsInNobodysWay(t *testing.T) {
	for _, how := range []string{"made again", "removed", "swept", "by another request"} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
				b.run(func(p *process) {
					remove := b.inject(hang("disk_bulk_write_import", 2))
					defer remove()

					time.AfterFunc(30*time.Second, func() { b.rack.Ledger().Disconnect(); p.die() })

					_, err := p.make(request("r-1"))
					require.Error(t, err)
				})
				require.Equal(t, map[string]int{"disk": 1}, b.kinds())

				b.run(func(p *process) {
					list, err := p.List(p.ctx, provider)
					require.NoError(t, err)
					require.Len(t, list, 1)
					require.Equal(t, request("r-1").Ref, list[0].Ref)
					require.True(t, list[0].Incomplete)

					switch how {
					case "made again":
						_, err := p.make(request("r-1"))
						require.NoError(t, err)
					case "by another request":
						_, err := p.make(request("r-2"))
						require.NoError(t, err)
					case "swept":
						require.NoError(t, p.Sweep(p.ctx, provider))
						time.Sleep(time.Minute)
						require.NoError(t, p.Sweep(p.ctx, provider))
						require.Empty(t, b.kinds())
					}

					if how != "removed" {
						for _, o := range b.objects() {
							require.NotContains(t, o, "omni-import")
						}
					}

					require.NoError(t, p.remove("r-1"))
					require.NoError(t, p.remove("r-2"))
					b.imageOnly()
				})
			})
		})
	}
}

func TestDisksOfAMachineThatVanishedMakeWayForANewOne(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
		b.run(func(p *process) {
			req := requestOf("r-1", "{project: default, boot_disk_size: 2, disks: [{size: 1}]}")

			_, err := p.make(req)
			require.NoError(t, err)
			require.NoError(t, b.rack.DeleteMachine(b.rack.Machines()[0].ID))

			list, err := p.List(p.ctx, provider)
			require.NoError(t, err)
			require.Len(t, list, 1)
			require.True(t, list[0].Incomplete, "%+v", list)

			_, err = p.make(req)
			require.NoError(t, err)
			require.Equal(t, map[string]int{"instance": 1, "disk": 2, "image": 1}, b.kinds())

			// Nobody says so before the request goes.
			require.NoError(t, b.rack.DeleteMachine(b.rack.Machines()[0].ID))
			require.NoError(t, p.remove("r-1"))
			b.imageOnly()
		})
	})
}

func TestForeignObjectsWithOurNamesAreLeftAlone(t *testing.T) {
	names := machine.NamesOf(request("r-1").Ref)

	for kind, name := range map[string]string{
		"instance": names.Instance, "disk": names.Boot, "floating-ip": names.FloatingIP(0), "image": machine.ImageName(provider, key, "v1.13.5"),
	} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, sim.Options{}, func(b *bench) {
				_, err := b.rack.AddForeign(kind, name)
				require.NoError(t, err)

				b.run(func(p *process) {
					for range 3 {
						_, err := p.try(requestOf("r-1", crashClass))
						require.ErrorContains(t, err, "is in the way")
						require.ErrorContains(t, err, name)
						require.Equal(t, driver.KindTransient, driver.KindOf(err))
						time.Sleep(time.Minute)
					}

					require.NoError(t, p.remove("r-1"))
					require.Contains(t, b.objects(), kind+" "+name)

					_, err := p.Find(p.ctx, request("r-1").Ref)
					require.True(t, driver.IsNotFound(err))
				})
			})
		})
	}
}

// A process that waits for the lease is older than the attempts of the one that has it.
func TestAProcessThatTakesOverClearsAwayWhatTheLastOneHasLeft(t *testing.T) {
	for _, acted := range []bool{false, true} {
		t.Run(fmt.Sprintf("acted before %t", acted), func(t *testing.T) {
			inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
				b.run(func(waiting *process) {
					if acted {
						_, err := waiting.List(waiting.ctx, provider)
						require.NoError(t, err)
					}

					time.Sleep(time.Hour)

					// It is killed while it clears away.
					broken := b.inject(ledger.Fault{Kind: ledger.Unavailable, Op: "disk_bulk_write_import_stop", Times: -1})
					b.run(func(p *process) {
						time.AfterFunc(30*time.Second, p.die)

						_, err := p.make(request("r-1"))
						require.Error(t, err)
					})
					broken()
					require.Equal(t, map[string]int{"disk": 1}, b.kinds())

					require.NoError(t, waiting.remove("r-1"))
					require.Empty(t, b.kinds(), "%v", b.objects())
				})
			})
		})
	}
}

func TestWhatAnImportCouldNotClearAwayGoesBeforeTheNextOne(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
		b.run(func(p *process) {
			broken := b.inject(ledger.Fault{Kind: ledger.Unavailable, Op: "disk_bulk_write_import_stop", Times: -1})

			_, err := p.try(request("r-1"))
			require.Error(t, err)
			time.Sleep(2 * cleanupTimeout)
			require.Equal(t, map[string]int{"disk": 1}, b.kinds())
			broken()

			_, err = p.try(request("r-1"))
			require.Equal(t, driver.KindPending, driver.KindOf(err), "%v", err)

			for _, o := range b.objects() {
				require.NotContains(t, o, "omni-import")
			}

			require.NoError(t, p.remove("r-1"))
			b.imageOnly()
		})
	})
}
