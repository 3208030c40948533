// Package guests reads what Talos machines in the guests of a simulated libvirt boot with. Tests with such a hypervisor import it.
package guests

import (
	"bytes"
	"fmt"

	"github.com/omni-infra/omni-infra-providers/sim/libvirt"
	"github.com/omni-infra/omni-infra-providers/sim/talos"
)

// UserData returns the user data in the guest's seed, as Talos reads it from a CD with the label of NoCloud.
func UserData(g libvirt.Guest) ([]byte, error) {
	files, err := talos.OpenISO(bytes.NewReader(g.Seed))
	if err != nil {
		return nil, fmt.Errorf("read seed of domain %q: %w", g.Name, err)
	}

	return talos.ReadSeed(files).UserData, nil
}
