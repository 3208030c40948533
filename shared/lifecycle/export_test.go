package lifecycle

import (
	"time"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
)

// SetLeaseHolder makes somebody else the holder of a lease.
func SetLeaseHolder(res resource.Resource, holder string) error {
	r, _, err := decodeLease(res)
	if err != nil {
		return err
	}

	r.spec.Holder, r.spec.Instance = holder, holder

	return nil
}

// EncodeLease returns the stored form of a lease.
func EncodeLease(holder, instance string, epoch int64, duration time.Duration, at time.Time) ([]byte, error) {
	s := leaseSpec{
		Version: leaseVersion, Holder: holder, Instance: instance, Epoch: epoch, DurationSeconds: int64(duration / time.Second),
		Since: at.Unix(), Renewed: at.UnixNano(),
	}

	return s.MarshalProto()
}

// DecodeLease returns the holder of a stored lease, and how long it has to rest before somebody else may take it.
func DecodeLease(stored []byte, unset time.Duration) (holder string, rests time.Duration) {
	encoded, err := protobuf.FromResource(newLeaseRecord("test"))
	if err != nil {
		panic(err)
	}

	wire, err := encoded.Marshal()
	if err != nil {
		panic(err)
	}

	wire.Spec = &v1alpha1.Spec{ProtoSpec: stored}

	res, err := protobuf.Unmarshal(wire)
	if err != nil {
		panic(err)
	}

	r, _, err := decodeLease(res)
	if err != nil {
		panic(err)
	}

	return r.spec.Holder, r.spec.restFor(unset)
}
