package omni

import (
	"fmt"
	"reflect"

	"github.com/blang/semver/v4"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
)

// checkMachineRequest returns what is wrong with a MachineRequest that a user writes; stored is nil for a new one. What a
// request asks for never changes.
func checkMachineRequest(stored, written resource.Resource) error {
	request, ok := written.(*infra.MachineRequest)
	if !ok {
		return nil
	}

	if stored == nil {
		version := request.TypedSpec().Value.GetTalosVersion()
		if _, err := semver.ParseTolerant(version); err != nil {
			return fmt.Errorf("invalid talos version format: %q", version)
		}

		return nil
	}

	if !specsEqual(stored.Spec(), written.Spec()) {
		return fmt.Errorf("machine request spec is immutable")
	}

	return nil
}

func specsEqual(a, b any) bool {
	if equality, ok := a.(interface{ Equal(any) bool }); ok {
		return equality.Equal(b)
	}

	return reflect.DeepEqual(a, b)
}
