package driver

import "context"

// Adopter is implemented by drivers that take over machines which a provider on Omni's official library made under the same
// provider id.
//
// Such a provider keeps its own state of each request in Omni, and puts no mark on what it makes. What the state names is
// therefore all that can be taken for the request's: nothing is ever adopted or removed because of its name alone.
type Adopter interface {
	// Adopt finds the machine that the state tells of, checks that it is that one in every point that the state names, and puts
	// the ownership mark on it. From then on Find, List, Remove and PowerSwitch treat it as one of the driver's own. It goes on
	// as it is: nothing but the mark is changed. One that has the mark already is no error.
	//
	// A NotFound error says that the cloud has no such machine and has never had one, as far as the state tells: the official
	// provider had only begun with it. Any other error means that nothing was changed. It is Terminal when what there is, is not
	// what the state says, or somebody else's; its text names what was compared and what to do.
	Adopt(ctx context.Context, f Foreign) (Adoption, error)

	// Discard takes away what the state names, adopted or not, after the same checks, and reports done only once the cloud
	// confirms that nothing of it is left. It needs neither the request nor its class. It is called when the request's machine is removed, after Remove, and for a machine
	// that was only begun, before a new one is made. What is gone already is no error. What somebody else uses is left as it is,
	// with an error that names him.
	Discard(ctx context.Context, f Foreign) (done bool, err error)
}

// Foreign is a request's machine as a provider on the official library recorded it.
type Foreign struct {
	Ref
	// Set is the id of the MachineRequestSet that made the request, empty for a request without a set and for one that is gone.
	Set string
	// Place is where the machine is recorded to be; empty when it is not recorded, as always in Adopt. Discard asks no other.
	Place string
	// State is the provider's own state object: a protobuf message, of a type that each such provider defines for itself.
	State []byte
	// Unfinished says that the request was not provisioned yet. Adopt starts its machine when it has never been started.
	Unfinished bool
}

// Adoption is what was taken over.
type Adoption struct {
	Machine Machine
	// Names lists the cloud objects that belong to the machine, by their part, as Plan.Names does. They are recorded and logged.
	Names map[string]string
}
