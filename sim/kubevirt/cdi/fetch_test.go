package cdi_test

import (
	"net/http"
	"testing"

	"github.com/siderolabs/image-factory/pkg/schematic"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/factory"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/cdi"
)

func TestImageIsAsLargeAsItsDiskInAnyForm(t *testing.T) {
	images := &factory.Factory{Images: factory.Fake{Size: 1 << 20}}
	id, err := images.Add(schematic.Schematic{})
	require.NoError(t, err)

	fetch := cdi.HTTP(&http.Client{Transport: factory.Transport{Handler: images.Handler()}})

	for _, form := range []string{"raw", "raw.gz", "raw.xz", "raw.zst", "qcow2"} {
		image, err := fetch(t.Context(), cdi.Source{URL: "https://factory.test/image/" + id + "/v1.13.5/nocloud-amd64." + form})
		require.NoError(t, err, form)
		require.EqualValues(t, 1<<20, image.VirtualSize, form)
	}

	_, err = fetch(t.Context(), cdi.Source{URL: "https://factory.test/image/none/v1.13.5/nocloud-amd64.raw"})
	require.EqualError(t, err, "Unable to connect to http data source: expected status code 200, got 404. Status: 404 Not Found")

	image, err := fetch(t.Context(), cdi.Source{URL: "docker://registry.example/talos:v1"})
	require.NoError(t, err)
	require.Zero(t, image.VirtualSize)
}
