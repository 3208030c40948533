package lifecycle_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

// telling is a cloud that can tell addresses.
type telling struct {
	*cloud
	// interfaces and err are its answer; asked counts the questions.
	interfaces map[driver.Ref][]driver.Interface
	err        error
	asked      int
}

func (c *telling) Addresses(ctx context.Context, _ string) (map[driver.Ref][]driver.Interface, error) {
	if err := c.called(ctx, "addresses", ""); err != nil {
		return nil, err
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	c.asked++

	return c.interfaces, c.err
}

func (c *telling) tell(err error, answer map[string][]driver.Interface) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.interfaces, c.err = map[driver.Ref][]driver.Interface{}, err
	for id, interfaces := range answer {
		c.interfaces[driver.Ref{ProviderID: providerID, RequestID: id}] = interfaces
	}
}

func (w *world) interfaces(id string) []lifecycle.InterfaceInfo {
	infos, err := w.operator().Machines(w.ctx)
	require.NoError(w.t, err)

	for _, info := range infos {
		if info.Request == id {
			return info.Interfaces
		}
	}

	return nil
}

func TestAddressesAreShownAsTheyWereLastSeen(t *testing.T) {
	var cloud *telling

	run(t, func(w *world) {
		waiting := []driver.Interface{{MAC: "02:00:00:00:00:01", Missing: "no lease"}}
		leased := []driver.Interface{
			{MAC: "02:00:00:00:00:01", IPs: []netip.Addr{netip.MustParseAddr("192.168.1.7")}, Source: "lease"},
			{MAC: "02:00:00:00:00:02", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::9")}, Source: "agent"},
		}
		shown := []lifecycle.InterfaceInfo{
			{MAC: "02:00:00:00:00:01", IPs: []string{"192.168.1.7"}, Source: "lease"},
			{MAC: "02:00:00:00:00:02", IPs: []string{"10.0.0.9", "fd00::9"}, Source: "agent"},
		}

		w.made("pool-a")
		w.made("pool-b")
		cloud.tell(nil, map[string][]driver.Interface{"pool-a": waiting})
		w.wait(2 * time.Minute)
		assert.Equal(t, []lifecycle.InterfaceInfo{{MAC: "02:00:00:00:00:01", Missing: "no lease"}}, w.interfaces("pool-a"), "of a machine that has not joined as well")
		assert.Empty(t, w.interfaces("pool-b"))

		cloud.tell(nil, map[string][]driver.Interface{"pool-a": leased, "pool-b": waiting})
		w.wait(2 * time.Minute)
		assert.Equal(t, shown, w.interfaces("pool-a"))

		w.takeCalls()
		w.wait(time.Hour)
		assert.Empty(t, w.takeCalls(), "what is no news costs no call to Omni")

		// A part of the cloud is out of reach: what was known of it stays.
		cloud.tell(errors.New("host b cannot be reached"), map[string][]driver.Interface{"pool-b": waiting})
		w.wait(10 * time.Minute)
		assert.Equal(t, shown, w.interfaces("pool-a"))
		assert.NotEmpty(t, w.interfaces("pool-b"))

		// A provider that has just started has not looked yet.
		w.stop()
		w.start()
		w.wait(10 * time.Minute)
		assert.Equal(t, shown, w.interfaces("pool-a"))

		cloud.tell(nil, map[string][]driver.Interface{"pool-b": waiting})
		w.wait(2 * time.Minute)
		assert.Empty(t, w.interfaces("pool-a"), "a machine that does not run has none")
		assert.NotEmpty(t, w.interfaces("pool-b"))

		w.teardown("pool-b")
		w.endsWithoutTrace("pool-a")
	}, func(w *world) {
		cloud = &telling{cloud: w.cloud}
		w.driver = cloud
	})
}

func TestQuestionForAddressesHoldsNothingUp(t *testing.T) {
	var cloud *telling

	run(t, func(w *world) {
		w.joined("pool-a")
		w.cloud.set(func(ctx context.Context, call, _ string) error {
			if call == "addresses" {
				<-ctx.Done()

				return ctx.Err()
			}

			return nil
		})
		w.wait(5 * time.Minute)

		w.annotate("pool-a", lifecycle.PowerAnnotation, "off")
		w.wait(time.Second)
		assert.Equal(t, 1, w.cloud.count("power pool-a off"))

		lists := w.cloud.lists
		w.wait(10 * time.Minute)
		assert.Greater(t, w.cloud.lists, lists+5, "it is looked at the cloud nevertheless")
		assert.Zero(t, cloud.asked)
	}, func(w *world) {
		cloud = &telling{cloud: w.cloud}
		w.driver = cloud
	})
}

func TestAddressesThatAGuestMakesUpAreBounded(t *testing.T) {
	var cloud *telling

	run(t, func(w *world) {
		many := make([]netip.Addr, 100_000)
		for i := range many {
			many[i] = netip.MustParseAddr("fd00::9").WithZone("a word of the guest's")
		}

		w.joined("pool-a")
		cloud.tell(nil, map[string][]driver.Interface{"pool-a": {{MAC: "02:00:00:00:00:01", IPs: many, Source: "agent"}}})
		w.wait(2 * time.Minute)

		shown := w.interfaces("pool-a")
		require.Len(t, shown, 1)

		count := len(shown[0].IPs) // A failure would print all of them.
		assert.Equal(t, 16, count)
		assert.Equal(t, "fd00::9", shown[0].IPs[0])
	}, func(w *world) {
		cloud = &telling{cloud: w.cloud}
		w.driver = cloud
	})
}
