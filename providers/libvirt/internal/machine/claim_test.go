package machine

import (
	"encoding/xml"
	"testing"

	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func TestClaimSaysWhoseTheVolumesAreAndWhere(t *testing.T) {
	ref := driver.Ref{ProviderID: "libvirt", RequestID: "workers-x7k2p"}
	req := driver.Request{Ref: ref, Identity: driver.NewIdentity(ref), Set: "workers"}
	data := ClassData{Memory: 2048, StoragePool: "fast", AdditionalDisks: []Disk{{StoragePool: "slow"}}, Arch: driver.ARM64, Autostart: true}

	m := NewMark(req, data, "v1.2.3", testTime)
	m.Making = true

	desc, err := ClaimXML(req, data, Host{Type: "kvm"}, m)
	require.NoError(t, err)
	golden(t, "claim.xml", desc)

	var domain libvirtxml.Domain
	require.NoError(t, domain.Unmarshal(desc))
	require.Equal(t, req.Identity.UUID, domain.UUID)
	require.Nil(t, domain.Devices)

	got, err := ParseMark(domain.Metadata.XML)
	require.NoError(t, err)

	got.XMLName = xml.Name{}
	require.Equal(t, m, got)
	require.Equal(t, []string{"fast", "slow"}, got.Pools())
}

func TestVolumeTakesItsSpaceAtOnceOnlyWhereItHasTo(t *testing.T) {
	for name, v := range map[string]NewVolume{
		"volume-overlay.xml": {Name: "root.qcow2", Format: "qcow2", Capacity: 10 << 30, Backing: "/pool/image.raw"},
		"volume-whole.xml":   {Name: "root.raw", Format: "raw", Capacity: 10 << 30, Whole: true},
		"volume-thin.xml":    {Name: "disk.raw", Format: "raw", Capacity: 10 << 30},
	} {
		desc, err := v.XML()
		require.NoError(t, err)
		golden(t, name, desc)
	}
}
