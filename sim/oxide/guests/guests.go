// Package guests puts simulated Talos machines into the instances of a simulated rack. Programs with such a rack import it.
package guests

import (
	"context"
	"io/fs"
	"regexp"
	"sync"
	"testing/fstest"
	"time"

	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/sim/oxide"
	"github.com/omni-infra/omni-infra-providers/sim/talos"
	"github.com/omni-infra/omni-infra-providers/sim/talos/meta"
)

// Guests are the Talos machines of one rack.
type Guests struct {
	// BootTime is how long a machine boots before it joins.
	BootTime time.Duration
	// Log is told what keeps machines from joining.
	Log *zap.Logger

	disks sync.Map // instance id => *meta.Memory, which outlives a boot
}

// Boot runs a machine while its instance is on. It is what oxide.Options.Boot takes. The machine reads its config where Talos does on
// a rack: from the volume "cidata".
func (g *Guests) Boot(ctx context.Context, guest oxide.Guest) {
	disk, _ := g.disks.LoadOrStore(guest.ID, &meta.Memory{})
	schematic, version := imageOf(guest.ImageText, guest.ImageVersion)

	machine := &talos.Machine{
		UUID: guest.UUID, Meta: disk.(*meta.Memory), //nolint:forcetypeassert // Nothing else is stored.
		Cmdline:      "talos.platform=nocloud",
		Volume:       func() (fs.FS, error) { return volume(guest.Seed), nil },
		TalosVersion: version, Schematic: schematic, CPUs: guest.CPUs, MemoryMiB: int(guest.Memory >> 20), Hostname: guest.Hostname,
		BootTime: g.BootTime,
		Observe: func(s talos.Status) {
			if s.Err != nil {
				g.Log.Warn("machine does not get on", zap.String("instance", guest.ID), zap.String("name", guest.Name), zap.Error(s.Err))
			}
		},
	}

	if err := machine.Run(ctx); err != nil && ctx.Err() == nil {
		g.Log.Warn("machine does not boot", zap.String("instance", guest.ID), zap.String("name", guest.Name), zap.Error(err))
	}
}

// volume is a file system with the files of a seed.
func volume(files map[string][]byte) fs.FS {
	out := fstest.MapFS{}
	for name, data := range files {
		out[name] = &fstest.MapFile{Data: data, Mode: 0o444}
	}

	return out
}

var (
	schematicForm = regexp.MustCompile(`\b[0-9a-f]{64}\b`)
	versionForm   = regexp.MustCompile(`^v?[0-9]+\.[0-9]+\.[0-9]+`)
)

// imageOf reads the schematic out of what an image says of itself, and Talos' version out of the image's; they are empty if it does
// not say.
func imageOf(text, imageVersion string) (schematic, version string) {
	schematic = schematicForm.FindString(text)

	if versionForm.MatchString(imageVersion) {
		version = imageVersion
		if version[0] != 'v' {
			version = "v" + version
		}
	}

	return schematic, version
}
