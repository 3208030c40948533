package machine

import (
	"fmt"
	"slices"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Image is the boot image of the class. What the request asks for is added to it.
func (c ClassData) Image() *driver.ImageSpec {
	spec := &driver.ImageSpec{
		Platform: "nocloud", Arch: c.Arch, Format: "raw", SecureBoot: c.SecureBoot, Extensions: c.Extensions, KernelArgs: c.KernelArgs,
	}

	// The extension waits for the agent's channel, which is there if and only if the class says so.
	if c.GuestAgent {
		spec.Extensions = append([]string{GuestAgentExtension}, c.Extensions...)
	}

	return spec
}

// CheckExtensions refuses extensions of the request that need a device which the class takes away.
func (c ClassData) CheckExtensions(ofRequest []string) error {
	if !c.GuestAgent && slices.Contains(ofRequest, GuestAgentExtension) {
		return fmt.Errorf("guest_agent: got false, but the request has the extension %s, which waits for the agent's channel: want true, or not the extension",
			GuestAgentExtension)
	}

	return nil
}

// ProviderID is what Kubernetes knows the machine's node by.
func ProviderID(id driver.Identity) string { return "libvirt://" + id.UUID }

// Patches are the Talos configuration patches of one machine, by their short names: its provider id, and those of the class in
// their order.
func (c ClassData) Patches(id driver.Identity) map[string]string {
	patches := map[string]string{
		"provider-id": fmt.Sprintf("machine:\n  kubelet:\n    extraArgs:\n      provider-id: %s\n", ProviderID(id)),
	}

	for i, patch := range c.ConfigPatches {
		patches[fmt.Sprintf("class-%02d", i)] = patch
	}

	return patches
}
