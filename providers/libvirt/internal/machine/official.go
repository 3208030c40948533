package machine

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/siderolabs/protoenc"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Official is a machine as the official libvirt provider recorded it in Omni. It has no mark: the UUID, which that provider drew by
// lot for this request, and the names of its objects are all that tells whose it is.
type Official struct {
	// UUID is the domain's, in lower-case canonical form.
	UUID string
	// Domain is its name: the request's id.
	Domain string
	// Defined says that the provider had defined the domain when it wrote this; it may have done so after that, too.
	Defined bool
	// Volumes are the machine's volumes: the system disk, additional disks, and the seed. One that is not recorded may exist
	// nevertheless, of which nobody can tell whose it is.
	Volumes []VolumeRef
}

// VolumeRef names a volume on a host.
type VolumeRef struct {
	Pool string `xml:"pool,attr"`
	Name string `xml:"name,attr"`
}

// String returns "pool/name".
func (v VolumeRef) String() string { return v.Pool + "/" + v.Name }

// officialState is the form in which it is stored.
type officialState struct {
	UUID            string         `protobuf:"1"`
	VMVolName       string         `protobuf:"10"`
	AdditionalDisks []officialDisk `protobuf:"11"`
	CidataVolName   string         `protobuf:"13"`
	PoolName        string         `protobuf:"20"`
	VMName          string         `protobuf:"21"`
}

type officialDisk struct {
	VolName string `protobuf:"3"`
}

// ParseOfficial reads the state of a request that the official provider stored. A state in which names are not those that the provider
// gives is not its, and an error.
func ParseOfficial(f driver.Foreign) (o Official, err error) {
	// The decoder is not made for what anybody may have written.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("read the official provider's state: %v", r)
		}
	}()

	var s officialState
	if err := protoenc.Unmarshal(f.State, &s); err != nil {
		return Official{}, fmt.Errorf("read the official provider's state: %w", err)
	}

	o = Official{Domain: f.RequestID, Defined: s.VMName != ""}

	if s.UUID != "" {
		if o.UUID, err = driver.CanonicalUUID(s.UUID); err != nil {
			return Official{}, fmt.Errorf("read the official provider's state: uuid: %w", err)
		}
	}

	if s.VMName != "" && s.VMName != f.RequestID {
		return Official{}, fmt.Errorf("read the official provider's state: vm_name is %q: want the request's id, %q", s.VMName, f.RequestID)
	}

	volumes := []string{s.VMVolName}
	for _, disk := range s.AdditionalDisks {
		volumes = append(volumes, disk.VolName)
	}

	for _, name := range append(volumes, s.CidataVolName) {
		switch {
		case name == "":
			continue
		case s.PoolName == "":
			return Official{}, fmt.Errorf("read the official provider's state: it names volume %q, but no pool_name", name)
		case !isOfficialVolume(f.RequestID, name):
			return Official{}, fmt.Errorf("read the official provider's state: volume %q: want a name that begins with the request's id, %q", name, f.RequestID)
		}

		o.Volumes = append(o.Volumes, VolumeRef{Pool: s.PoolName, Name: name})
	}

	return o, nil
}

// isOfficialVolume says whether a volume of that name can be the request's: its id is all of the name, or ends before a dot or dash.
func isOfficialVolume(request, name string) bool {
	rest, ok := strings.CutPrefix(name, request)

	return ok && request != "" && (strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "-")) && !strings.ContainsAny(name, "/\\")
}

var officialVolume = regexp.MustCompile(`^(\.qcow2|-cidata\.iso|-[0-9]+-(sata|nvme)\.qcow2)$`)

// IsOfficialVolume says whether the official provider would give a volume of the request that name, which proves nothing.
func IsOfficialVolume(request, name string) bool {
	rest, ok := strings.CutPrefix(name, request)

	return ok && officialVolume.MatchString(rest)
}
