package driver_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func TestIdentityNeverChanges(t *testing.T) {
	id := driver.NewIdentity(driver.Ref{ProviderID: "libvirt", RequestID: "pool-hqv4ch"})

	// Machines that exist are found again by these values.
	assert.Equal(t, "c3421185-f022-5328-852c-30420935055f", id.UUID)
	assert.Equal(t, "aa:3e:2a:2c:5e:c4", id.MAC(0).String())
	assert.Equal(t, "pool-hqv4ch", id.Hostname)
}

func TestIdentitiesOfRequestsAndProvidersDiffer(t *testing.T) {
	uuids, macs := map[string]bool{}, map[string]bool{}

	for i := range 10_000 {
		for _, provider := range []string{"a", "b"} {
			id := driver.NewIdentity(driver.Ref{ProviderID: provider, RequestID: fmt.Sprintf("pool-%d", i)})
			uuids[id.UUID] = true

			mac := id.MAC(i % 3)
			macs[mac.String()] = true

			require.Len(t, mac, 6)
			require.Zero(t, mac[0]&0x01, "%s is a multicast address", mac)
			require.NotZero(t, mac[0]&0x02, "%s is not locally administered", mac)
			require.Equal(t, uuid.Version(5), uuid.MustParse(id.UUID).Version())
		}
	}

	assert.Len(t, uuids, 20_000)
	assert.Len(t, macs, 20_000)
}

func TestUUIDsAreCanonicalAndOfOneMachine(t *testing.T) {
	for in, want := range map[string]string{
		"9204B267-AB33-4540-8560-5EDBFF05A540":          "9204b267-ab33-4540-8560-5edbff05a540",
		"9204b267ab3345408560 5edbff05a540":             "",
		"9204b267ab33454085605edbff05a540":              "9204b267-ab33-4540-8560-5edbff05a540",
		"urn:uuid:9204b267-ab33-4540-8560-5edbff05a540": "9204b267-ab33-4540-8560-5edbff05a540",
		"":                                     "",
		"Not Settable":                         "",
		"00000000-0000-0000-0000-000000000000": "",
		"FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF": "",
		"03000200-0400-0500-0006-000700080009": "",
	} {
		got, err := driver.CanonicalUUID(in)
		assert.Equal(t, want, got, in)
		assert.Equal(t, want == "", err != nil, in)
	}
}

func FuzzCanonicalUUID(f *testing.F) {
	f.Add("9204B267-AB33-4540-8560-5EDBFF05A540")
	f.Add("{9204b267-ab33-4540-8560-5edbff05a540}")

	f.Fuzz(func(t *testing.T, s string) {
		got, err := driver.CanonicalUUID(s)
		if err != nil {
			return
		}

		again, err := driver.CanonicalUUID(got)
		require.NoError(t, err)
		require.Equal(t, got, again)
		require.Equal(t, strings.ToLower(got), got)
	})
}

func TestKindOfAnErrorSurvivesWrapping(t *testing.T) {
	cause := errors.New("cause")

	for _, tt := range []struct {
		err  error
		kind driver.Kind
	}{
		{cause, driver.KindTransient},
		{driver.Terminal(cause), driver.KindTerminal},
		{driver.Terminalf("x: %w", cause), driver.KindTerminal},
		{driver.NotFound("x: %w", cause), driver.KindNotFound},
		{driver.Capacity(cause), driver.KindCapacity},
		{driver.Throttled(time.Minute, cause), driver.KindThrottled},
		{driver.Pending(time.Second, "x: %w", cause), driver.KindPending},
	} {
		wrapped := fmt.Errorf("do: %w", tt.err)
		assert.Equal(t, tt.kind, driver.KindOf(wrapped), "%v", tt.err)
		assert.ErrorIs(t, wrapped, cause)
	}

	assert.Equal(t, time.Minute, driver.PauseOf(fmt.Errorf("do: %w", driver.Throttled(time.Minute, cause))))
	assert.Zero(t, driver.PauseOf(cause))
}

func TestJoinHidesItsToken(t *testing.T) {
	join := driver.Join{UserData: "canary-token", KernelArgs: []string{"canary-token"}}

	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		assert.NotContains(t, fmt.Sprintf(format, join), "canary", format)
		assert.NotContains(t, fmt.Sprintf(format, &join), "canary", format)
		assert.NotContains(t, fmt.Sprintf(format, driver.Task{Join: join}), "canary", format)
	}
}
