package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Every name that a machine needs is its instance's name with something behind it. That name is as much of the request's id as fits and
// a hash of provider id and request id, so that two providers can share a project. Longer ids are cut; the hash tells them apart.
const (
	hashLength = 10
	// room is what the longest suffix needs.
	room = len("-disk-11")
	// lead begins the name of a request whose id begins with something else than a letter.
	lead = "m-"
)

// Names are the names of one machine's objects.
type Names struct {
	// Instance is the instance's name, with which all others begin, and Boot that of its boot disk.
	Instance, Boot string
}

// NamesOf returns the names of the objects of the request's machine. They are valid whatever the id.
func NamesOf(ref driver.Ref) Names {
	id := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		default:
			return '-'
		}
	}, ref.RequestID)

	if id == "" || id[0] < 'a' || id[0] > 'z' {
		id = lead + id
	}

	id = id[:min(len(id), maxName-room-1-hashLength)]
	instance := strings.TrimRight(id, "-") + "-" + hash(hashLength, "machine", ref.ProviderID, ref.RequestID)

	return Names{Instance: instance, Boot: instance + "-boot"}
}

// Disk is the name of disk number i beside the boot disk, from 0.
func (n Names) Disk(i int) string { return fmt.Sprintf("%s-disk-%02d", n.Instance, i+1) }

// FloatingIP is the name of the floating IP that is made for entry i of the class's external IPs, from 0.
func (n Names) FloatingIP(i int) string { return fmt.Sprintf("%s-ip-%02d", n.Instance, i+1) }

// Owns says whether the request's machine could have an object of that kind and name.
func (n Names) Owns(kind Kind, name string) bool {
	switch kind {
	case KindInstance:
		return name == n.Instance
	case KindDisk:
		return name == n.Boot || numbered(name, n.Instance+"-disk-")
	case KindFloatingIP:
		return numbered(name, n.Instance+"-ip-")
	default:
		return false
	}
}

func numbered(name, prefix string) bool {
	number, ok := strings.CutPrefix(name, prefix)

	return ok && len(number) == 2 && strings.Trim(number, "0123456789") == ""
}

// interfaceName is the name of network interface number i, from 0. Such names are the instance's own.
func interfaceName(i int) string { return fmt.Sprintf("net%d", i) }

// ImageName is the name of the provider's image of that key. The key does not fit into a name; the image's description has it.
func ImageName(providerID, key, talosVersion string) string {
	version := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}

		return '-'
	}, strings.ToLower(talosVersion))

	return "talos-" + version[:min(len(version), 24)] + "-amd64-" + hash(24, "image", providerID, key)
}

// ScratchName is the name of the disk and of the snapshot of one attempt to import an image.
func ScratchName(providerID, key string, attempt [8]byte) string {
	return fmt.Sprintf("omni-import-%s-%x", hash(12, "scratch", providerID, key), attempt)
}

func hash(length int, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))

	return hex.EncodeToString(sum[:])[:length]
}
