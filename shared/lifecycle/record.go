package lifecycle

import (
	"fmt"
	"maps"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/siderolabs/omni/client/pkg/infra"
	"github.com/siderolabs/protoenc"
)

// recordVersion is the version of the stored form.
const recordVersion = 1

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

// decodeRecord reads what a state delivers for the record's type: the record itself, or its stored form. A stored form that
// is not ours, as of a provider that used the id before, gives a record with nothing in it: teardown needs no more.
func decodeRecord(res resource.Resource) (*record, bool, error) {
	switch res := res.(type) {
	case *record:
		return res, true, nil
	case *protobuf.Resource:
		r := &record{}
		if err := res.Unmarshal(r); err != nil {
			r = &record{md: res.Metadata().Copy()}
		}

		return r, true, nil
	default:
		return nil, false, fmt.Errorf("decode record %q: got a %T", res.Metadata().ID(), res)
	}
}
