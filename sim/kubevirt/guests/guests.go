// Package guests puts simulated Talos machines into the machines of a simulated KubeVirt. Programs with such a cluster import it.
package guests

import (
	"context"
	"io/fs"
	"path"
	"strings"
	"testing/fstest"
	"time"

	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
	"github.com/omni-infra/omni-infra-providers/sim/talos"
	"github.com/omni-infra/omni-infra-providers/sim/talos/meta"
)

// Guests are the Talos machines of one cluster.
type Guests struct {
	// BootTime is how long a machine boots before it joins.
	BootTime time.Duration
	// Log is told what keeps machines from joining.
	Log *zap.Logger
}

// Boot runs a machine while it is on. It is what virt.Options.Boot takes.
func (g *Guests) Boot(ctx context.Context, guest virt.Guest) {
	disk, _ := guest.Disk.LoadOrStore("meta", &meta.Memory{})
	schematic, version := imageOf(guest.Image)
	log := g.Log.With(zap.String("namespace", guest.Namespace), zap.String("name", guest.Name))

	machine := &talos.Machine{
		UUID: guest.UUID, Serial: guest.Serial, Volume: Seed(guest), Meta: disk.(*meta.Memory), // Nothing else is stored.
		TalosVersion: version, Schematic: schematic, CPUs: guest.CPUs, MemoryMiB: guest.MemoryMiB, Hostname: guest.Hostname,
		BootTime: g.BootTime,
		Observe: func(s talos.Status) {
			if s.Err != nil {
				log.Warn("machine does not get on", zap.Error(s.Err))
			}
		},
	}

	if err := machine.Run(ctx); err != nil && ctx.Err() == nil {
		log.Warn("machine does not boot", zap.Error(err))
	}
}

// Unbootable tells of a machine that finds nothing to boot. It is what virt.Options.Unbootable takes.
func (g *Guests) Unbootable(guest virt.Guest) {
	g.Log.Warn("machine finds no disk with an image", zap.String("namespace", guest.Namespace), zap.String("name", guest.Name))
}

// Seed returns the file system of a guest's cloud-init volume, as a talos.Machine takes it. A guest without one has none.
func Seed(guest virt.Guest) func() (fs.FS, error) {
	if guest.UserData == nil && guest.NetworkData == nil {
		return nil
	}

	files := fstest.MapFS{
		"meta-data": {Data: []byte("instance-id: " + guest.Name + "." + guest.Namespace + "\nlocal-hostname: " + guest.Hostname + "\n")},
	}

	if guest.UserData != nil {
		files["user-data"] = &fstest.MapFile{Data: guest.UserData}
	}

	if len(guest.NetworkData) > 0 {
		files["network-config"] = &fstest.MapFile{Data: guest.NetworkData}
	}

	return func() (fs.FS, error) { return files, nil }
}

// imageOf reads schematic and version out of an image factory's URL, https://HOST/image/SCHEMATIC/VERSION/FILE. Both are empty
// for any other URL.
func imageOf(url string) (schematic, version string) {
	_, rest, found := strings.Cut(url, "/image/")

	parts := strings.Split(path.Clean(rest), "/")
	if !found || len(parts) != 3 {
		return "", ""
	}

	return parts[0], parts[1]
}
