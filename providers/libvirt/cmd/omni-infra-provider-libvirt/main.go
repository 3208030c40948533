// Command omni-infra-provider-libvirt makes machines for Omni on a hypervisor that libvirt manages.
package main

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/runner"
)

//go:embed icon.svg
var icon string

// config is the section "libvirt" of the configuration file.
type config struct {
	URI             string   `json:"uri" doc:"Where libvirt is: any URI that libvirt takes." default:"qemu:///system" min:"1"`
	StoragePools    []string `json:"storage_pools" doc:"Storage pools that machine classes may use; all when there is none. They have to exist."`
	ShutdownSeconds int      `json:"shutdown_seconds" doc:"How long a guest may take to shut down before it is switched off." default:"120" min:"1" max:"3600"`
	KeepImages      bool     `json:"keep_images" doc:"Keep boot images in the pools when no machine uses them." default:"false"`
}

func main() {
	runner.Main(runner.Program[config]{
		Name:        "libvirt",
		Title:       "libvirt",
		Description: "Virtual machines on a hypervisor that libvirt manages.",
		Icon:        icon,
		Schema:      provider.Schema(),
		Validate: func(data string) error {
			_, err := classdata.Decode[provider.ClassData](data)

			return err
		},
		Env: map[string]string{"libvirt-uri": "LIBVIRT_URI"},
		Flags: func(flags *pflag.FlagSet, c *config) {
			flags.StringVar(&c.URI, "libvirt-uri", c.URI, "where libvirt is, as qemu:///system or qemu+ssh://root@host/system ($LIBVIRT_URI)")
			flags.StringSliceVar(&c.StoragePools, "storage-pool", c.StoragePools, "storage pool that machine classes may use, given once for each; all when not given")
			flags.BoolVar(&c.KeepImages, "keep-images", c.KeepImages, "keep boot images in the pools when no machine uses them")
		},
		New: newDriver,
	})
}

func newDriver(_ context.Context, c config, log *zap.Logger) (driver.Driver, func() error, error) {
	if c.URI == "" {
		return nil, nil, errors.New("--libvirt-uri is empty: want a URI as qemu:///system")
	}

	d := provider.New(provider.Config{
		Config:          connection.Config{URI: c.URI},
		Version:         runner.Version(),
		ShutdownTimeout: time.Duration(c.ShutdownSeconds) * time.Second,
		KeepImages:      c.KeepImages,
		StoragePools:    c.StoragePools,
		Logger:          log,
	})

	return d, func() error { d.Close(); return nil }, nil
}
