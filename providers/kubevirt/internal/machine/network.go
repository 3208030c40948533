package machine

import (
	"fmt"
	"net"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func (n Network) multus() bool { return n.Type == networkMultus }

// name is that of the network and its interface in the VirtualMachine. KubeVirt's cloud controller manager looks for the address
// of a node at the one that is named default.
func (n Network) name(i int) string {
	if i == 0 {
		return "default"
	}

	return fmt.Sprintf("net-%d", i)
}

func (n Network) source(i int) kubevirtv1.Network {
	out := kubevirtv1.Network{Name: n.name(i)}

	if n.multus() {
		out.Multus = &kubevirtv1.MultusNetwork{NetworkName: n.Network, Default: n.Default}
	} else {
		out.Pod = &kubevirtv1.PodNetwork{}
	}

	return out
}

// bindingOf is how a network is connected.
func (c ClassData) bindingOf(n Network) string {
	switch {
	case n.Binding != "":
		return n.Binding
	case n.multus():
		return bindingBridge
	default:
		return c.NetworkBinding
	}
}

func (c ClassData) nic(id driver.Identity, i int, n Network) kubevirtv1.Interface {
	nic := kubevirtv1.Interface{Name: n.name(i)}
	binding := c.bindingOf(n)

	switch binding {
	case bindingMasquerade:
		nic.Masquerade = &kubevirtv1.InterfaceMasquerade{}
	case bindingPasst:
		nic.Binding = &kubevirtv1.PluginBinding{Name: bindingPasst}
	case bindingPasstCore:
		nic.PasstBinding = &kubevirtv1.InterfacePasstBinding{}
	case bindingSRIOV:
		nic.SRIOV = &kubevirtv1.InterfaceSRIOV{}
	case bindingPlugin:
		nic.Binding = &kubevirtv1.PluginBinding{Name: n.Plugin}
	default:
		nic.Bridge = &kubevirtv1.InterfaceBridge{}
	}

	if n.Model != busVirtio {
		nic.Model = n.Model
	}

	if mac := c.mac(id, i, n); mac != nil {
		nic.MacAddress = mac.String()
	}

	return nic
}

// mac is the address of an interface, nil for that of the pod: a network plugin may drop packets from any other.
func (c ClassData) mac(id driver.Identity, i int, n Network) net.HardwareAddr {
	switch {
	case n.MAC != "" && n.MAC != macDerived:
		mac, err := net.ParseMAC(n.MAC)
		if err != nil {
			return nil
		}

		return mac
	case n.MAC == "" && !n.multus() && c.bindingOf(n) == bindingBridge:
		return nil
	default:
		return id.MAC(i)
	}
}

func (c ClassData) hasPodNetwork() bool {
	for _, n := range c.Networks {
		if !n.multus() {
			return true
		}
	}

	return false
}

// NetworkAttachments are the networks of Multus that the machine needs, as namespace/name.
func (c ClassData) NetworkAttachments() []string {
	var out []string

	for _, n := range c.Networks {
		switch {
		case !n.multus():
		case strings.Contains(n.Network, "/"):
			out = append(out, n.Network)
		default:
			out = append(out, c.Namespace+"/"+n.Network)
		}
	}

	return out
}
