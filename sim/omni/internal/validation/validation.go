// Package validation has the rules that the simulated Omni puts to what users and providers write, with the texts of the
// real one. The errors are bare: the caller wraps them as its transport asks ("failed to validate: ..."). Package omni imports
// it and asks it for every write that does not come from Omni's own controllers. The rules of the infra-provider namespaces
// themselves (labels, ids, spec only by Omni) are access rules and not here, except for those of MachineRequest.
package validation

import (
	"context"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
)

// Create returns what is wrong with the creation of res, nil if nothing is. It reads st and never writes.
func Create(ctx context.Context, st state.State, res resource.Resource) []error {
	return nil
}

// Update returns what is wrong with an update of the stored resource to updated, nil if nothing is.
func Update(ctx context.Context, st state.State, stored, updated resource.Resource) []error {
	return nil
}

// Destroy returns what is wrong with the destruction or teardown of the resource ptr, nil if nothing is.
func Destroy(ctx context.Context, st state.State, ptr resource.Pointer) []error {
	return nil
}
