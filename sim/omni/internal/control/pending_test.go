package control_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/jointoken"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

const pendingAddress = "fdae:41e4:649b:9303::99"

// pending makes a pending machine as the provision service does.
func (w *world) pending(conflict bool) {
	w.t.Helper()

	machine := siderolink.NewPendingMachine("key", &specs.SiderolinkSpec{NodeSubnet: pendingAddress + "/64", NodePublicKey: "key"})
	machine.Metadata().Labels().Set(omni.MachineUUID, machineID)

	if conflict {
		machine.Metadata().Annotations().Set(siderolink.PendingMachineUUIDConflict, "")
	}

	w.create(machine)
	w.settle()
}

func TestPendingMachineGetsAUniqueTokenOnce(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pending(false)
		require.True(t, has[*siderolink.LinkStatus](w, "key/"+siderolink.PendingMachineType))
		require.Empty(t, w.machines.commands(pendingAddress))

		w.machines.set(pendingAddress, true, &talosapi.Report{UUID: machineID, Stage: talosapi.StageMaintenance})
		w.settle()
		w.machines.set(pendingAddress, true, &talosapi.Report{UUID: machineID, Stage: talosapi.StageMaintenance, Hostname: "vm"})
		w.settle()

		commands := w.machines.commands(pendingAddress)
		require.Len(t, commands, 1)
		require.Equal(t, talosapi.CommandUniqueToken, commands[0].Command)

		var token jointoken.NodeUniqueToken
		require.NoError(t, json.Unmarshal([]byte(commands[0].Value), &token))
		require.NotEmpty(t, token.Token)
		require.NotEmpty(t, token.Fingerprint)
		require.Equal(t, commands[0].Value, get[*siderolink.PendingMachineStatus](w, "key").TypedSpec().Value.Token)
	})
}

func TestUUIDConflictIsResolved(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pending(true)
		w.machines.set(pendingAddress, true, &talosapi.Report{UUID: machineID, Stage: talosapi.StageMaintenance})
		w.settle()

		commands := w.machines.commands(pendingAddress)
		require.Len(t, commands, 1)
		require.Equal(t, talosapi.CommandUUID, commands[0].Command)

		_, err := uuid.Parse(commands[0].Value)
		require.NoError(t, err)
		require.NotEqual(t, machineID, commands[0].Value)

		edit(w, "key", func(machine *siderolink.PendingMachine) {
			machine.Metadata().Annotations().Delete(siderolink.PendingMachineUUIDConflict)
		})
		w.settle()
		require.Equal(t, talosapi.CommandUniqueToken, w.machines.commands(pendingAddress)[1].Command)
	})
}

func TestPendingMachineIsForgottenAfterAWhile(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.pending(false)
		time.Sleep(20 * time.Second)
		edit(w, "key", func(machine *siderolink.PendingMachine) { machine.TypedSpec().Value.RemoteAddr = "again" })
		time.Sleep(29 * time.Second)
		require.True(t, has[*siderolink.PendingMachine](w, "key"))

		time.Sleep(2 * time.Second)
		require.False(t, has[*siderolink.PendingMachine](w, "key"))
		require.Empty(t, list[*siderolink.LinkStatus](w))
	})
}

func TestPendingMachineThatCannotBeReachedIsTriedAgain(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.machines.setDeaf(true)
		w.pending(false)
		w.machines.set(pendingAddress, true, &talosapi.Report{UUID: machineID})
		time.Sleep(3 * time.Second)
		w.machines.setDeaf(false)
		time.Sleep(10 * time.Second)
		require.Len(t, w.machines.commands(pendingAddress), 1)
	})
}
