package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Placer is implemented by drivers whose machines are made at one of several places: hosts, clusters or zones that fail, fill
// up and are reached apart from each other. Its other methods have these duties then:
//
//   - Find asks all places at once and returns as soon as one has the machine. List, and Remove, ask all of them.
//   - A place that hangs is given up before ctx ends, so that what the others say is not lost: see Unseen.
//   - Machine.Place is set in all that Find and List return.
//
// The library works on the requests of each place with workers of their own: calls to a dead place delay no other.
type Placer interface {
	// Places returns the names of all places, whether they are in reach or not, and asks none of them. A name is a short text that
	// stays the same for as long as the place does: it is recorded in Omni, shown to operators, and holds no secret.
	Places() []string

	// Place chooses the place of a request's machine and changes nothing. It is called before Plan, for a request whose place is
	// not recorded and of which no place in reach has a machine. What it returns is recorded in Omni before Plan is called, and
	// Plan, all phases and every later process find it in Request.Place. It does not change as long as the machine is being made; a
	// machine that was moved later is recorded where List shows it. After a crash before it was recorded, Place is called again,
	// and may choose otherwise.
	//
	// A place that cannot be reached is not chosen, and delays no answer. Class data that no place can ever serve is a Terminal
	// error that names the field, as it would be in Plan; room that is missing for now is a Capacity error.
	Place(ctx context.Context, req Request) (string, error)

	// RemoveFrom is Remove where the place is recorded: other places have nothing of the machine, are not asked, and may be out of
	// reach. It is called for names that Places returns.
	//
	// Remove is called where no place is recorded. It is done only once every place has confirmed that nothing is left; while
	// one cannot be seen, it removes what is elsewhere and returns Unseen.
	RemoveFrom(ctx context.Context, ref Ref, place string) (done bool, err error)
}

// Unseen is the error of a Placer's method that could not see some of its places, and has done its work at all others.
//
//   - List returns with it all machines of the other places: what is recorded to be at one of those is judged as after a complete
//     list, the rest as if nobody had looked.
//   - Find returns it when the places that it saw do not have the machine. It is not NotFound.
//   - Remove returns it, and false.
//   - Check returns it when the driver works at its other places: machines are made there, and health names those that are out of
//     reach. When no place can be reached, Check returns another error.
//
// Its kind is transient, whatever the kinds of its parts.
type Unseen struct {
	// Places holds for each place that could not be seen the reason.
	Places map[string]error
}

// Error names every place that was not seen, with its reason.
func (u *Unseen) Error() string {
	parts := make([]string, 0, len(u.Places))

	for _, place := range slices.Sorted(maps.Keys(u.Places)) {
		parts = append(parts, fmt.Sprintf("place %q cannot be reached: %v", place, u.Places[place]))
	}

	return strings.Join(parts, "; ")
}

// UnseenOf returns the Unseen in err's chain, or nil.
func UnseenOf(err error) *Unseen {
	u, _ := errors.AsType[*Unseen](err)

	return u
}
