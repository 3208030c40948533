// Command omni-infra-provider-libvirt makes machines for Omni on hypervisors that libvirt manages.
package main

import (
	"context"
	_ "embed"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/runner"
)

//go:embed icon.svg
var icon string

func main() {
	runner.Main(runner.Program[config]{
		Name:        "libvirt",
		Title:       "libvirt",
		Description: "Virtual machines on hypervisors that libvirt manages.",
		Icon:        icon,
		Schema:      machine.Schema(),
		Validate: func(data string) error {
			_, err := classdata.Decode[machine.ClassData](data)

			return err
		},
		Env: map[string]string{"libvirt-uri": "LIBVIRT_URI"},
		Flags: func(flags *pflag.FlagSet, c *config) {
			flags.StringVar(&c.URI, "libvirt-uri", c.URI, "where libvirt is, as qemu:///system or qemu+ssh://root@host/system; several hosts are in the configuration file ($LIBVIRT_URI)")
			flags.StringSliceVar(&c.StoragePools, "storage-pool", c.StoragePools, "storage pool that machine classes may use, given once for each; all when not given")
			flags.BoolVar(&c.KeepImages, "keep-images", c.KeepImages, "keep boot images in the pools when no machine uses them")
		},
		New: newDriver,
	})
}

func newDriver(_ context.Context, c config, log *zap.Logger) (driver.Driver, func() error, error) {
	dc, err := c.driverConfig()
	if err != nil {
		return nil, nil, err
	}

	dc.Logger = log
	d := provider.New(dc)

	return d, func() error { d.Close(); return nil }, nil
}
