package bootasset

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// httpError is an answer other than the one that was hoped for.
type httpError struct {
	code int
	text string
}

func (e *httpError) Error() string { return e.text }

// notFound reports whether the factory says that there is no such thing.
func notFound(err error) bool {
	e, ok := errors.AsType[*httpError](err)

	return ok && (e.code == http.StatusNotFound || e.code == http.StatusGone)
}

// statusError makes an error of the right kind from an answer. The text has the factory's own words, in part.
func statusError(response *http.Response, target string) error {
	text := fmt.Sprintf("%s %s: %s", response.Request.Method, target, response.Status)
	if body := excerpt(response.Body); body != "" {
		text += ": " + body
	}

	var err error = &httpError{code: response.StatusCode, text: text}

	after := RetryAfter(response.Header.Get("Retry-After"), time.Now())

	switch code := response.StatusCode; {
	case code == http.StatusTooManyRequests, code >= http.StatusInternalServerError && after > 0:
		// The factory asks to be left alone, not the cloud: this request waits, and no removal does.
		return &driver.Error{Kind: driver.KindTransient, After: after, Err: err}
	case code == http.StatusNotFound, code == http.StatusGone, code == http.StatusBadRequest, code == http.StatusUnprocessableEntity:
		return driver.Terminal(err)
	default:
		return err
	}
}

// excerpt is the start of a body, as one line.
func excerpt(body io.Reader) string {
	data, _ := io.ReadAll(io.LimitReader(body, 512))

	text := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}

		return r
	}, strings.ToValidUTF8(string(data), ""))

	return strings.Join(strings.Fields(text), " ")
}

// maxRetryAfter bounds what a server can ask for.
const maxRetryAfter = time.Hour

// RetryAfter reads the value of a Retry-After header, seconds or a date (RFC 9110, 10.2.3). It returns zero for one that is
// absent, malformed or over, and an hour at most.
func RetryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)

	var after time.Duration

	if seconds, err := strconv.ParseUint(value, 10, 63); err == nil {
		after = time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	} else if date, err := http.ParseTime(value); err == nil {
		after = date.Sub(now)
	}

	return min(max(after, 0), maxRetryAfter)
}

// withoutURL drops the URL that package net/url and net/http put into their errors: after a redirect it may be a signed one.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}

	return err
}
