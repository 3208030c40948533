package machine_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

const officialUUID = "8a4b7c1e-5a3d-4a0e-9d43-2f0c6b1e7a55"

// foreign returns a request's machine with the state in a file, as the official provider stored it.
func foreign(t testing.TB, file string) driver.Foreign {
	state, err := os.ReadFile("testdata/official/" + file)
	require.NoError(t, err)

	return driver.Foreign{Ref: driver.Ref{ProviderID: "libvirt", RequestID: "workers-x7k2p9"}, State: state}
}

func TestStateOfTheOfficialProviderIsRead(t *testing.T) {
	for file, want := range map[string]machine.Official{
		"complete.pb": {
			UUID: officialUUID, Domain: "workers-x7k2p9", Defined: true,
			Volumes: []machine.VolumeRef{
				{Pool: "default", Name: "workers-x7k2p9.qcow2"}, {Pool: "default", Name: "workers-x7k2p9-0-nvme.qcow2"},
				{Pool: "default", Name: "workers-x7k2p9-1-sata.qcow2"}, {Pool: "default", Name: "workers-x7k2p9-cidata.iso"},
			},
		},
		// That of its first releases, which knew neither additional disks nor a seed.
		"first.pb": {
			UUID: officialUUID, Domain: "workers-x7k2p9", Defined: true,
			Volumes: []machine.VolumeRef{{Pool: "default", Name: "workers-x7k2p9.qcow2"}},
		},
		"begun.pb": {
			UUID: officialUUID, Domain: "workers-x7k2p9",
			Volumes: []machine.VolumeRef{{Pool: "default", Name: "workers-x7k2p9.qcow2"}},
		},
		"empty.pb": {Domain: "workers-x7k2p9"},
	} {
		got, err := machine.ParseOfficial(foreign(t, file))
		require.NoError(t, err, file)
		assert.Equal(t, want, got, file)
	}
}

func TestStateThatTheOfficialProviderWouldNotWriteIsRefused(t *testing.T) {
	field := func(number protowire.Number, value string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value)
	}
	pool := field(20, "default")

	for want, state := range map[string][]byte{
		`uuid: parse machine UUID "x"`:                field(1, "x"),
		`uuid: machine UUID "00000000-0000-0000-0000`: field(1, "00000000-0000-0000-0000-000000000000"),
		`vm_name is "other"`:                          field(21, "other"),
		`no pool_name`:                                field(10, "workers-x7k2p9.qcow2"),
		`volume "other.qcow2": want a name that`:      append(field(10, "other.qcow2"), pool...),
		`volume "workers-x7k2p9z.qcow2": want a name`: append(field(10, "workers-x7k2p9z.qcow2"), pool...),
		`volume "workers-x7k2p9-/../x": want a name`:  append(field(13, "workers-x7k2p9-/../x"), pool...),
		`read the official provider's state`:          {0xff, 0xff},
	} {
		f := foreign(t, "empty.pb")
		f.State = state

		_, err := machine.ParseOfficial(f)
		assert.ErrorContains(t, err, want)
	}
}

func FuzzParseOfficial(f *testing.F) {
	for _, file := range []string{"complete.pb", "first.pb", "begun.pb", "empty.pb"} {
		f.Add(foreign(f, file).State)
	}

	f.Fuzz(func(t *testing.T, state []byte) {
		o, err := machine.ParseOfficial(driver.Foreign{Ref: driver.Ref{ProviderID: "libvirt", RequestID: "workers-x7k2p9"}, State: state})
		if err != nil {
			return
		}

		assert.Equal(t, "workers-x7k2p9", o.Domain)

		for _, v := range o.Volumes {
			assert.NotEmpty(t, v.Pool)
			assert.NotContains(t, v.Name, "/")
			assert.Regexp(t, "^workers-x7k2p9", v.Name)
		}
	})
}

func TestMarkOfAnAdoptedMachineNamesWhatBelongsToIt(t *testing.T) {
	m := machine.Mark{
		Provider: "libvirt", Request: "workers-x7k2p9", Pool: "default", Version: "1", UUID: officialUUID,
		Volumes: []machine.VolumeRef{{Pool: "default", Name: "workers-x7k2p9.qcow2"}, {Pool: "fast & <small>", Name: "workers-x7k2p9-cidata.iso"}},
	}

	element, err := m.Element()
	require.NoError(t, err)

	got, err := machine.ParseMark(element)
	require.NoError(t, err)
	assert.Equal(t, m.Volumes, got.Volumes)
	assert.True(t, got.Adopted())
	assert.True(t, got.Owns(officialUUID))
	assert.False(t, got.Owns(driver.NewIdentity(m.Ref()).UUID), "one UUID owns it, and no other: a clone has both the mark and another UUID")
	assert.False(t, machine.Mark{Provider: "libvirt", Request: "workers-x7k2p9"}.Owns(officialUUID))
}
