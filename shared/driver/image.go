package driver

import (
	"context"
	"io"
)

// Arch is a processor architecture in Talos' spelling.
type Arch string

// The architectures that Talos is built for.
const (
	AMD64 Arch = "amd64"
	ARM64 Arch = "arm64"
)

// ImageSpec says which Talos boot image a machine needs. The request adds its Talos version, extensions, kernel arguments
// and META values.
type ImageSpec struct {
	// Platform is Talos' name of the cloud ("nocloud").
	Platform string
	// Arch is AMD64 when empty.
	Arch Arch
	// Format is how Image.Open delivers the disk: "raw" or "qcow2". It is "raw" when empty.
	Format string
	// SecureBoot asks for the signed image.
	SecureBoot bool
	// Extensions and KernelArgs are added to those of the request.
	Extensions []string
	KernelArgs []string
}

// Image is a boot image that can be fetched. One image serves all machines of a schematic, version and architecture: it
// holds nothing of any single machine.
type Image interface {
	// Key names the image's content: schematic, version, platform, architecture, format. It is fit for file and object names.
	Key() string
	// Open fetches the image and returns its decoded bytes. The reader fails when the source stalls; it has no limit on the
	// total time. A 404 is a Terminal error.
	Open(ctx context.Context) (io.ReadCloser, error)
	// URL is where the image comes from, for clouds that fetch it themselves. It holds no secret.
	URL() string
}
