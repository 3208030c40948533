package kubevirt_test

import (
	"fmt"
	"net/http"

	"github.com/omni-infra/omni-infra-providers/conformance"
)

// claims are the provider's. That lists lag behind is nothing that can be had from an API server here.
var claims = []conformance.Feature{
	conformance.DerivedUUID, conformance.MatchByToken, conformance.OldOmni, conformance.Power, conformance.Reboot,
	conformance.Console, conformance.Replace, conformance.ConfigPatches, conformance.OneAtATime, conformance.NextRelease,
}

// data is the class data of a good machine.
const data = "{cores: 1, memory: 2048, disk_size: 10}"

// serveImage serves the beginning of a disk of 4 GiB, whatever image it is asked for; CDI, which is simulated, does not fetch the rest.
func serveImage(w http.ResponseWriter, _ *http.Request) {
	image := make([]byte, 64<<10)
	copy(image, "QFI\xfb\x00\x00\x00\x03")
	image[27] = 1 // The virtual size, in bytes 24 to 31: 4 GiB.

	w.Header().Set("Content-Length", fmt.Sprint(len(image)))
	_, _ = w.Write(image) // Whoever has gone is told nothing.
}
