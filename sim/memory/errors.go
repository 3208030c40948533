package memory

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// ErrConnection is the answer to a call whose reply was lost: it may or may not have had its effect.
var ErrConnection = errors.New("connection reset by the cloud")

// Error is an answer of the cloud that says no.
type Error struct {
	// Status is the HTTP status that a cloud would answer with.
	Status int
	// RetryAfter is set with status 429.
	RetryAfter time.Duration
	Message    string
}

// Error returns status and message.
func (e *Error) Error() string { return fmt.Sprintf("cloud answers %d: %s", e.Status, e.Message) }

// StatusOf returns the status of the first Error in err's chain, zero if there is none.
func StatusOf(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status
	}

	return 0
}

// Throttled is the answer to a client that calls too often.
func Throttled(after time.Duration) *Error {
	return &Error{Status: http.StatusTooManyRequests, RetryAfter: after, Message: "too many requests"}
}

// Full is the answer when there is no room for another machine.
func Full() *Error {
	return &Error{Status: http.StatusInsufficientStorage, Message: "out of capacity"}
}

// Unavailable is a fault of the cloud itself.
func Unavailable() *Error {
	return &Error{Status: http.StatusServiceUnavailable, Message: "try again"}
}

func notFound(kind, id string) *Error {
	return &Error{Status: http.StatusNotFound, Message: fmt.Sprintf("no %s %q", kind, id)}
}

func conflict(format string, args ...any) *Error {
	return &Error{Status: http.StatusConflict, Message: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

// worded puts a fault of the books into the words of this cloud; other errors stay as they are.
func worded(err error, request any) error {
	fault, ok := errors.AsType[*ledger.FaultError](err)
	if !ok {
		return err
	}

	switch fault.Kind {
	case ledger.NotFound:
		return &Error{Status: http.StatusNotFound, Message: "no such project"}
	case ledger.Conflict:
		return conflict("another operation is in progress")
	case ledger.Throttled:
		return Throttled(fault.RetryAfter)
	case ledger.Full:
		return Full()
	case ledger.Unauthorized:
		return &Error{Status: http.StatusUnauthorized, Message: "invalid credentials"}
	case ledger.Echo:
		return &Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf("cannot process %+v", request)}
	default:
		return Unavailable()
	}
}
