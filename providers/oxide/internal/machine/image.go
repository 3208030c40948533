package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// standardExtensions are those of Oxide's own provider.
var standardExtensions = []string{"siderolabs/amd-ucode", "siderolabs/iscsi-tools", "siderolabs/util-linux-tools"}

// console makes the serial console, the only one that a rack shows, that of the machine.
var console = []string{"-console", "console=ttyS0"}

// Image is the boot image of the class. What the request asks for is added to it.
func (c ClassData) Image() *driver.ImageSpec {
	var extensions []string
	if c.StandardExtensions {
		extensions = slices.Clone(standardExtensions)
	}

	return &driver.ImageSpec{
		Platform: "nocloud", Arch: driver.AMD64, Format: "raw",
		Extensions: append(extensions, c.Extensions...),
		KernelArgs: slices.Concat(console, c.KernelArgs),
	}
}

// BlockSize is that of all disks. Talos' images are made for it.
const BlockSize = oxide.BlockSize(512)

// ImageMark is the mark of the provider's image of that key.
func ImageMark(providerID, key, version string) Mark {
	return Mark{Kind: KindImage, Provider: providerID, Image: key, Version: version}
}

// OwnsImage says whether an image of that name and description is the provider's, and of which key.
func OwnsImage(providerID string, image oxide.Image) (key string, ours bool) {
	m, err := ParseMark(image.Description)
	if err != nil || m.Kind != KindImage || m.Provider != providerID || string(image.Name) != ImageName(providerID, m.Image, image.Version) {
		return "", false
	}

	return m.Image, true
}

// Scratch is one attempt to import an image.
type Scratch struct {
	Mark Mark
	Name string
}

// NewScratch returns the names and the mark of an attempt on behalf of a request.
func NewScratch(ref driver.Ref, key, version string, attempt [8]byte) Scratch {
	return Scratch{
		Mark: Mark{
			Kind: KindScratch, Provider: ref.ProviderID, Request: ref.RequestID, Image: key, Attempt: fmt.Sprintf("%x", attempt), Version: version,
		},
		Name: ScratchName(ref.ProviderID, key, attempt),
	}
}

// ScratchMark reads the mark of a scratch disk of the provider; false for any other object.
func ScratchMark(providerID, name, description string) (Mark, bool) {
	m, err := ParseMark(description)
	if err != nil || m.Kind != KindScratch || m.Provider != providerID {
		return Mark{}, false
	}

	return m, strings.HasPrefix(name, "omni-import-") && strings.HasSuffix(name, "-"+m.Attempt)
}

// Disk is what makes the scratch disk of size bytes.
func (s Scratch) Disk(size uint64) (oxide.DiskCreate, error) {
	description, err := s.Mark.Description()

	return oxide.DiskCreate{
		Name: oxide.Name(s.Name), Description: description, Size: oxide.ByteCount(size),
		DiskBackend: distributed(oxide.DiskSource{Value: &oxide.DiskSourceImportingBlocks{BlockSize: BlockSize}}),
	}, err
}

// ImageOf is what makes the provider's image of a snapshot.
func ImageOf(providerID, key, talosVersion, version, snapshotID string) (oxide.ImageCreate, error) {
	description, err := ImageMark(providerID, key, version).Description()

	return oxide.ImageCreate{
		Name: oxide.Name(ImageName(providerID, key, talosVersion)), Description: description, Os: "talos", Version: talosVersion,
		Source: oxide.ImageSource{Value: &oxide.ImageSourceSnapshot{Id: snapshotID}},
	}, err
}
