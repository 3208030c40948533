package machine

import "fmt"

// ProviderID is what Kubernetes knows an instance's node by.
func ProviderID(instanceID string) string { return "oxide://" + instanceID }

// Patches are the Talos configuration patches of one machine, by their short names: its provider id once the rack has given its instance an
// id, and those of the class in their order.
func (c ClassData) Patches(instanceID string) map[string]string {
	patches := map[string]string{}

	if instanceID != "" {
		patches["provider-id"] = fmt.Sprintf("machine:\n  kubelet:\n    extraConfig:\n      providerID: %s\n", ProviderID(instanceID))
	}

	for i, patch := range c.ConfigPatches {
		patches[fmt.Sprintf("class-%02d", i)] = patch
	}

	return patches
}
