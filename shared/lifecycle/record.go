package lifecycle

import (
	"context"
	"fmt"
	"maps"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/siderolabs/omni/client/pkg/infra"
	"github.com/siderolabs/protoenc"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// recordVersion is the version of the stored form. A release whose record an older one must not touch raises it: a release
// leaves records of a later version alone, and drops the fields that it does not know from those of its own.
const recordVersion = 1

// stepAnnotation marks the state objects of the official library; it names the step that a machine is at.
const stepAnnotation = "infra.omni.sidero.dev/step"

// recordSpec is what the library keeps of a machine, in the provider's own namespace in Omni. It is written before the first
// call that changes the cloud. Field numbers are for ever.
type recordSpec struct {
	Version int32 `protobuf:"1" yaml:"version"`
	// UUID and Names are what Plan derived.
	UUID  string            `protobuf:"2" yaml:"uuid,omitempty"`
	Names map[string]string `protobuf:"3" yaml:"names,omitempty"`
	// Joined is the UUID under which the machine of a request without a set has joined.
	Joined string `protobuf:"4" yaml:"joined,omitempty"`
	// Lost says why a request without a set has no machine any more; Replaced is the last annotation that asked for a new one.
	Lost     string `protobuf:"5" yaml:"lost,omitempty"`
	Replaced string `protobuf:"6" yaml:"replaced,omitempty"`
	// RebootID is the last reboot asked for; RebootFrom is the machine's boot before it, and RebootDone says that it is over.
	RebootID   string `protobuf:"7" yaml:"reboot_id,omitempty"`
	RebootFrom string `protobuf:"8" yaml:"reboot_from,omitempty"`
	RebootDone bool   `protobuf:"9" yaml:"reboot_done,omitempty"`
	// PowerWish ("on" or "off") and RebootWish (a reboot id) are what an operator's command asks for, which may write nothing else.
	// Each is taken away once it is done, or something that comes before it decides.
	PowerWish  string `protobuf:"10" yaml:"power_wish,omitempty"`
	RebootWish string `protobuf:"11" yaml:"reboot_wish,omitempty"`
	// JoinedAt is when the registration with the UUID in Joined was made, by Omni's clock, in nanoseconds since 1970.
	JoinedAt int64 `protobuf:"12" yaml:"joined_at,omitempty"`
	// Place is where the machine is made; it is written before anything else, and only changes when the machine is seen
	// elsewhere, or its place is gone. A release that does
	// not know the field drops it, and a later one learns it from the cloud.
	Place string `protobuf:"13" yaml:"place,omitempty"`
}

// MarshalProto encodes the stored form.
func (s *recordSpec) MarshalProto() ([]byte, error) { return protoenc.Marshal(s) }

// UnmarshalProto decodes the stored form.
func (s *recordSpec) UnmarshalProto(data []byte) error { return protoenc.Unmarshal(data, s) }

// record is the COSI resource that holds a recordSpec. Its type depends on the provider's id, which is why it is registered
// nowhere and decoded by hand.
type record struct {
	md   resource.Metadata
	spec recordSpec
}

func recordNamespace(providerID string) resource.Namespace {
	return infra.ResourceNamespace(providerID)
}

func recordType(providerID string) resource.Type { return infra.ResourceType("Machines", providerID) }

// officialType is the type of the state objects that the official library's providers keep. What they say differs with the
// provider: a driver that is an Adopter reads them.
func officialType(providerID string) resource.Type { return infra.ResourceType("Machine", providerID) }

func newRecord(providerID, requestID string) *record {
	return &record{
		md:   resource.NewMetadata(recordNamespace(providerID), recordType(providerID), requestID, resource.VersionUndefined),
		spec: recordSpec{Version: recordVersion},
	}
}

// Metadata implements resource.Resource.
func (r *record) Metadata() *resource.Metadata { return &r.md }

// Spec implements resource.Resource.
func (r *record) Spec() any { return &r.spec }

// DeepCopy implements resource.Resource.
func (r *record) DeepCopy() resource.Resource {
	c := &record{md: r.md.Copy(), spec: r.spec}
	c.spec.Names = maps.Clone(r.spec.Names)

	return c
}

// UnmarshalProto implements protobuf.ResourceUnmarshaler.
func (r *record) UnmarshalProto(md *resource.Metadata, data []byte) error {
	r.md = md.Copy()

	return r.spec.UnmarshalProto(data)
}

// ours reports whether this library wrote the record; another's has nothing in it, not even a version.
func (r *record) ours() bool { return r.spec.Version != 0 }

// readable returns an error when a later release wrote the record.
func (r *record) readable() error {
	if r.spec.Version <= recordVersion {
		return nil
	}

	return driver.Terminalf("the record of this machine has version %d, and this release of the provider knows up to %d: run the release that wrote it, or a later one; "+
		"nothing is done for the machine but its removal", r.spec.Version, recordVersion)
}

// keep writes the record of a request.
func (p *Provider) keep(ctx context.Context, id string, change func(*recordSpec)) (*record, error) {
	return ensure(ctx, p, p.records, newRecord(p.cfg.ID, id), func(r *record) {
		change(&r.spec)

		r.spec.Version = recordVersion
		r.md.Annotations().Delete(stepAnnotation)
	})
}

// decodeRecord reads what a state delivers for the record's type: the record itself, or its stored form. A stored form that
// is not ours, as of a provider that used the id before, gives a record with nothing in it: teardown needs no more.
func decodeRecord(res resource.Resource) (*record, bool, error) {
	switch res := res.(type) {
	case *record:
		return res, true, nil
	case *protobuf.Resource:
		r := &record{}
		_, official := res.Metadata().Annotations().Get(stepAnnotation)

		if err := res.Unmarshal(r); err != nil || official || !r.ours() {
			r = &record{md: res.Metadata().Copy()}
		}

		return r, true, nil
	default:
		return nil, false, fmt.Errorf("decode record %q: got a %T", res.Metadata().ID(), res)
	}
}

// recordChanged hurries a request of whose machine an operator's command wants something. A write of our own that comes back
// late says nothing of that.
func (p *Provider) recordChanged(before, after *record) {
	if before != nil && after != nil && !newer(before, after) &&
		(after.spec.PowerWish != "" && after.spec.PowerWish != before.spec.PowerWish ||
			after.spec.RebootWish != "" && after.spec.RebootWish != before.spec.RebootWish) {
		p.queue.hurry(idOf(before, after))

		return
	}

	p.queue.add(idOf(before, after))
}
