package provider

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

func TestDaemonThatRestartsDuringAnyCallCostsNoMachineAndMakesNoSecond(t *testing.T) {
	// The first run counts the calls.
	for n, calls := 1, 1; n <= calls; n++ {
		inRack(t, []sim.Options{{Hostname: "a"}}, func(t *testing.T, r *rack) {
			h := r.hosts["a"]
			at := n

			if n == 1 {
				at = 1 << 20
			}

			h.Ledger().Inject(ledger.Fault{Nth: at, Then: h.Restart})

			req := wish("m", "")
			req.Place = "a"

			// Without another driver: this one connects again.
			require.Eventually(t, func() bool { return build(t.Context(), r.d, req) == nil }, time.Minute, time.Second, "restart at call %d", n)
			require.Equal(t, map[string]int{"a": 1}, r.machines(), "restart at call %d", n)
			require.True(t, h.Machines()[0].On, "restart at call %d", n)

			if n == 1 {
				calls = h.Ledger().Calls()
				require.Greater(t, calls, 50)
			}

			require.Eventually(t, func() bool {
				done, err := r.d.Remove(t.Context(), req.Ref)

				return done && err == nil
			}, time.Minute, time.Second)
			require.Empty(t, r.machines())
		})
	}
}

func TestRequestsAtOnceDoNotFightForThePool(t *testing.T) {
	// Whatever works on the pool takes its time, in which libvirt refuses to look at it.
	inRack(t, []sim.Options{{Hostname: "a", Durations: map[string]time.Duration{
		"StoragePool.StorageVolCreateXML": time.Second, "StorageVol.Delete": time.Second, "StorageVol.Upload": time.Second,
	}}}, func(t *testing.T, r *rack) {
		var group sync.WaitGroup

		for i := range 10 {
			group.Go(func() {
				_, err := r.make(r.d, wish(fmt.Sprint("m-", i), ", additional_disks: [{size: 1}]"))
				assert.NoError(t, err)
			})
		}

		group.Wait()
		require.Equal(t, map[string]int{"a": 10}, r.machines())
	})
}

func TestFiftyMachinesHaveNothingInCommon(t *testing.T) {
	var (
		mu   sync.Mutex
		seen = map[string]int{}
	)

	options := []sim.Options{{Hostname: "a", Host: sim.Host{Memory: 1 << 20}}, {Hostname: "b", Host: sim.Host{Memory: 1 << 20}}}

	inRack(t, options, func(t *testing.T, r *rack) {
		var group sync.WaitGroup

		for i := range 50 {
			group.Go(func() {
				_, err := r.make(r.d, wish(fmt.Sprint("m-", i), ", network_interfaces: [{}, {}]"))
				assert.NoError(t, err)
			})
		}

		group.Wait()

		for _, h := range r.hosts {
			conn, err := h.Connect()
			require.NoError(t, err)

			domains, err := conn.ListAllDomains(0)
			require.NoError(t, err)

			for i := range domains {
				desc, err := domains[i].GetXMLDesc(0)
				require.NoError(t, err)

				mu.Lock()

				for _, what := range []string{"<name>", "<uuid>", "<mac address="} {
					for _, part := range strings.Split(desc, what)[1:] {
						seen[what+strings.FieldsFunc(part, func(r rune) bool { return r == '<' || r == '/' })[0]]++
					}
				}

				mu.Unlock()
			}
		}
	})

	require.Len(t, seen, 4*50)

	for what, times := range seen {
		require.Equal(t, 1, times, what)
	}
}

func TestStartThatFailedIsMadeGoodByTheNextTry(t *testing.T) {
	inRack(t, []sim.Options{{Hostname: "a"}}, func(t *testing.T, r *rack) {
		h := r.hosts["a"]
		req := wish("m", "")
		req.Place = "a"

		h.Ledger().Inject(ledger.Fault{Kind: ledger.Unavailable, Op: "Domain.Create"})
		require.ErrorContains(t, build(t.Context(), r.d, req), "start-domain")
		require.Len(t, h.Machines(), 1, "it is defined")

		require.NoError(t, build(t.Context(), r.d, req))
		require.Len(t, h.Machines(), 1)
		require.True(t, h.Machines()[0].On)
	})
}

func TestHostOutOfMemoryIsSaidWithNumbers(t *testing.T) {
	inRack(t, []sim.Options{{Hostname: "a", Host: sim.Host{Memory: 3 << 10}}}, func(t *testing.T, r *rack) {
		_, err := r.make(r.d, wish("m-0", ""))
		require.NoError(t, err)

		_, err = r.make(r.d, wish("m-1", ""))
		require.Equal(t, driver.KindCapacity, driver.KindOf(err))
		require.ErrorContains(t, err, "start-domain")
		require.ErrorContains(t, err, "Cannot allocate memory")
		require.ErrorContains(t, err, "it needs 2048 MiB, the hypervisor has 1024 MiB free")

		// Once there is room, what is there is used.
		require.NoError(t, untilDone(func() error {
			_, err := r.d.Remove(t.Context(), wish("m-0", "").Ref)

			return err
		}))

		_, err = r.make(r.d, wish("m-1", ""))
		require.NoError(t, err)
	})
}

func TestCloseDuringCallsEndsThem(t *testing.T) {
	for range 20 {
		inRack(t, three(), func(t *testing.T, r *rack) {
			var group sync.WaitGroup

			for i := range 5 {
				group.Go(func() {
					// Whether it comes to something is left open: it ends.
					_, _ = r.make(r.d, wish(fmt.Sprint("m-", i), ""))
					_, _ = r.d.List(t.Context(), "libvirt")
				})
			}

			group.Go(r.d.Close)
			group.Wait()
			require.ErrorContains(t, r.d.Check(t.Context()), "closed")
		})
	}
}
