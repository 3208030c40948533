package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Every name that a machine needs is its domain's name with something behind it. That name is the request's id and a hash of
// provider id and request id, so that two providers, or two Omnis, can share a hypervisor.
const (
	rootSuffix = ".qcow2"
	rawSuffix  = ".raw"
	seedSuffix = "-seed.iso"
	diskInfix  = "-disk-"
	hashLength = 12
	// maxRequestID leaves room for the suffixes in a file name of 255 bytes.
	maxRequestID = 200
)

// Names are the names of one machine's objects.
type Names struct {
	// Domain is the domain's name, with which all others begin; Root and Seed are the volumes of the system disk and of the seed.
	Domain, Root, Seed string

	suffix string
}

// NamesOf returns the names of the objects of the request's machine.
func NamesOf(ref driver.Ref) Names {
	domain := ref.RequestID + "-" + hash("machine", ref.ProviderID, ref.RequestID)

	return Names{Domain: domain, Root: domain + rootSuffix, Seed: domain + seedSuffix, suffix: rootSuffix}
}

// Raw are the names for volumes in pools that have no format of their own, but blocks alone. The seed's is the same in all.
func (n Names) Raw() Names {
	n.Root, n.suffix = n.Domain+rawSuffix, rawSuffix

	return n
}

// Disk is the name of additional disk number i, from 0.
func (n Names) Disk(i int) string {
	return n.Domain + diskInfix + strconv.Itoa(i+1) + n.suffix
}

var volumeName = regexp.MustCompile(`^(.+)-[0-9a-f]{12}(?:-seed\.iso|(?:-disk-[1-9][0-9]*)?\.(?:qcow2|raw))$`)

// RefOfVolume returns the request of the provider whose machine would have a volume of that name.
func RefOfVolume(providerID, volume string) (driver.Ref, bool) {
	match := volumeName.FindStringSubmatch(volume)
	if match == nil {
		return driver.Ref{}, false
	}

	ref := driver.Ref{ProviderID: providerID, RequestID: match[1]}

	return ref, strings.HasPrefix(volume, NamesOf(ref).Domain)
}

// ImagePrefix begins the names of all image volumes of a provider.
func ImagePrefix(providerID string) string {
	return "omni-image-" + hash("images", providerID) + "-"
}

// ImageName is the name of an image's volumes without their suffixes.
func ImageName(providerID, key string) string {
	return ImagePrefix(providerID) + hash("image", key)
}

// ImageOfVolume returns the name of the provider's image that a volume of that name is a part of.
func ImageOfVolume(providerID, volume string) (string, bool) {
	prefix := ImagePrefix(providerID)

	rest, ok := strings.CutPrefix(volume, prefix)
	if !ok || len(rest) <= hashLength {
		return "", false
	}

	return prefix + rest[:hashLength], true
}

// imageData matches what follows ImagePrefix in the name of a volume that holds an image's bytes.
var imageData = regexp.MustCompile(`^[0-9a-f]{12}-[0-9a-f]{8}\.raw$`)

// IsImageData says whether a volume of that name holds the bytes of one of the provider's images.
func IsImageData(providerID, volume string) bool {
	rest, ok := strings.CutPrefix(volume, ImagePrefix(providerID))

	return ok && imageData.MatchString(rest)
}

func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))

	return hex.EncodeToString(sum[:])[:hashLength]
}

// CheckRequestID refuses ids that cannot be part of the names of domains and files.
func CheckRequestID(id string) error {
	if len(id) > maxRequestID {
		return fmt.Errorf("request id %q has %d characters: want at most %d", id, len(id), maxRequestID)
	}

	if strings.ContainsAny(id, "/\\ \t\r\n") || strings.HasPrefix(id, ".") || strings.HasPrefix(id, "-") {
		return fmt.Errorf("request id %q: want letters, digits, dashes and dots, with a letter or digit first", id)
	}

	return nil
}

// VolumesOf picks the names that the request's machine would have.
func VolumesOf(ref driver.Ref, volumes []string) []string {
	var own []string

	for _, name := range volumes {
		if of, ok := RefOfVolume(ref.ProviderID, name); ok && of == ref {
			own = append(own, name)
		}
	}

	return own
}

// InOrderOfRemoval sorts a machine's volumes: the secret seed first, the system disk after the others, and last of all the one
// that is the evidence of whose they are; empty for none.
func InOrderOfRemoval(n Names, volumes []string, evidence string) []string {
	rank := func(name string) int {
		switch name {
		case evidence:
			return 3
		case n.Seed:
			return 0
		case n.Root, n.Raw().Root:
			return 2
		default:
			return 1
		}
	}

	return slices.SortedStableFunc(slices.Values(volumes), func(a, b string) int { return rank(a) - rank(b) })
}
