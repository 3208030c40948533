package hypervisor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

func TestDiskOfAnAdoptedMachineIsKnownByWhereItIs(t *testing.T) {
	inImageLab(t, sim.Options{Pools: []sim.Pool{{Name: "files"}, {Name: "others"}}}, func(l *imageLab) {
		t := l.t
		h, ref := l.host(Config{}), l.request("web").Ref

		for _, pool := range []string{"files", "others"} {
			require.NoError(t, h.createVolume(t.Context(), pool, machine.NewVolume{Name: "web.qcow2", Format: "qcow2", Capacity: 1 << 20}))
		}

		is, err := h.diskOf(t.Context(), &domain{mark: machine.Mark{
			Provider: ref.ProviderID, Request: ref.RequestID, Volumes: []machine.VolumeRef{{Pool: "files", Name: "web.qcow2"}, {Pool: "files", Name: "gone.qcow2"}},
		}})
		require.NoError(t, err)
		require.True(t, is(l.pathOf("files", "web.qcow2")))
		require.False(t, is(l.pathOf("others", "web.qcow2")), "somebody else's, of the same name")
		require.True(t, is("/anywhere/"+machine.NamesOf(ref).Root), "a name that only this machine has")
	})
}

func TestPathIsFoundInADescriptionAsLibvirtWritesIt(t *testing.T) {
	require.Equal(t, "/a &amp; b/o&apos;neill&lt;1&gt;", inXML.Replace("/a & b/o'neill<1>"))
}
