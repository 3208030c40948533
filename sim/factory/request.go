package factory

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/siderolabs/image-factory/pkg/schematic"
)

// Formats are the forms in which a disk image is served.
var Formats = []string{"raw", "raw.gz", "raw.xz", "raw.zst", "qcow2", "iso"}

// Image says which image is asked for.
type Image struct {
	// ID is the schematic's.
	ID        string
	Schematic schematic.Schematic
	// Version has its "v", whether the request had it or not.
	Version  string
	Platform string
	// Arch is "amd64" or "arm64".
	Arch       string
	SecureBoot bool
	Format     string
}

// Name is the last part of the image's path, as in nocloud-amd64.raw.xz.
func (i Image) Name() string {
	name := i.Platform + "-" + i.Arch
	if i.SecureBoot {
		name += "-secureboot"
	}

	return name + "." + i.Format
}

// platform is looked for loosely: which of them a Talos version has is its own affair.
var platform = regexp.MustCompile(`^[a-z][a-z0-9]*$|^digital-ocean$`)

// parseName reads the last part of an image's path. The errors are worded as the real factory's.
func parseName(name string) (Image, error) {
	i := slices.IndexFunc(Formats, func(format string) bool { return strings.HasSuffix(name, "."+format) })
	if i < 0 {
		return Image{}, fmt.Errorf("invalid profile path: %q", name)
	}

	image := Image{Format: Formats[i]}

	rest := strings.TrimSuffix(name, "."+image.Format)
	rest, image.SecureBoot = strings.CutSuffix(rest, "-secureboot")

	dash := strings.LastIndexByte(rest, '-')
	if dash < 0 || !platform.MatchString(rest[:dash]) {
		return Image{}, fmt.Errorf("invalid platform-arch: %q", rest)
	}

	image.Platform, image.Arch = rest[:dash], rest[dash+1:]
	if image.Arch != "amd64" && image.Arch != "arm64" {
		return Image{}, fmt.Errorf("invalid architecture: %q", image.Arch)
	}

	return image, nil
}

var version = regexp.MustCompile(`^v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

// parseVersion returns the version with its "v".
func parseVersion(text string) (string, bool) {
	if !version.MatchString(text) {
		return "", false
	}

	return "v" + strings.TrimPrefix(text, "v"), true
}
