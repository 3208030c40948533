package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/runner"
)

const defaultURI = "qemu:///system"

// config is the section "libvirt" of the configuration file.
type config struct {
	URI             string       `json:"uri" doc:"Where libvirt is, with a single host: any URI that libvirt takes." default:"qemu:///system" min:"1"`
	Hosts           []hostConfig `json:"hosts" doc:"The hosts, instead of uri, where there are several." max:"100"`
	StoragePools    []string     `json:"storage_pools" doc:"Storage pools that machine classes may use; all when there is none. They have to exist."`
	ShutdownSeconds int          `json:"shutdown_seconds" doc:"How long a guest may take to shut down before it is switched off." default:"120" min:"1" max:"3600"`
	KeepImages      bool         `json:"keep_images" doc:"Keep boot images in the pools for good, though no machine uses them." default:"false"`
	ImageMaxAge     int          `json:"image_max_age_hours" doc:"For how many hours boot images that nothing uses stay in the pools." default:"24" max:"8760"`
}

// hostConfig is one of several hosts.
type hostConfig struct {
	Name         string   `json:"name" doc:"The host's name, by which classes ask for it and the place of its machines is recorded: it stays as long as there are any." required:"true" max:"63" pattern:"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"`
	URI          string   `json:"uri" doc:"Where its libvirt is: any URI that libvirt takes." required:"true" min:"1"`
	StoragePools []string `json:"storage_pools" doc:"Storage pools that machine classes may use there; those for all hosts when there is none."`
	Labels       []string `json:"labels" doc:"Labels of its machines, each as key=value." pattern:"^[^=]+=.*$"`
}

// driverConfig is what the driver is made of.
func (c config) driverConfig() (provider.Config, error) {
	switch {
	case c.URI == "":
		return provider.Config{}, errors.New("--libvirt-uri is empty: want a URI as qemu:///system")
	case len(c.Hosts) == 0:
		// Machines that exist are recorded to be at a host of this name.
		c.Hosts = []hostConfig{{Name: provider.DefaultHost, URI: c.URI}}
	case c.URI != defaultURI:
		return provider.Config{}, errors.New("libvirt.uri and libvirt.hosts are both set: want one of them; " +
			"the host that was uri's is named " + provider.DefaultHost + " among hosts, so that its machines are found")
	}

	var out provider.Config

	seen, uris := map[string]int{}, map[string]int{}

	for i, host := range c.Hosts {
		if other, ok := seen[host.Name]; ok {
			return provider.Config{}, fmt.Errorf("libvirt.hosts[%d].name: %q is the name of hosts[%d] already", i, host.Name, other)
		}

		// One hypervisor under two names would show each of its machines at two places.
		if other, ok := uris[host.URI]; ok {
			return provider.Config{}, fmt.Errorf("libvirt.hosts[%d].uri: it is that of hosts[%d] already: want each host once", i, other)
		}

		seen[host.Name], uris[host.URI] = i, i

		if len(host.StoragePools) == 0 {
			host.StoragePools = c.StoragePools
		}

		out.Hosts = append(out.Hosts, hypervisor.Config{
			Config:          connection.Config{URI: host.URI},
			Name:            host.Name,
			Labels:          labels(host.Labels),
			StoragePools:    host.StoragePools,
			Version:         runner.Version(),
			ShutdownTimeout: time.Duration(c.ShutdownSeconds) * time.Second,
			KeepImages:      c.KeepImages,
			ImageMaxAge:     imageMaxAge(c.ImageMaxAge),
		})
	}

	return out, nil
}

// imageMaxAge is never zero, which would be the default.
func imageMaxAge(hours int) time.Duration {
	if hours == 0 {
		return -1
	}

	return time.Duration(hours) * time.Hour
}

func labels(pairs []string) map[string]string {
	all := map[string]string{}

	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		all[key] = value
	}

	return all
}
