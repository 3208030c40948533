package bootasset

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// source fetches files over HTTP.
type source struct {
	http                       *http.Client
	headerTimeout, idleTimeout time.Duration
	retries                    int
}

const (
	// enoughProgress is what a download has to have got since its last failure to be given all its retries again.
	enoughProgress = 1 << 20
	// maxPause is the longest pause between two tries of one download. A server that wants more ends it.
	maxPause = time.Minute
)

// download reads one file and resumes where it was cut. Its size, negative when unknown, and offset may be read at any time.
type download struct {
	url          string
	source       source
	size, offset atomic.Int64
	version      validator

	// get makes a request in the context that the download was opened in.
	get    func(offset int64) (*response, error)
	sleep  func(time.Duration) error
	cancel context.CancelFunc

	current  *response
	failures int
	failedAt int64
}

// validator identifies the content of a file, so that a resumed download does not continue in another one.
type validator struct{ etag, modified string }

func (v validator) ifRange() string {
	// A weak tag says only that two files mean the same.
	if v.etag != "" && v.etag[0] == '"' {
		return v.etag
	}

	return v.modified
}

// response is an answer whose body ends with an error when it stalls.
type response struct {
	*http.Response

	idle   time.Duration
	timer  *time.Timer
	ended  func(error) error
	cancel context.CancelCauseFunc
}

func (r *response) Read(p []byte) (int, error) {
	r.timer.Reset(r.idle)
	defer r.timer.Stop()

	n, err := r.Body.Read(p)
	if err != nil && !atEnd(err) {
		err = r.ended(err)
	}

	return n, err
}

// end gives the connection back. What a body that is not needed any more has to say does not matter.
func (r *response) end() {
	r.timer.Stop()
	r.cancel(nil)
	r.Body.Close()
}

// open starts a download and returns once the server has answered that there is something.
func (s source) open(ctx context.Context, target string) (*download, error) {
	ctx, cancel := context.WithCancel(ctx)

	d := &download{url: target, source: s, cancel: cancel}
	d.get = func(offset int64) (*response, error) { return s.request(ctx, target, offset, d.version) }
	d.sleep = func(pause time.Duration) error { return sleep(ctx, pause) }

	first, err := d.get(0)
	if err != nil {
		cancel()

		return nil, err
	}

	d.begin(first)

	return d, nil
}

// begin takes the answer that has the whole file.
func (d *download) begin(first *response) {
	d.current = first
	d.size.Store(first.ContentLength)
	d.version = validator{etag: first.Header.Get("ETag"), modified: first.Header.Get("Last-Modified")}
}

// request asks for the file from offset on. The answer has status 200 for the whole file and 206 for a part.
func (s source) request(parent context.Context, target string, offset int64, version validator) (*response, error) {
	ctx, cancel := context.WithCancelCause(parent)
	slow := fmt.Errorf("GET %s: no answer within %s", target, s.headerTimeout)
	timer := time.AfterFunc(s.headerTimeout, func() { cancel(slow) })

	// ended finds the reason behind an error: the caller gave up, or one of the timers here did.
	ended := func(err error) error {
		switch {
		case parent.Err() != nil:
			return fmt.Errorf("GET %s: %w", target, parent.Err())
		case ctx.Err() != nil:
			return context.Cause(ctx)
		default:
			return err
		}
	}

	fail := func(err error) (*response, error) {
		err = ended(err)

		timer.Stop()
		cancel(nil)

		return nil, err
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return fail(fmt.Errorf("GET %s: %w", target, withoutURL(err)))
	}

	// Without this, the transport would unpack on its own what it asked the server to pack.
	request.Header.Set("Accept-Encoding", "identity")

	want := http.StatusOK

	if offset > 0 {
		want = http.StatusPartialContent

		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))

		if v := version.ifRange(); v != "" {
			request.Header.Set("If-Range", v)
		}
	}

	answer, err := s.http.Do(request)
	if err != nil {
		return fail(fmt.Errorf("GET %s: %w", target, withoutURL(err)))
	}

	timer.Stop()

	switch answer.StatusCode {
	case want:
		stalled := fmt.Errorf("GET %s: no data for %s", target, s.idleTimeout)
		timer = time.AfterFunc(s.idleTimeout, func() { cancel(stalled) })
		timer.Stop()

		return &response{Response: answer, idle: s.idleTimeout, timer: timer, ended: ended, cancel: cancel}, nil
	case http.StatusOK, http.StatusRequestedRangeNotSatisfiable:
		err = &cannotResume{fmt.Sprintf("GET %s: the server cannot resume at byte %d, or its file has changed", target, offset)}
	default:
		err = statusError(answer, target)
	}

	answer.Body.Close()

	return fail(err)
}

// cannotResume ends a download: it has to start over.
type cannotResume struct{ text string }

func (e *cannotResume) Error() string { return e.text }

// Read fetches more of the file. It is not for several goroutines.
func (d *download) Read(p []byte) (int, error) {
	for {
		if d.current == nil {
			if err := d.resume(); err != nil {
				return 0, err
			}
		}

		n, err := d.current.Read(p)
		offset, size := d.offset.Add(int64(n)), d.size.Load()

		switch {
		case size >= 0 && offset > size:
			return n, fmt.Errorf("GET %s: got %d bytes, the server had announced %d", d.url, offset, size)
		case err == nil:
			return n, nil
		case offset == size, size < 0 && atEnd(err):
			return n, io.EOF
		case atEnd(err):
			err = io.ErrUnexpectedEOF
		}

		d.current.end()
		d.current = nil

		if err = d.failed(err); err != nil {
			return n, err
		}

		if n > 0 {
			return n, nil
		}
	}
}

// resume opens the file again where it was left, with growing pauses.
func (d *download) resume() error {
	for {
		offset := d.offset.Load()

		next, err := d.get(offset)

		switch {
		case err == nil && offset == 0:
			d.begin(next)

			return nil
		case err == nil:
			if err = d.continues(next, offset); err == nil {
				d.current = next

				return nil
			}

			next.end()
		}

		if err = d.failed(err); err != nil {
			return err
		}
	}
}

// continues checks that a partial answer is the rest of the same file.
func (d *download) continues(next *response, offset int64) error {
	got, size := next.Header.Get("Content-Range"), d.size.Load()

	want := fmt.Sprintf("bytes %d-%d/%d", offset, size-1, size)
	if size < 0 || got != want {
		return &cannotResume{fmt.Sprintf("GET %s: the server resumed with the range %q, want %q", d.url, got, want)}
	}

	return nil
}

// failed decides whether a failure is the end. If not, it returns nil after a pause.
func (d *download) failed(err error) error {
	_, final := errors.AsType[*cannotResume](err)
	if final || driver.KindOf(err) == driver.KindTerminal {
		return err
	}

	if offset := d.offset.Load(); offset-d.failedAt >= enoughProgress {
		d.failures, d.failedAt = 0, offset
	}

	pause := max(min(time.Second<<min(d.failures, 10), maxPause), driver.PauseOf(err))
	if d.failures++; d.failures > d.source.retries || pause > maxPause {
		return fmt.Errorf("stopped at byte %d of %d after %d failures in a row: %w", d.offset.Load(), d.size.Load(), d.failures, err)
	}

	return d.sleep(pause + rand.N(pause/2))
}

func (d *download) end() {
	d.cancel()

	if d.current != nil {
		d.current.end()
	}
}

func sleep(ctx context.Context, pause time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pause):
		return nil
	}
}
