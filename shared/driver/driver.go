// Package driver is the contract between the lifecycle library and one cloud: what an author of a provider writes. The
// library (package lifecycle) owns everything that is the same in every cloud; a driver owns only what differs.
package driver

import (
	"context"
	"time"
)

// Driver makes machines in one cloud.
//
// Every method may be called again after any failure, from several goroutines at once, and must end when its ctx does.
// A method of a cloud that may ask to be left alone (Throttled) calls AwaitTurn before each of its calls to the cloud.
//
// An error says what kind it is with one of this package's constructors (Terminal, NotFound, Capacity, Throttled, Pending);
// any other error is taken as transient and tried again.
type Driver interface {
	// Plan checks the request's class data and derives every name, address and size of its machine. It may read from the
	// cloud, but changes nothing there. Class data that can never work is a Terminal error that names the field.
	// The same request gives the same names, in every process.
	Plan(ctx context.Context, req Request) (Plan, error)

	// Find returns the machine of a request by its ownership mark. A NotFound error says that the cloud has none;
	// an object with the right name but without the mark is not the request's machine.
	Find(ctx context.Context, ref Ref) (Machine, error)

	// List returns every machine and every left-over object that carries the mark of the provider, or an error; it gives a
	// part only with an Unseen error. An object whose mark is the provider's but does not tell the request has an empty RequestID: it is reported, never touched.
	List(ctx context.Context, providerID string) ([]Machine, error)

	// Remove takes away all that belongs to ref, a half-made machine included, and reports done only once the cloud confirms
	// that nothing is left. It needs nothing but ref: no class data, image or record. What is gone already is no error.
	// When the cloud needs time, it returns false or a Pending error that says for what, and is called again.
	Remove(ctx context.Context, ref Ref) (done bool, err error)

	// Check says whether the cloud can be reached and the credentials hold. Its error is shown to operators.
	Check(ctx context.Context) error
}

// PowerSwitch is implemented by drivers whose machines can be switched. The library calls it for machines that have joined
// Omni and are not being removed, and for those alone.
type PowerSwitch interface {
	// SetPower switches the machine on or off. A machine that is already so is no error.
	SetPower(ctx context.Context, ref Ref, want Power) error
	// Reboot restarts a running machine once. For a machine that is off it returns an error.
	Reboot(ctx context.Context, ref Ref) error
}

// Watcher is implemented by drivers whose cloud reports changes. The library polls List either way, more seldom when events
// flow.
type Watcher interface {
	// Watch calls changed for each machine that the cloud says has changed or gone, until ctx ends or the stream breaks.
	// A Ref without a RequestID says that any machine may have. changed returns at once and may be called from any goroutine. The library calls Watch again after an error, and takes
	// a full look whenever it does.
	Watch(ctx context.Context, providerID string, changed func(Ref)) error
}

// Ref names a machine by the request that it is for; together with the provider's id it is the ownership mark.
type Ref struct {
	ProviderID string
	RequestID  string
}

// String returns "provider/request".
func (r Ref) String() string { return r.ProviderID + "/" + r.RequestID }

// Request is a MachineRequest as a driver sees it.
type Request struct {
	Ref
	// Identity holds what the library derived from Ref.
	Identity Identity
	// Place is where the machine is or will be, as it is recorded in Omni; empty when the driver is no Placer, and for Placer.Place.
	Place string
	// Set is the id of the MachineRequestSet that made the request, empty for a request without a set.
	Set string
	// TalosVersion has the form "v1.13.5".
	TalosVersion string
	// ClassData is the provider data of the machine class, a YAML or JSON document.
	ClassData string
	// Extensions are the Talos extensions that the image will have besides those of the Plan's ImageSpec: some need a device.
	Extensions []string
}

// Plan is what a driver wants to make for one request.
type Plan struct {
	// UUID is the SMBIOS UUID that the machine will have: Request.Identity.UUID where the cloud lets the driver set it. It is
	// empty where the cloud chooses; then the library learns it when the machine joins.
	UUID string
	// Image is the Talos boot image that the phases need, or nil when the cloud needs none.
	Image *ImageSpec
	// Names lists the cloud objects that the phases will make, by their part ("domain", "root-volume"). The library records
	// them in Omni before the first phase runs.
	Names map[string]string
	// Patches are Talos config patches for this machine, by a short name ("provider-id"); the library puts the request's id
	// into the name that Omni sees.
	Patches map[string]string
	// Phases are the steps from nothing to a running machine, in order; each ensures one thing.
	Phases []Phase
}

// Phase ensures one part of a machine. Ensure is called again after any failure, crash or Pending error, also when it had
// succeeded, and then finds what is there instead of making it twice.
type Phase struct {
	// Name is a verb and a noun in kebab case ("create-volume"); users see it in the request's status.
	Name   string
	Ensure func(ctx context.Context, t Task) error
}

// Task is what a phase works with. It holds secrets and must not be logged.
type Task struct {
	Request Request
	// Join is how the machine finds Omni. It is secret.
	Join Join
	// Image is the boot image that Plan asked for; nil when it asked for none.
	Image Image
	// Progress shows text in the request's status ("uploaded 40 %"). It is cheap to call often.
	Progress func(text string)
}

// Join tells a machine how to join Omni. Both forms hold the join token.
type Join struct {
	// UserData is the Talos configuration to hand over as NoCloud or cloud user data.
	UserData string
	// KernelArgs are the same settings as kernel arguments, for clouds that boot with a command line of their own.
	KernelArgs []string
}

// String hides the token from careless formatting.
func (Join) String() string { return "[join configuration]" }

// GoString hides the token from careless formatting.
func (j Join) GoString() string { return j.String() }

// Machine is what a cloud holds for one request.
type Machine struct {
	Ref
	// ID is the cloud's own id, empty when only left-over objects exist.
	ID string
	// UUID is the SMBIOS UUID as the cloud reports it, in lower-case canonical form; empty when the cloud does not tell.
	UUID string
	// Power is the observed power state.
	Power Power
	// Place is the place that has the machine or what is left of it; empty when the driver is no Placer.
	Place string
	// Boot changes whenever the machine was started or rebooted, as far as the cloud can tell; empty when it cannot.
	Boot string
	// State is the cloud's own word for the machine's state.
	State string
	// Incomplete marks left-over or half-made objects that are not a whole machine.
	Incomplete bool
	// Labels say where the machine is ("host", "pool", "zone"); Omni shows them on its machine.
	Labels map[string]string
	// CreatedAt is zero when the cloud does not tell.
	CreatedAt time.Time
}

// Power is the state of a machine's switch.
type Power int

// The power states.
const (
	PowerUnknown Power = iota
	PowerOff
	PowerOn
)

// String returns "unknown", "off" or "on".
func (p Power) String() string {
	switch p {
	case PowerOff:
		return "off"
	case PowerOn:
		return "on"
	default:
		return "unknown"
	}
}
