package story

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// noCloud has no machines.
type noCloud struct{}

func (noCloud) Machines(context.Context) ([]string, error) { return nil, nil }
func (noCloud) Remove(context.Context, string) error       { return nil }

func newState() state.State { return state.WrapCore(namespaced.NewState(inmem.Build)) }

func TestFailedStepSaysWhatIsMissing(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer

		cfg := Config{
			Omni: newState(), Cloud: noCloud{}, Provider: "p", Machines: 2, Screen: NewScreen(&out, true), Patience: time.Minute,
		}
		require.EqualError(t, Tell(t.Context(), cfg),
			`the provider tells Omni that it is there: provider "p" has not registered: nothing more within 1m0s`)

		out.Reset()

		cfg.Screen = NewScreen(&out, true)

		require.NoError(t, cfg.Omni.Create(t.Context(), infra.NewProviderStatus("p")))
		require.EqualError(t, Tell(t.Context(), cfg), "a set is requested: 0 of 2 requested\nnothing more within 1m0s")
		assert.Contains(t, out.String(), "[2/11] a set is requested")
	})
}

func TestConfigNeedsItsParts(t *testing.T) {
	t.Parallel()

	require.ErrorContains(t, Tell(t.Context(), Config{}), "Omni, Cloud, Provider and Screen")
	require.ErrorContains(t, Tell(t.Context(), Config{
		Omni: newState(), Cloud: noCloud{}, Provider: "p", Screen: NewScreen(&bytes.Buffer{}, true), Machines: -1,
	}), "at least one")
}

func TestLinkThatIsLeftIsFound(t *testing.T) {
	t.Parallel()

	st := newState()
	require.NoError(t, st.Create(t.Context(), labelled(siderolink.NewLink("ours", nil), omni.LabelInfraProviderID, "p")))
	require.NoError(t, st.Create(t.Context(), labelled(siderolink.NewLink("theirs", nil), omni.LabelInfraProviderID, "q")))

	left, err := (&teller{Config: Config{Omni: st, Cloud: noCloud{}, Provider: "p"}}).left(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"link ours"}, left)
}

func TestWorldFollowsAMachine(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		st := newState()

		w, stop, err := watchWorld(ctx, st, "set", func([]Row) {})
		require.NoError(t, err)

		defer stop()
		defer cancel()

		const request, uuid = "set-1", "1c2d4d0e-8f0a-4a4e-9d5e-6e1f0c0f7a11"

		require.NoError(t, st.Create(ctx, labelled(infra.NewMachineRequest("other-1"), omni.LabelMachineRequestSet, "other")))
		require.NoError(t, st.Create(ctx, labelled(infra.NewMachineRequest(request), omni.LabelMachineRequestSet, "set")))
		synctest.Wait()
		assert.Equal(t, []Row{{Request: request}}, w.rows(), "another set's requests are not of the story")

		status := infra.NewMachineRequestStatus(request)
		status.TypedSpec().Value.Stage = specs.MachineRequestStatusSpec_PROVISIONED
		require.NoError(t, st.Create(ctx, status))

		machine := labelled(omni.NewMachine(uuid), omni.LabelMachineRequest, request)
		require.NoError(t, st.Create(ctx, machine))

		for _, connected := range []bool{true, false, true, false, true} {
			machine.TypedSpec().Value.Connected = connected
			require.NoError(t, st.Update(ctx, machine))
		}

		observed := infra.NewMachineStatus(uuid)
		observed.TypedSpec().Value.PowerState = specs.InfraMachineStatusSpec_POWER_STATE_ON
		observed.TypedSpec().Value.LastRebootId = "r"
		require.NoError(t, st.Create(ctx, observed))

		synctest.Wait()

		rows := w.rows()
		require.Len(t, rows, 1)
		assert.Equal(t, Row{
			Request: request, Stage: "provisioned", UUID: uuid, Connected: true, Drops: 2, Power: "on", Reboot: "r",
		}, rows[0])
		assert.True(t, rows[0].Up())

		require.NoError(t, st.Destroy(ctx, infra.NewMachineRequest(request).Metadata()))
		synctest.Wait()
		assert.Empty(t, w.rows())
	})
}

func labelled[T resource.Resource](res T, key, value string) T {
	res.Metadata().Labels().Set(key, value)

	return res
}

func TestRowSaysWhereTheMachineIs(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		want string
		row  Row
	}{
		{"requested", Row{}},
		{"provisioning", Row{Stage: "provisioning"}},
		{"made", Row{Stage: "provisioned"}},
		{"up", Row{Stage: "provisioned", UUID: "u", Connected: true}},
		{"unreachable", Row{Stage: "provisioned", UUID: "u"}},
		{"off", Row{Stage: "provisioned", UUID: "u", Power: "off"}},
		{"leaving", Row{Stage: "provisioned", UUID: "u", Connected: true, Leaving: true}},
	} {
		assert.Equal(t, tt.want, tt.row.State())
	}
}

func TestPlainScreenPrintsEachChangeOnce(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer

		s := NewScreen(&out, true)
		s.begin("title", 1, 3)
		s.beginStep("step")
		s.changed([]Row{{Request: "a"}})
		s.changed([]Row{{Request: "a"}})
		time.Sleep(time.Second)
		s.changed([]Row{{Request: "a", Stage: "provisioning", Status: "create-vm", Error: "no room"}})
		s.changed([]Row{{Request: "a", Stage: "provisioned", UUID: "u", Connected: true}})
		s.changed(nil)
		s.endStep()
		s.end()

		assert.Equal(t, `   0.00 s  title
   0.00 s  [1/1] step
   0.00 s    a: requested
   1.00 s    a: provisioning: create-vm: error: no room
   1.00 s    a: up (matched with machine u)
   1.00 s    a: gone
`, out.String())
	})
}

func TestManyMachinesAreCountedNotListed(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer

		s := NewScreen(&out, true)
		s.begin("title", 1, 200)

		for n := range 200 {
			s.changed(make([]Row, n+1))
		}

		s.changed(nil)

		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		require.Len(t, lines, 1+10+1)
		assert.Equal(t, "   0.00 s    20 requested, 0 made, 0 up, 0 leaving", lines[1])
		assert.Equal(t, "   0.00 s    0 requested, 0 made, 0 up, 0 leaving", lines[11])
	})
}

func TestLivePictureFitsTheTerminal(t *testing.T) {
	t.Parallel()

	rows := make([]Row, 200)
	for i := range rows {
		rows[i] = Row{Request: "set-abcdef", Status: strings.Repeat("long ", 50)}
	}

	s := &Screen{live: true, width: 60, title: "title", total: 1, rows: rows, steps: []shownStep{{title: "step", start: time.Now()}}}
	picture := s.pictureLocked()

	assert.Len(t, picture, 3+3+maxRows+1)
	assert.Equal(t, " and 188 more", picture[len(picture)-1])

	for _, line := range picture {
		assert.Less(t, len([]rune(line)), 60)
	}
}
