package omni_test

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	sideropb "github.com/siderolabs/siderolink/api/siderolink"

	sim "github.com/omni-infra/omni-infra-providers/sim/omni"
	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// open opens a machine's tunnel and sends a report.
func (j *joiner) open(address string, report talosapi.Report) sideropb.WireGuardOverGRPCService_CreateStreamClient {
	ctx, cancel := context.WithTimeout(j.t.Context(), time.Hour)
	j.t.Cleanup(cancel)

	stream, err := j.tunnel.CreateStream(metadata.AppendToOutgoingContext(ctx, talosapi.AddressKey, address))
	require.NoError(j.t, err)

	data, err := talosapi.Encode(talosapi.Message{Report: &report})
	require.NoError(j.t, err)
	require.NoError(j.t, stream.Send(&sideropb.PeerPacket{Data: data}))

	return stream
}

func receive(t *testing.T, stream sideropb.WireGuardOverGRPCService_CreateStreamClient) talosapi.Message {
	t.Helper()

	packet, err := stream.Recv()
	require.NoError(t, err)

	message, err := talosapi.Decode(packet.GetData())
	require.NoError(t, err)

	return message
}

// TestAPendingMachineIsGivenAUniqueToken joins as Talos does after its first boot.
func TestAPendingMachineIsGivenAUniqueToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, sim.Options{})

		req := j.request("u", j.defaultToken(), "")
		resp, err := j.join(req)
		require.NoError(t, err)

		stream := j.open(resp.GetNodeAddressPrefix(), talosapi.Report{UUID: "u", Stage: talosapi.StageMaintenance})
		command := receive(t, stream)
		require.Equal(t, talosapi.CommandUniqueToken, command.Command)

		req.NodeUniqueToken = &command.Value
		resp, err = j.join(req)
		require.NoError(t, err)
		require.NotNil(t, j.link("u"))

		j.open(resp.GetNodeAddressPrefix(), talosapi.Report{UUID: "u", Stage: talosapi.StageMaintenance})
		time.Sleep(31 * time.Second)
		synctest.Wait()
		assert.True(t, j.link("u").TypedSpec().Value.GetConnected())
	})
}

func TestASecondMachineWithTheSameUUIDIsGivenAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, sim.Options{})

		_, err := j.join(j.request("u", j.defaultToken(), unique(t, "f", "t")))
		require.NoError(t, err)

		req := j.request("u", j.defaultToken(), unique(t, "g", "x"))
		resp, err := j.join(req)
		require.NoError(t, err)

		command := receive(t, j.open(resp.GetNodeAddressPrefix(), talosapi.Report{UUID: "u"}))
		require.Equal(t, talosapi.CommandUUID, command.Command)
		require.NotEqual(t, "u", command.Value)

		req.NodeUuid = command.Value
		_, err = j.join(req)
		require.NoError(t, err)
		assert.NotNil(t, j.link("u"))
		assert.NotNil(t, j.link(command.Value))
	})
}

func TestTunnelsAreForMachinesThatOmniKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, sim.Options{})

		for address, want := range map[string]string{
			"fdae:41e4:649b:9303::7": "code = PermissionDenied desc = peer not allowed",
			"here":                   "code = InvalidArgument desc = metadata x-siderolink-ipv6-addr is \"here\"",
		} {
			_, err := j.open(address, talosapi.Report{UUID: "u"}).Recv()
			assert.ErrorContains(t, err, want)
		}

		resp, err := j.join(j.request("u", j.defaultToken(), unique(t, "f", "t")))
		require.NoError(t, err)

		address := netip.MustParsePrefix(resp.GetNodeAddressPrefix()).Addr()
		first := j.open(netip.AddrPortFrom(address, 50888).String(), talosapi.Report{UUID: "u"})

		synctest.Wait()

		second := j.open(address.String(), talosapi.Report{UUID: "u"})

		_, err = first.Recv()
		require.ErrorContains(t, err, "code = Aborted desc = peer replaced")

		_, err = j.omni.State().Teardown(t.Context(), siderolink.NewLink("u", nil).Metadata())
		require.NoError(t, err)

		for err == nil { // a reset may come first
			_, err = second.Recv()
		}

		assert.ErrorContains(t, err, "code = Aborted desc = peer removed")
	})
}

// TestALostMachineIsConnectedForAWhile proves that a link is cut 275 s after the tunnel's end, at the next poll.
func TestALostMachineIsConnectedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, sim.Options{})

		resp, err := j.join(j.request("u", j.defaultToken(), unique(t, "f", "t")))
		require.NoError(t, err)

		stream := j.open(resp.GetNodeAddressPrefix(), talosapi.Report{UUID: "u"})
		time.Sleep(2 * time.Minute)
		require.NoError(t, stream.CloseSend())
		synctest.Wait()

		time.Sleep(274 * time.Second)
		assert.True(t, j.link("u").TypedSpec().Value.GetConnected())
		time.Sleep(32 * time.Second)
		assert.False(t, j.link("u").TypedSpec().Value.GetConnected())
	})
}
