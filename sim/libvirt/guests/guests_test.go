package guests_test

import (
	"bytes"
	"testing"

	"github.com/kdomanski/iso9660"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/libvirt"
	"github.com/omni-infra/omni-infra-providers/sim/libvirt/guests"
)

// seed is an ISO image with that label and user data.
func seed(t *testing.T, label, userData string) []byte {
	t.Helper()

	writer, err := iso9660.NewWriter()
	require.NoError(t, err)

	defer func() { require.NoError(t, writer.Cleanup()) }()

	require.NoError(t, writer.AddFile(bytes.NewReader([]byte(userData)), "user-data"))

	var image bytes.Buffer

	require.NoError(t, writer.WriteTo(&image, label))

	return image.Bytes()
}

func TestUserDataIsThatOfTheSeed(t *testing.T) {
	got, err := guests.UserData(libvirt.Guest{Seed: seed(t, "cidata", "#cloud-config")})
	require.NoError(t, err)
	require.Equal(t, "#cloud-config", string(got))
}

func TestOtherCDsHaveNoUserData(t *testing.T) {
	for what, image := range map[string][]byte{"another label": seed(t, "other", "x"), "no ISO": []byte("x"), "no CD": nil} {
		_, err := guests.UserData(libvirt.Guest{Name: "a", Seed: image})
		require.ErrorContains(t, err, `read seed of domain "a"`, what)
	}
}
