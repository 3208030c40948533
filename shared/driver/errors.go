package driver

import (
	"errors"
	"fmt"
	"time"
)

// Kind says what the library does about an error.
type Kind int

// The kinds of error.
const (
	// KindTransient is tried again soon, with growing pauses. It is the kind of every error that states none.
	KindTransient Kind = iota
	// KindTerminal can never work as the request is; it is shown and only looked at again after a long pause.
	KindTerminal
	// KindNotFound says that the object is not there.
	KindNotFound
	// KindCapacity means that the cloud is full for now: tried again slowly.
	KindCapacity
	// KindThrottled means that the cloud asks to be left alone for a while: nothing calls it before that.
	KindThrottled
	// KindPending is no failure: the cloud is at work, ask again.
	KindPending
)

// String returns the kind's name, as metrics show it.
func (k Kind) String() string {
	switch k {
	case KindTerminal:
		return "terminal"
	case KindNotFound:
		return "not_found"
	case KindCapacity:
		return "capacity"
	case KindThrottled:
		return "throttled"
	case KindPending:
		return "pending"
	default:
		return "transient"
	}
}

// Error is an error of a stated kind.
type Error struct {
	Kind Kind
	// After is the least pause before the next try; zero leaves it to the library.
	After time.Duration
	Err   error
}

// Error returns the text of the wrapped error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *Error) Unwrap() error { return e.Err }

// Terminal says that the request can never work as it is.
func Terminal(err error) error { return &Error{Kind: KindTerminal, Err: err} }

// Terminalf is Terminal with a text.
func Terminalf(format string, args ...any) error { return Terminal(fmt.Errorf(format, args...)) }

// NotFound says that the object named in the text is not there.
func NotFound(format string, args ...any) error {
	return &Error{Kind: KindNotFound, Err: fmt.Errorf(format, args...)}
}

// Capacity says that the cloud has no room for now; the text names what was asked for and what there is.
func Capacity(err error) error { return &Error{Kind: KindCapacity, Err: err} }

// Throttled says that the cloud must not be called again before after has passed.
func Throttled(after time.Duration, err error) error {
	return &Error{Kind: KindThrottled, After: after, Err: err}
}

// Pending says that the cloud is at work on what the text names, and to ask again after the pause.
func Pending(after time.Duration, format string, args ...any) error {
	return &Error{Kind: KindPending, After: after, Err: fmt.Errorf(format, args...)}
}

// KindOf returns the kind of the first Error in err's chain, KindTransient when there is none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}

	return KindTransient
}

// IsNotFound reports whether err says that an object is not there.
func IsNotFound(err error) bool { return KindOf(err) == KindNotFound }

// PauseOf returns the least pause that err asks for, zero when it asks for none.
func PauseOf(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.After
	}

	return 0
}
