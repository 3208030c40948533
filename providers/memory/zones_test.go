package memory_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	provider "github.com/omni-infra/omni-infra-providers/providers/memory"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
)

func inZones(t *testing.T, test func(t *testing.T, z *cloud.Zones, d *provider.Zones)) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		z := cloud.NewZones(cloud.Options{}, "north", "south", "west")
		defer z.Close()

		test(t, z, provider.NewZones(z.Clients()))
	})
}

// occupy gives a zone a machine of the provider.
func occupy(t *testing.T, z *cloud.Zones, zone string) driver.Ref {
	t.Helper()

	r := driver.Ref{ProviderID: "memory", RequestID: "in-" + zone}
	tags := map[string]string{"omni-infra.dev/provider": r.ProviderID, "omni-infra.dev/request": r.RequestID}
	c := z.Zone(zone).Client()

	v, err := c.CreateVolume(t.Context(), cloud.VolumeSpec{Name: "v", SizeGiB: 1, Tags: tags})
	require.NoError(t, err)

	_, err = c.CreateVM(t.Context(), cloud.VMSpec{Name: "vm", Cores: 1, MemoryMiB: 1, VolumeIDs: []string{v.ID}, Tags: tags})
	require.NoError(t, err)

	return r
}

func TestZoneInReachWithTheFewestMachinesIsChosen(t *testing.T) {
	inZones(t, func(t *testing.T, z *cloud.Zones, d *provider.Zones) {
		occupy(t, z, "north")
		occupy(t, z, "south")

		place, err := d.Place(t.Context(), request(ref))
		require.NoError(t, err)
		assert.Equal(t, "west", place)

		for _, silent := range []bool{false, true} {
			restore, err := z.CutPlace("west", silent)
			require.NoError(t, err)

			place, err = d.Place(t.Context(), request(ref))
			require.NoError(t, err)
			assert.Contains(t, []string{"north", "south"}, place)
			restore()
		}

		for _, zone := range z.Places() {
			_, err := z.CutPlace(zone, false)
			require.NoError(t, err)
		}

		_, err = d.Place(t.Context(), request(ref))
		require.ErrorContains(t, err, `place "north" cannot be reached: connection reset by the cloud; place "south" cannot`)
	})
}

func TestZoneThatIsSilentHidesNoneOfTheOthers(t *testing.T) {
	inZones(t, func(t *testing.T, z *cloud.Zones, d *provider.Zones) {
		north, south := occupy(t, z, "north"), occupy(t, z, "south")

		_, err := z.CutPlace("south", true)
		require.NoError(t, err)

		began := time.Now()
		m, err := d.Find(t.Context(), north)
		require.NoError(t, err)
		assert.Equal(t, "north", m.Place)
		assert.Zero(t, time.Since(began), "who has it answers for all")

		_, err = d.Find(t.Context(), south)
		require.False(t, driver.IsNotFound(err))
		require.NotNil(t, driver.UnseenOf(err))

		list, err := d.List(t.Context(), "memory")
		require.Len(t, list, 1)
		assert.Equal(t, "north", list[0].Place)
		assert.Len(t, driver.UnseenOf(err).Places, 1)

		done, err := d.Remove(t.Context(), driver.Ref{ProviderID: "memory", RequestID: "nowhere"})
		assert.False(t, done)
		assert.NotNil(t, driver.UnseenOf(err))

		assert.NotNil(t, driver.UnseenOf(d.Check(t.Context())))
	})
}

func TestZoneThatAsksToBeLeftAloneIsLeftAloneByItself(t *testing.T) {
	inZones(t, func(t *testing.T, z *cloud.Zones, d *provider.Zones) {
		z.Ledger().Inject(ledger.Fault{Kind: ledger.Throttled, For: time.Minute})

		unseen := driver.UnseenOf(d.Check(t.Context()))
		require.NotNil(t, unseen)
		require.Len(t, unseen.Places, 1)

		calls := z.Ledger().Calls()
		for zone := range unseen.Places {
			assert.ErrorContains(t, driver.UnseenOf(d.Check(t.Context())).Places[zone], "asks to be left alone for 1m0s")
		}

		assert.Equal(t, calls+2, z.Ledger().Calls(), "the other two are asked")

		time.Sleep(time.Minute)
		require.NoError(t, d.Check(t.Context()))
		assert.Empty(t, z.Ledger().Leaks())
	})
}
