package lifecycle

import (
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/siderolabs/omni/client/pkg/infra"
	"github.com/siderolabs/protoenc"
)

const (
	leaseVersion = 1
	// leaseID is the id of the one lease in the provider's namespace.
	leaseID = "provider"
	// longestLease bounds what is believed of another process's lease.
	longestLease = 10 * time.Minute
)

// leaseSpec says which process acts for the provider. Times are for people to read: nothing is decided by another's clock.
// Field numbers are for ever.
type leaseSpec struct {
	Version int32 `protobuf:"1" yaml:"version"`
	// Holder is the holder's name for itself; empty when the lease is free. Instance tells processes of one name apart.
	Holder   string `protobuf:"2" yaml:"holder,omitempty"`
	Instance string `protobuf:"3" yaml:"instance,omitempty"`
	// Epoch is the fencing number: it grows with each takeover.
	Epoch int64 `protobuf:"4" yaml:"epoch"`
	// DurationSeconds is how long after it has sent a renewal the holder acts.
	DurationSeconds int64 `protobuf:"5" yaml:"duration_seconds"`
	// Since and Renewed are Unix times by the holder's clock, in seconds and in nanoseconds.
	Since   int64 `protobuf:"6" yaml:"since"`
	Renewed int64 `protobuf:"7" yaml:"renewed"`
}

// leaseRecord is the COSI resource that holds a leaseSpec. Its type depends on the provider's id, as that of record does.
type leaseRecord struct {
	md   resource.Metadata
	spec leaseSpec
}

func newLeaseRecord(providerID string) *leaseRecord {
	return &leaseRecord{md: resource.NewMetadata(infra.ResourceNamespace(providerID), infra.ResourceType("Leases", providerID), leaseID, resource.VersionUndefined)}
}

// Metadata implements resource.Resource.
func (r *leaseRecord) Metadata() *resource.Metadata { return &r.md }

// Spec implements resource.Resource.
func (r *leaseRecord) Spec() any { return &r.spec }

// DeepCopy implements resource.Resource.
func (r *leaseRecord) DeepCopy() resource.Resource {
	return &leaseRecord{md: r.md.Copy(), spec: r.spec}
}

// MarshalProto encodes the stored form.
func (s *leaseSpec) MarshalProto() ([]byte, error) { return protoenc.Marshal(s) }

// UnmarshalProto implements protobuf.ResourceUnmarshaler.
func (r *leaseRecord) UnmarshalProto(md *resource.Metadata, data []byte) error {
	r.md, r.spec = md.Copy(), leaseSpec{}

	return protoenc.Unmarshal(data, &r.spec)
}

// decodeLease reads what a state delivers for the lease's type. A stored form that is not ours is held by somebody unknown.
func decodeLease(res resource.Resource) (*leaseRecord, bool, error) {
	switch res := res.(type) {
	case *leaseRecord:
		return res, true, nil
	case *protobuf.Resource:
		r := &leaseRecord{}
		if err := res.Unmarshal(r); err != nil || r.spec.Version == 0 {
			r = &leaseRecord{md: res.Metadata().Copy(), spec: leaseSpec{Holder: "somebody whose lease cannot be read"}}
		}

		return r, true, nil
	default:
		return nil, false, fmt.Errorf("decode lease: got a %T", res)
	}
}

// restFor is how long the lease has to lie untouched before another process may take it: its whole duration, and a fifth of
// that for calls to the cloud that are still under way when the holder stops. unset is for a record that tells no duration.
func (s *leaseSpec) restFor(unset time.Duration) time.Duration {
	d := unset
	if s.DurationSeconds > 0 {
		d = time.Duration(min(s.DurationSeconds, int64(longestLease/time.Second))) * time.Second
	}

	return d + d/5
}
