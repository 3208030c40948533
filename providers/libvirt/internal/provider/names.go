package provider

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Every name that a machine needs is its domain's name with something behind it. That name is the request's id and a hash of
// provider id and request id, so that two providers, or two Omnis, can share a hypervisor.
const (
	rootSuffix = ".qcow2"
	seedSuffix = "-seed.iso"
	diskInfix  = "-disk-"
	hashLength = 12
	// maxRequestID leaves room for the suffixes in a file name of 255 bytes.
	maxRequestID = 200
)

// names are the names of one machine's objects.
type names struct {
	Domain, Root, Seed string
}

func namesOf(ref driver.Ref) names {
	domain := ref.RequestID + "-" + hash("machine", ref.ProviderID, ref.RequestID)

	return names{Domain: domain, Root: domain + rootSuffix, Seed: domain + seedSuffix}
}

// Disk is the name of additional disk number i, from 0.
func (n names) Disk(i int) string {
	return n.Domain + diskInfix + strconv.Itoa(i+1) + rootSuffix
}

var volumeName = regexp.MustCompile(`^(.+)-[0-9a-f]{12}(?:\.qcow2|-seed\.iso|-disk-[1-9][0-9]*\.qcow2)$`)

// refOfVolume returns the request of the provider whose machine would have a volume of that name.
func refOfVolume(providerID, volume string) (driver.Ref, bool) {
	match := volumeName.FindStringSubmatch(volume)
	if match == nil {
		return driver.Ref{}, false
	}

	ref := driver.Ref{ProviderID: providerID, RequestID: match[1]}

	return ref, strings.HasPrefix(volume, namesOf(ref).Domain)
}

// imagePrefix begins the names of all image volumes of a provider.
func imagePrefix(providerID string) string {
	return "omni-image-" + hash("images", providerID) + "-"
}

// imageName is the name of an image's volumes without their suffixes.
func imageName(providerID, key string) string {
	return imagePrefix(providerID) + hash("image", key)
}

// imageData matches what follows imagePrefix in the name of a volume that holds an image's bytes.
var imageData = regexp.MustCompile(`^[0-9a-f]{12}-[0-9a-f]{8}\.raw$`)

// isImageData says whether a volume of that name holds the bytes of one of the provider's images.
func isImageData(providerID, volume string) bool {
	rest, ok := strings.CutPrefix(volume, imagePrefix(providerID))

	return ok && imageData.MatchString(rest)
}

func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))

	return hex.EncodeToString(sum[:])[:hashLength]
}

// checkRequestID refuses ids that cannot be part of the names of domains and files.
func checkRequestID(id string) error {
	if len(id) > maxRequestID {
		return fmt.Errorf("request id %q has %d characters: want at most %d", id, len(id), maxRequestID)
	}

	if strings.ContainsAny(id, "/\\ \t\r\n") || strings.HasPrefix(id, ".") || strings.HasPrefix(id, "-") {
		return fmt.Errorf("request id %q: want letters, digits, dashes and dots, with a letter or digit first", id)
	}

	return nil
}
