package rack

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

const retryAfter = "Retry-After"

// The pauses that a rack gets which asks for one without saying how long, and the longest that it gets.
const (
	defaultPause = 10 * time.Second
	longestPause = 10 * time.Minute
)

// Error is an answer of the rack that is no success. Its text names no address, header or body beside the rack's own message.
type Error struct {
	// What was tried, a verb and a noun.
	What string
	// Status is the HTTP status, Code the rack's own word, as "InvalidRequest", and empty when it has none.
	Status int
	Code   string
	// Message is the rack's reason.
	Message string
	// RequestID is the rack's name for the call, by which its operators find it.
	RequestID string
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder

	fmt.Fprintf(&b, "%s: the rack answers %d", e.What, e.Status)

	if e.Code != "" {
		b.WriteString(" " + e.Code)
	}

	if e.Message != "" {
		b.WriteString(": " + short(e.Message))
	}

	switch e.Status {
	case http.StatusUnauthorized:
		b.WriteString("; the token is not valid, or not any more: make one with `oxide auth login`, for the right silo")
	case http.StatusForbidden:
		b.WriteString("; the token's user has not the right: a collaborator of the project has it")
	}

	if e.RequestID != "" {
		fmt.Fprintf(&b, " (request %s)", e.RequestID)
	}

	return b.String()
}

// mostMessage bounds what is shown of the rack's reason: an answer that repeats a request may be as long as that.
const mostMessage = 1 << 10

func short(message string) string {
	if len(message) <= mostMessage {
		return message
	}

	return strings.ToValidUTF8(message[:mostMessage], "") + "..."
}

// Exists says whether err is the rack's answer that an object of that name exists already.
func Exists(err error) bool { return hasCode(err, "ObjectAlreadyExists") }

// Invalid says whether err is the rack's answer that a call cannot be right as it is, which it also gives while an object is in the wrong
// state.
func Invalid(err error) bool { return hasCode(err, "InvalidRequest") || hasCode(err, "InvalidValue") }

// Denied says whether err is the rack's answer that the token's user may not do that, or not see that of which it would be a part.
func Denied(err error) bool {
	e, ok := errors.AsType[*Error](err)

	return ok && (e.Status == http.StatusForbidden || e.Status == http.StatusNotFound)
}

// taken says whether err is the rack's answer that another instance has what this one should get, as a floating IP or a disk.
func taken(err error) bool {
	e, ok := errors.AsType[*Error](err)

	return ok && strings.Contains(e.Message, "attached to another")
}

func hasCode(err error, code string) bool {
	e, ok := errors.AsType[*Error](err)

	return ok && e.Status == http.StatusBadRequest && e.Code == code
}

// fullWords are how the rack says that there is no room, in answers that are not 507.
var fullWords = []string{
	"quota", "capacity", "limit exceeded", "insufficient", "not enough", "no external ip", "no available", "no addresses available", "exhausted", "out of space",
}

// classify gives an error its kind. What it does not know stays transient: a lost connection, a fault of the rack, an object that is in
// the wrong state for now.
func classify(what string, err error) error {
	answer, ok := errors.AsType[*oxide.HTTPError](err)
	if !ok || answer.HTTPResponse == nil {
		return fmt.Errorf("%s: %w", what, err)
	}

	e := &Error{What: what, Status: answer.HTTPResponse.StatusCode}

	if answer.ErrorResponse != nil {
		e.Code, e.Message, e.RequestID = answer.ErrorResponse.ErrorCode, answer.ErrorResponse.Message, answer.ErrorResponse.RequestId
	}

	if e.RequestID == "" {
		e.RequestID = answer.HTTPResponse.Header.Get(serverHeader)
	}

	switch {
	case e.Status == http.StatusNotFound || e.Status == http.StatusGone:
		return &driver.Error{Kind: driver.KindNotFound, Err: e}
	case e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable && answer.HTTPResponse.Header.Get(retryAfter) != "":
		return driver.Throttled(pauseOf(answer.HTTPResponse.Header), e)
	case e.Status == http.StatusInsufficientStorage || e.Status == http.StatusBadRequest && full(e.Message):
		return driver.Capacity(e)
	default:
		return e
	}
}

// quotedWord is what a message quotes: the name of an object, which may be any word.
var quotedWord = regexp.MustCompile(`"[^"]*"|'[^']*'`)

func full(message string) bool {
	message = strings.ToLower(quotedWord.ReplaceAllString(message, ""))

	for _, word := range fullWords {
		if strings.Contains(message, word) {
			return true
		}
	}

	return false
}

// pauseOf reads Retry-After: seconds or a date (RFC 9110, 10.2.3).
func pauseOf(header http.Header) time.Duration {
	text := header.Get(retryAfter)

	pause := defaultPause
	if seconds, err := strconv.Atoi(text); err == nil {
		pause = time.Duration(min(max(seconds, 0), int(longestPause/time.Second))) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		pause = time.Until(at)
	}

	return min(max(pause, time.Second), longestPause)
}
