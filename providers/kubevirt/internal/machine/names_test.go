package machine

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// awkward are request ids of every kind that is no part of a name as it is.
var awkward = []string{
	"a", "0", "9-lives", "Upper", "trailing-", "-leading", "dots.in.it", "under_score", "spaces in it", "ünïcode", "---", "/", "\x00",
	strings.Repeat("a", 61), strings.Repeat("a", 62), strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 253),
	strings.Repeat("a-", 40), strings.Repeat("x", 38) + "-b", strings.Repeat("-", 300),
}

func TestEveryDerivedNameIsALabelWhateverTheRequestsID(t *testing.T) {
	seen := map[string]string{}

	for _, provider := range []string{"kubevirt", "kubevirt-2", strings.Repeat("p", 63)} {
		for _, id := range awkward {
			ref := driver.Ref{ProviderID: provider, RequestID: id}
			all := NamesOf(ref).All(16)
			require.Len(t, all, 19)

			for part, name := range all {
				require.Empty(t, validation.IsDNS1123Label(name), "%q: %s %q", id, part, name)

				other, taken := seen[name]
				require.False(t, taken, "%q of %q is %s, too", name, ref, other)

				seen[name] = ref.String()
			}

			require.Empty(t, validation.IsDNS1123Label(HostnameOf(ref)), "%q", id)
			require.Regexp(t, `^kubevirt://[0-9A-Za-z_-]+$`, ProviderID(ref), "the cloud controller manager takes no other")
		}
	}
}

func TestAMachinesHostnameIsItsRequestsIDWhereThatIsOne(t *testing.T) {
	for id, want := range map[string]bool{
		"workers-x7k2p": true, "0": true, strings.Repeat("a", 63): true,
		strings.Repeat("a", 64): false, "Upper": false, "a.b": false, "a-": false, "-a": false, "": false,
	} {
		ref := driver.Ref{ProviderID: "kubevirt", RequestID: id}

		if want {
			require.Equal(t, id, HostnameOf(ref))
		} else {
			require.Equal(t, NamesOf(ref).VM, HostnameOf(ref))
		}
	}
}

func TestAnImageHasItsContentsPlaceAndOwnerInItsName(t *testing.T) {
	base := ImageVolume{ProviderID: "kubevirt", Namespace: "machines", Key: "k", TalosVersion: "v1.13.5", Arch: driver.AMD64}
	require.Empty(t, validation.IsDNS1123Label(base.Name()))
	require.True(t, strings.HasPrefix(base.Name(), "talos-v1-13-5-amd64-"), base.Name())

	seen := map[string]bool{base.Name(): true}

	for _, change := range []func(*ImageVolume){
		func(i *ImageVolume) { i.ProviderID = "other" },
		func(i *ImageVolume) { i.Key = "l" },
		func(i *ImageVolume) { i.StorageClassName = "fast" },
		func(i *ImageVolume) { i.VolumeMode = "Block" },
		func(i *ImageVolume) { i.TalosVersion = "v1.14.0-alpha.1-and-much-more-than-fits" },
		func(i *ImageVolume) { i.Arch = driver.ARM64 },
	} {
		i := base
		change(&i)
		require.False(t, seen[i.Name()], i.Name())
		require.Empty(t, validation.IsDNS1123Label(i.Name()))

		seen[i.Name()] = true
	}

	same := base
	same.URL, same.VirtualSize, same.Version = "https://elsewhere", 1, "v9"
	require.Equal(t, base.Name(), same.Name())
}
