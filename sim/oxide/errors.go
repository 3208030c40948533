package oxide

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// refusal is an answer that says no.
type refusal struct {
	status     int
	code       string // empty for what the HTTP server refuses by itself
	message    string
	retryAfter time.Duration
}

// Error returns status, code and message, as the books have it.
func (e *refusal) Error() string { return fmt.Sprintf("%d %s: %s", e.status, e.code, e.message) }

func notFound(what string) error {
	return &refusal{status: http.StatusNotFound, code: "ObjectNotFound", message: "not found: " + what}
}

func alreadyExists(noun, name string) error {
	return &refusal{
		status: http.StatusBadRequest, code: "ObjectAlreadyExists", message: fmt.Sprintf("already exists: %s %q", noun, name),
	}
}

func invalidRequest(format string, args ...any) error {
	return &refusal{status: http.StatusBadRequest, code: "InvalidRequest", message: fmt.Sprintf(format, args...)}
}

func invalidValue(label, format string, args ...any) error {
	return &refusal{
		status: http.StatusBadRequest, code: "InvalidValue",
		message: fmt.Sprintf("unsupported value for %q: %s", label, fmt.Sprintf(format, args...)),
	}
}

// badRequest is what the HTTP server in front of the control plane refuses.
func badRequest(format string, args ...any) error {
	return &refusal{status: http.StatusBadRequest, message: fmt.Sprintf(format, args...)}
}

func conflict(format string, args ...any) error {
	return &refusal{status: http.StatusConflict, code: "Conflict", message: fmt.Sprintf(format, args...)}
}

func forbidden() error {
	return &refusal{status: http.StatusForbidden, code: "Forbidden", message: "Forbidden"}
}

func unauthorized() error {
	return &refusal{status: http.StatusUnauthorized, code: "Unauthorized", message: "credentials missing or invalid"}
}

// internal is a failure whose reason only the log of the control plane has.
func internal() error {
	return &refusal{status: http.StatusInternalServerError, code: "Internal", message: "Internal Server Error"}
}

func unavailable() error {
	return &refusal{status: http.StatusServiceUnavailable, code: "ServiceNotAvailable", message: "Service Unavailable"}
}

func insufficient(message string) error {
	return &refusal{status: http.StatusInsufficientStorage, code: "InsufficientCapacity", message: message}
}

// reply is an answer on its way to the client.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// written puts what a handler returned into an answer.
func written(id string, status int, body any, err error) *reply {
	out := &reply{status: status, header: http.Header{"X-Request-Id": {id}}}

	if err != nil {
		no, ok := errors.AsType[*refusal](err)
		if !ok {
			panic(err)
		}

		out.status = no.status

		if no.retryAfter > 0 {
			out.header.Set("Retry-After", strconv.Itoa(int((no.retryAfter + time.Second - 1).Seconds())))
		}

		body = struct {
			RequestID string `json:"request_id"`
			Code      string `json:"error_code,omitempty"`
			Message   string `json:"message"`
		}{id, no.code, no.message}
	}

	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			panic(err)
		}

		out.header.Set("Content-Type", "application/json")
		out.body = text
	}

	out.header.Set("Content-Length", strconv.Itoa(len(out.body)))

	return out
}

// worded puts a fault of the books into the words of the rack; other errors stay as they are.
func worded(fault *ledger.FaultError, q *request) error {
	switch fault.Kind {
	case ledger.NotFound:
		return notFoundName("project", "gone")
	case ledger.Conflict:
		return conflict("The instance was previously in a state that allowed the requested state change, but the instance's " +
			"state changed before the request could be completed")
	case ledger.Throttled:
		return &refusal{status: http.StatusTooManyRequests, message: "Too Many Requests", retryAfter: fault.RetryAfter}
	case ledger.Full:
		return insufficient(noSled)
	case ledger.Unauthorized:
		return unauthorized()
	case ledger.Echo:
		return &refusal{status: http.StatusInternalServerError, code: "Internal", message: "cannot process " + q.dump()}
	default:
		return unavailable()
	}
}
