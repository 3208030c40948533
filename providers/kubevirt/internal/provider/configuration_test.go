package provider_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

// What the configuration of KubeVirt rules out is said in its words: at once by the webhook, or as soon as the machine is to start.
func TestWhatKubeVirtIsNotConfiguredForIsSaid(t *testing.T) {
	for name, tt := range map[string]struct {
		config     virt.Configuration
		data, want string
		final      bool
	}{
		"a bridge on pods": {
			virt.Configuration{NoPodBridge: true}, "{cores: 2, memory: 2048, disk_size: 10, network_binding: bridge}",
			"Bridge on pod network configuration is not enabled under kubevirt-config", true,
		},
		"host devices": {
			virt.Configuration{}, "{cores: 2, memory: 2048, disk_size: 10, host_devices: [{device_name: example.org/nic}]}",
			"Host Devices feature gate is not enabled in kubevirt-config", true,
		},
		"a binding plugin": {
			virt.Configuration{}, "{cores: 2, memory: 2048, disk_size: 10, network_binding: passt}",
			"unable to find the network binding plugin 'passt' in Kubevirt configuration", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				opts := kubevirt.Options{Enter: keepImages}
				opts.Virt.Configuration = tt.config
				l := newLab(t, opts)

				o := l.provision(requestOf("r-1", tt.data), 5*time.Minute)
				require.ErrorContains(t, o.err, tt.want, "%v", o.said)

				require.Equal(t, tt.final, driver.KindOf(o.err) == driver.KindTerminal, "%v", o.err)

				l.mustRemove("r-1")
			})
		})
	}
}
