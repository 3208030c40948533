package provider

import (
	"net/http"
	"testing"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	sim "github.com/omni-infra/omni-infra-providers/sim/oxide"
)

func httpClient(t http.RoundTripper) *http.Client { return &http.Client{Transport: t} }

func TestAMachineFromNothingToNothing(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
		b.run(func(p *process) {
			plan, err := p.make(request("r-1"))
			require.NoError(t, err)
			require.Empty(t, plan.UUID, "a guest may see it otherwise")

			found, err := p.Find(p.ctx, request("r-1").Ref)
			require.NoError(t, err)
			assert.Equal(t, driver.PowerOn, found.Power)
			assert.Equal(t, "running", found.State)
			assert.Equal(t, map[string]string{"project": "default"}, found.Labels)
			assert.NotEmpty(t, found.Boot)
			assert.Contains(t, plan.Patches["provider-id"], "oxide://"+found.ID)

			list, err := p.List(p.ctx, provider)
			require.NoError(t, err)
			require.Equal(t, []driver.Machine{found}, list)

			names := machine.NamesOf(request("r-1").Ref)
			require.Equal(t, map[string]int{"instance": 1, "disk": 1, "image": 1}, b.kinds())
			require.Contains(t, b.objects(), "disk "+names.Boot)

			require.NoError(t, p.remove("r-1"))
			b.imageOnly()

			_, err = p.Find(p.ctx, request("r-1").Ref)
			require.True(t, driver.IsNotFound(err), "%v", err)
		})
	})
}

func TestPowerAndRebootHappenOnce(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
		b.run(func(p *process) {
			ref := request("r-1").Ref

			_, err := p.make(request("r-1"))
			require.NoError(t, err)

			before, err := p.Find(p.ctx, ref)
			require.NoError(t, err)
			require.NoError(t, p.Reboot(p.ctx, ref))
			require.NoError(t, p.Reboot(p.ctx, ref), "it is under way")
			time.Sleep(time.Minute)

			after, err := p.Find(p.ctx, ref)
			require.NoError(t, err)
			require.NotEqual(t, before.Boot, after.Boot)
			require.Equal(t, 2, b.rack.Machines()[0].Boots)

			require.NoError(t, p.SetPower(p.ctx, ref, driver.PowerOff))
			require.Equal(t, driver.KindPending, driver.KindOf(p.SetPower(p.ctx, ref, driver.PowerOff)), "it is stopping")
			time.Sleep(time.Minute)
			require.NoError(t, p.SetPower(p.ctx, ref, driver.PowerOff))
			require.ErrorContains(t, p.Reboot(p.ctx, ref), "is stopped: switch it on instead")

			require.NoError(t, p.SetPower(p.ctx, ref, driver.PowerOn))
			time.Sleep(time.Minute)
			require.NoError(t, p.SetPower(p.ctx, ref, driver.PowerOn))

			found, err := p.Find(p.ctx, ref)
			require.NoError(t, err)
			require.Equal(t, driver.PowerOn, found.Power)
			require.NoError(t, p.remove("r-1"))
		})
	})
}

func TestEveryPartOfAClassReachesTheRack(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations}, func(b *bench) {
		b.run(func(p *process) {
			c := b.client()

			_, err := c.AntiAffinityGroupCreate(p.ctx, oxide.AntiAffinityGroupCreateParams{Project: "default", Body: &oxide.AntiAffinityGroupCreate{
				Name: "apart", Policy: oxide.AffinityPolicyAllow, FailureDomain: oxide.FailureDomainSled,
			}})
			require.NoError(t, err)

			_, err = p.make(requestOf("r-1", `{project: default, cpus: 4, memory: 8, boot_disk_size: 20, disks: [{size: 5}, {type: local, size: 7}], anti_affinity_groups: [apart],
				cpu_platform: amd_turinv2, auto_restart_policy: never, enable_jumbo_frames: true, external_ips: [{ip_version: v4}, {kind: floating, ip_version: v6}],
				network_interfaces: [{ip_config: dual_stack}]}`))
			require.NoError(t, err)

			found, err := p.Find(p.ctx, request("r-1").Ref)
			require.NoError(t, err)

			i, err := c.InstanceView(p.ctx, oxide.InstanceViewParams{Instance: oxide.NameOrId(found.ID)})
			require.NoError(t, err)
			assert.EqualValues(t, 4, i.Ncpus)
			assert.EqualValues(t, 8<<30, i.Memory)
			assert.Equal(t, oxide.InstanceCpuPlatformAmdTurinV2, i.CpuPlatform)
			assert.Equal(t, "r-1", i.Hostname)

			addresses, err := p.Addresses(p.ctx, provider)
			require.NoError(t, err)
			require.Len(t, addresses[request("r-1").Ref], 1)
			assert.Len(t, addresses[request("r-1").Ref][0].IPs, 4, "two private ones, an ephemeral and a floating one")

			calls := b.rack.Ledger().Calls()
			_, err = p.Addresses(p.ctx, provider)
			require.NoError(t, err)
			assert.LessOrEqual(t, b.rack.Ledger().Calls()-calls, 2, "addresses are not asked for each minute")

			require.Equal(t, map[string]int{"instance": 1, "disk": 3, "image": 1, "floating-ip": 1}, b.kinds())
			require.NoError(t, p.remove("r-1"))
			b.imageOnly()
		})
	})
}

func TestTheSecretsOfAMachineAreInNoError(t *testing.T) {
	inBubble(t, sim.Options{}, func(b *bench) {
		b.run(func(p *process) {
			defer b.inject(ledger.Fault{Kind: ledger.Echo, Times: -1})()

			_, err := p.try(request("r-1"))
			require.Error(t, err)
			assert.NotContains(t, err.Error(), "canary")
			assert.NotContains(t, err.Error(), "YXBpVXJs", "user data in base64")
		})
	})
}

// The library takes a machine whose Boot has changed for one that has been rebooted.
func TestAMachineThatIsMovedOrRepairedHasNotBooted(t *testing.T) {
	inBubble(t, sim.Options{Durations: durations, Migration: time.Minute, Repair: time.Minute}, func(b *bench) {
		b.run(func(p *process) {
			ref := request("r-1").Ref

			_, err := p.make(request("r-1"))
			require.NoError(t, err)

			boot := func() string {
				found, err := p.Find(p.ctx, ref)
				require.NoError(t, err)

				return found.Boot
			}

			for _, pass := range []func(string) error{b.rack.Migrate, b.rack.Repair} {
				before := boot()

				require.NoError(t, pass(b.rack.Machines()[0].ID))
				require.Equal(t, before, boot())
				require.Equal(t, driver.KindPending, driver.KindOf(p.Reboot(p.ctx, ref)), "later")
				time.Sleep(2 * time.Minute)
				require.Equal(t, before, boot(), "or the reboot would be taken for done")

				list, err := p.List(p.ctx, provider)
				require.NoError(t, err)
				require.Equal(t, before, list[0].Boot)

				require.NoError(t, p.Reboot(p.ctx, ref))
				time.Sleep(time.Minute)
				require.NotEqual(t, before, boot())
			}

			require.Equal(t, 3, b.rack.Machines()[0].Boots)
			require.NoError(t, p.remove("r-1"))

			_, err = p.List(p.ctx, provider)
			require.NoError(t, err)
			require.Empty(t, p.boots, "what is gone is forgotten")
		})
	})
}
