package lifecycle_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func TestOrphanIsNotRemovedWhileAPlaceIsUnseen(t *testing.T) {
	runSitesAlone(t, func(w *world, s *sites) {
		p := w.process("a", bySites(s), sweeping(lifecycle.SweepRemove))

		w.madeAt(s, "a", "pool-a")
		w.madeAt(s, "b", "pool-b")
		s.put("a", "left", func(m *driver.Machine) { m.Incomplete = true })
		s.put("b", "left")
		s.put("b", "other")
		w.wait(30 * time.Minute)
		s.set("b", cut)
		w.wait(12 * time.Hour)
		assert.Equal(t, []string{"a/left", "a/pool-a", "b/left", "b/other", "b/pool-b"}, w.cloud.names())
		assert.Zero(t, w.cloud.count("remove left"))

		told := strings.Join(p.told(), "\n")
		assert.Contains(t, told, `orphan left: Omni does not have its request; nothing is removed before all places can be seen, as ["b"] cannot`)
		assert.Contains(t, told, "orphan other: ", "it has been seen, and nobody has seen it go")
		assert.Len(t, p.told(), 2, "each is told once")

		s.set("b", "")
		w.wait(2 * time.Minute)
		assert.Equal(t, []string{"a/pool-a", "b/pool-b"}, w.cloud.names())
		p.stop()
	})
}

func TestOrphanAtAPlaceThatHasNoneOfItsMachinesIsKept(t *testing.T) {
	runSitesAlone(t, func(w *world, s *sites) {
		p := w.process("a", bySites(s), sweeping(lifecycle.SweepRemove))

		w.madeAt(s, "a", "pool-a")
		w.madeAt(s, "b", "pool-b")

		status, _ := w.status("pool-b")
		w.setHeld(status.Metadata(), true)
		w.wait(time.Minute)

		// The address of b leads elsewhere now, where another Omni has machines of a provider with the same id.
		w.cloud.drop("b/pool-b")
		s.put("b", "theirs")
		w.wait(12 * time.Hour)
		assert.Equal(t, []string{"a/pool-a", "b/theirs"}, w.cloud.names())
		require.Len(t, p.told(), 1)
		assert.Contains(t, p.told()[0], `orphan theirs: Omni does not have its request, but place "b" shows none of the machines that were made there`)

		// Nothing of b is known any more.
		w.setHeld(status.Metadata(), false)
		w.teardown("pool-b")
		w.wait(2 * time.Hour)
		assert.Equal(t, []string{"a/pool-a"}, w.cloud.names())
		p.stop()
	})
}

func TestSweepOfACloudThatIsSeenInPartSaysSo(t *testing.T) {
	runSitesAlone(t, func(w *world, s *sites) {
		p := w.process("a", bySites(s))

		w.madeAt(s, "a", "pool-a")
		p.stop()
		s.put("a", "left")
		s.set("b", cut)

		sweep := func() lifecycle.SweepReport {
			seat, cfg := w.newProcess("sweep", bySites(s))
			report, err := lifecycle.Sweep(w.ctx, cfg, seat.line, lifecycle.SweepOptions{Remove: true})
			require.NoError(t, err)

			return report
		}

		report := sweep()
		assert.Equal(t, `place "b" cannot be reached: no route to host`, report.Unseen)
		assert.Equal(t, `not all places could be seen: place "b" cannot be reached: no route to host`, report.Refused)
		require.Len(t, report.Findings, 1)
		assert.False(t, report.Findings[0].Removed)
		assert.Equal(t, []string{"a/left", "a/pool-a"}, w.cloud.names())

		s.set("b", "")
		report = sweep()
		assert.Empty(t, report.Unseen)
		assert.Empty(t, report.Refused)
		assert.True(t, report.Findings[0].Removed)
		assert.Equal(t, []string{"a/pool-a"}, w.cloud.names())
	})
}
