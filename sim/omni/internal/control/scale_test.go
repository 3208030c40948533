package control_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// TestHundredsOfMachinesComeAndGo keeps the controllers fast enough for a large set, and watches from falling behind.
func TestHundredsOfMachinesComeAndGo(t *testing.T) {
	const n = 500

	simulate(t, func(t *testing.T, w *world) {
		w.provide(byToken)
		w.requestSet("pool", n)
		w.settle()
		require.Len(t, list[*infra.MachineRequestStatus](w), n)

		for _, request := range list[*infra.MachineRequest](w) {
			id := uuid.NewSHA1(uuid.NameSpaceOID, []byte(request.Metadata().ID())).String()
			address := w.join(id, request.Metadata().ID())
			w.machines.set(address, true, &talosapi.Report{UUID: id, Stage: talosapi.StageMaintenance})
		}

		w.settle()
		require.Len(t, list[*omni.MachineStatus](w), n)

		edit(w, "pool", func(set *omni.MachineRequestSet) { set.TypedSpec().Value.MachineCount = 0 })
		time.Sleep(time.Second)
		w.settle()

		require.Empty(t, list[*infra.MachineRequest](w))
		require.Empty(t, list[*infra.MachineRequestStatus](w))
		require.Empty(t, list[*siderolink.Link](w))
		require.Empty(t, list[*omni.MachineStatus](w))
	})
}
