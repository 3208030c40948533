package kubevirt_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/siderolabs/image-factory/pkg/schematic"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	"github.com/omni-infra/omni-infra-providers/sim/factory"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/guests"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

// claims are the provider's. That lists lag behind is nothing that can be had from an API server here.
var claims = []conformance.Feature{
	conformance.DerivedUUID, conformance.MatchByToken, conformance.OldOmni, conformance.Power, conformance.Reboot,
	conformance.Console, conformance.Replace, conformance.ConfigPatches, conformance.OneAtATime, conformance.NextRelease,
}

// data is the class data of a good machine.
const data = "{cores: 1, memory: 2048, disk_size: 10}"

// imageOf is where the image is that data asks for, with the version of Talos that the suite asks for.
func imageOf(t *testing.T) string {
	t.Helper()

	id, err := (&schematic.Schematic{Customization: schematic.Customization{
		SystemExtensions: schematic.SystemExtensions{OfficialExtensions: []string{"siderolabs/qemu-guest-agent"}},
	}}).ID()
	require.NoError(t, err)

	name := factory.Image{Platform: "nocloud", Arch: "amd64", Format: "qcow2"}.Name()

	return bootasset.DefaultFactory + "/image/" + id + "/v1.13.5/" + name
}

// booter puts a simulated Talos into machines, with all of the seed that KubeVirt hands over. A machine with any other image than that of
// its class fails the test. Without a world machines run and are no Talos.
func booter(t *testing.T, w *conformance.World) func(context.Context, virt.Guest) {
	t.Helper()

	if w == nil {
		return nil
	}

	want := imageOf(t)

	return func(ctx context.Context, g virt.Guest) {
		if g.Image != want {
			t.Errorf("machine %s boots from %q: want %q", g.Name, g.Image, want)
		}

		w.Boot(ctx, conformance.Guest{UUID: g.UUID, UserData: string(g.UserData), Volume: guests.Seed(g)})
	}
}

// unbootable fails the test for a machine that a provider has made: all of those have an image.
func unbootable(t *testing.T) func(virt.Guest) {
	return func(g virt.Guest) {
		if _, made := machine.MarkOf(g.Instance); made {
			t.Errorf("machine %s has no disk with an image", g.Name)
		}
	}
}

// serveImage serves the beginning of a disk of 4 GiB, whatever image it is asked for; CDI, which is simulated, does not fetch the rest.
func serveImage(w http.ResponseWriter, _ *http.Request) {
	image := make([]byte, 64<<10)
	copy(image, "QFI\xfb\x00\x00\x00\x03")
	image[27] = 1 // The virtual size, in bytes 24 to 31: 4 GiB.

	w.Header().Set("Content-Length", fmt.Sprint(len(image)))
	_, _ = w.Write(image) // Whoever has gone is told nothing.
}

// runProvider runs a version of the provider as its program does, in a namespace of a cluster. The configurations say how it reaches the
// cluster and how patient it is.
func runProvider(ctx context.Context, p conformance.Process, version, namespace string, to cluster.Config, patience lifecycle.Config) error {
	images, err := bootasset.New(bootasset.Config{
		Schematics: bootasset.OmniSchematics{Management: p.Client.Management()},
		HTTP:       &http.Client{Transport: factory.Transport{Handler: http.HandlerFunc(serveImage)}},
	})
	if err != nil {
		return err
	}

	d, err := provider.New(provider.Config{
		Cluster: to, Operator: machine.Operator{Namespaces: []string{namespace}}, Version: version, Logger: p.Logger,
	})
	if err != nil {
		return err
	}
	defer d.Close()

	patience.ID, patience.Name, patience.Logger = p.ProviderID, "kubevirt "+version, p.Logger
	patience.Driver, patience.Schema, patience.Images = d, machine.Schema(), images

	engine, err := lifecycle.New(patience)
	if err != nil {
		return err
	}

	return engine.Run(ctx, p.State)
}
