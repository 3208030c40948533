package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Every name that a machine needs is its VirtualMachine's with something behind it. That name is the request's id and a hash of
// provider id and request id, so that two providers, or two Omnis, can share a namespace. An id that is no part of a name, or too
// long for one, is bent into shape, which the hash makes up for.
//
// A name is a DNS label: KubeVirt makes pods, services and label values of it.
const (
	maxName    = 63
	hashLength = 12
	diskInfix  = "-disk-"
	secretTail = "-user-data"
	podPrefix  = "virt-launcher-"
	// maxTail is the longest of the endings, that of disk 16 and that of the Secret.
	maxTail = len(secretTail)
	maxStem = maxName - hashLength - 1 - maxTail
)

// Names are the names of one machine's objects.
type Names struct {
	// VM is the VirtualMachine's and its instance's name, Root that of the system disk's DataVolume and claim, and Secret that of
	// the Secret with the user data and network data.
	VM, Root, Secret string
}

// NamesOf returns the names of the objects of the request's machine.
func NamesOf(ref driver.Ref) Names {
	stem := stemOf(ref.RequestID, maxStem)
	if stem != "" {
		stem += "-"
	}

	vm := stem + hash("machine", ref.ProviderID, ref.RequestID)

	return Names{VM: vm, Root: vm + "-root", Secret: vm + secretTail}
}

// Disk is the name of the DataVolume and claim of additional disk number i, from 0.
func (n Names) Disk(i int) string { return n.VM + diskInfix + strconv.Itoa(i+1) }

var diskTail = regexp.MustCompile(`^` + diskInfix + `[1-9][0-9]?$`)

// has says whether an object of the machine can have that name: any of the above, and the machine's pod.
func (n Names) has(name string) bool {
	return name == n.VM || name == n.Secret || n.HasDisk(name) || strings.HasPrefix(name, podPrefix+n.VM+"-")
}

// HasDisk says whether a DataVolume or claim of the machine can have that name.
func (n Names) HasDisk(name string) bool {
	rest, found := strings.CutPrefix(name, n.VM)

	return name == n.Root || found && diskTail.MatchString(rest)
}

// stateStem is the key of a label that KubeVirt puts on a claim of its own, and what the claim's name begins with.
const stateStem = "persistent-state-for"

// HasState says whether a claim is the one in which KubeVirt keeps what a TPM or the firmware remembers, for the machine of that name.
func (n Names) HasState(claim metav1.Object) bool {
	whole := stateStem + "-" + n.VM

	return claim.GetLabels()[stateStem] == n.VM && (claim.GetName() == whole || strings.HasPrefix(claim.GetName(), whole+"-"))
}

// All are the names by the part that they name, for a machine with that many additional disks.
func (n Names) All(disks int) map[string]string {
	all := map[string]string{"virtual-machine": n.VM, "root-volume": n.Root, "secret": n.Secret}

	for i := range disks {
		all["disk-"+strconv.Itoa(i+1)] = n.Disk(i)
	}

	return all
}

// HostnameOf is the name that the machine has in its network and in Kubernetes: the request's id, or the VirtualMachine's name where
// that id is no hostname.
func HostnameOf(ref driver.Ref) string {
	if stemOf(ref.RequestID, maxName) == ref.RequestID && ref.RequestID != "" {
		return ref.RequestID
	}

	return NamesOf(ref).VM
}

// Name is the name of the image's DataVolume, its claim, and its snapshot. All that the image's contents depend on is in it, and the
// provider, as one that shares the namespace may remove its images.
func (i ImageVolume) Name() string {
	contents := []string{"image", i.ProviderID, i.Key, i.StorageClassName, i.VolumeMode}
	if i.SnapshotClass != "" {
		contents = append(contents, i.SnapshotClass)
	}

	return "talos-" + stemOf(i.TalosVersion, 20) + "-" + string(i.Arch) + "-" + hash(contents...)
}

// stemOf is the part of id that can begin a DNS label of that length.
func stemOf(id string, length int) string {
	var out strings.Builder

	for _, r := range strings.ToLower(id) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			out.WriteRune(r)
		} else {
			out.WriteByte('-')
		}
	}

	stem := strings.TrimLeft(out.String(), "-")

	return strings.TrimRight(stem[:min(len(stem), length)], "-")
}

func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))

	return hex.EncodeToString(sum[:])[:hashLength]
}
