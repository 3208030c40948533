package runner

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func TestProviderWithAPlaceOutOfReachStartsAndIsNotEnded(t *testing.T) {
	onBench(t, nil, func(b *bench) {
		b.wait(time.Minute)

		opened, _ := b.connections()
		require.Equal(t, []string{"cloud:///default"}, opened)
		assert.Equal(t, `place "b" cannot be reached: connection refused`, b.health(), "Omni is told")
		assert.Equal(t, 1, b.logs.FilterMessage("not all places of the cloud can be reached").Len())

		code, body := b.healthz()
		assert.Equal(t, http.StatusOK, code, "who restarts programs has nothing to do")
		assert.Equal(t, "ok: some places of the cloud cannot be reached\n", body)
	}, func(b *bench) {
		b.site.down["cloud:///default"] = &driver.Unseen{Places: map[string]error{"b": errors.New("connection refused")}}
	})
}

func TestPlacesThatAreGoneAreFollowed(t *testing.T) {
	onBench(t, nil, func(b *bench) {
		engine := b.sup.engine

		b.configure(`{"provider":{"gone_places":["b","c"]}}`)
		assert.Equal(t, []string{"b", "c"}, b.sup.config(b.sup.settings).GonePlaces)
		assert.NotSame(t, engine, b.sup.engine)

		opened, _ := b.connections()
		assert.Len(t, opened, 1, "the driver stays")
	})

	onBench(t, []string{"--gone-places", "b,c"}, func(b *bench) {
		assert.Equal(t, []string{"b", "c"}, b.sup.config(b.sup.settings).GonePlaces)
	})
}

func TestListShowsPlacesWhereMachinesHaveThem(t *testing.T) {
	table := func(infos ...lifecycle.MachineInfo) string {
		var b strings.Builder

		for i := range infos {
			infos[i].Created = time.Now()
		}

		require.NoError(t, writeTable(&b, infos))

		return b.String()
	}

	assert.NotContains(t, table(lifecycle.MachineInfo{Request: "pool-a", Machine: "vm-1", Power: "on"}), "PLACE")

	lines := strings.Split(table(lifecycle.MachineInfo{Request: "pool-a", Machine: "vm-1", Place: "host-b", Power: "on"},
		lifecycle.MachineInfo{Request: "pool-b", Power: "unknown"}), "\n")
	assert.Equal(t, []string{"REQUEST", "UUID", "MACHINE", "PLACE", "POWER"}, strings.Fields(lines[0])[:5])
	assert.Equal(t, []string{"pool-a", "-", "vm-1", "host-b", "on"}, strings.Fields(lines[1])[:5])
	assert.Equal(t, []string{"pool-b", "-", "-", "-", "unknown"}, strings.Fields(lines[2])[:5])
}

func TestSweepSaysThatItHasNotSeenAll(t *testing.T) {
	var b strings.Builder

	require.NoError(t, tellSweep(&b, lifecycle.SweepReport{Machines: 2, Requests: 2, Unseen: `place "b" cannot be reached: no route to host`}, false))
	assert.Equal(t, "0 things left over; the cloud has 2 machines of this provider, Omni 2 requests\n"+
		"not all of the cloud was seen: place \"b\" cannot be reached: no route to host\n", b.String())
}
