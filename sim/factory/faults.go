package factory

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"
)

// Faults are what goes wrong. The zero value is a factory without faults.
type Faults struct {
	// SchematicErrors and ImageErrors are how many of the next requests are answered with 500.
	SchematicErrors, ImageErrors int
	// Throttled is how many of the next requests, of either kind and after those, are answered with 429 and RetryAfter.
	Throttled int
	// RetryAfter is told in whole seconds; zero leaves the header out.
	RetryAfter time.Duration
	// BytesPerSecond slows the sending of images down; zero does not.
	BytesPerSecond int
	// Stall is how many of the next images stop after half of their bytes, until the client goes.
	Stall int
	// Cut is how many of the next images lose their connection after half of their bytes.
	Cut int
}

// SetFaults replaces the faults, those that have not happened yet included.
func (f *Factory) SetFaults(faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.faults = faults
}

// outcome is the fault of one request.
type outcome struct {
	status     int
	retryAfter time.Duration
	rate       int
	stall, cut bool
}

// take decides the fault of the next request, of which errors counts those that fail.
func (f *Faults) take(errors *int) outcome {
	switch {
	case *errors > 0:
		*errors--

		return outcome{status: http.StatusInternalServerError}
	case f.Throttled > 0:
		f.Throttled--

		return outcome{status: http.StatusTooManyRequests, retryAfter: f.RetryAfter}
	}

	o := outcome{rate: f.BytesPerSecond}

	// Only images are sent in parts, so that a schematic uses none of these up.
	if errors != &f.ImageErrors {
		return o
	}

	switch {
	case f.Stall > 0:
		f.Stall--

		o.stall = true
	case f.Cut > 0:
		f.Cut--

		o.cut = true
	}

	return o
}

// refuse answers with the fault's status, when it has one.
func (o outcome) refuse(w http.ResponseWriter) bool {
	switch o.status {
	case 0:
		return false
	case http.StatusTooManyRequests:
		if o.retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int((o.retryAfter+time.Second-1)/time.Second)))
		}

		http.Error(w, "too many requests", o.status)
	default:
		http.Error(w, "internal server error", o.status)
	}

	return true
}

// steps is in how many parts of a second a slowed image is sent.
const steps = 10

// send sends an image of the given size as the fault has it. It panics with http.ErrAbortHandler to cut the connection.
func (o outcome) send(ctx context.Context, w http.ResponseWriter, image io.Reader, size int64) {
	limit := size
	if o.stall || o.cut {
		limit = size / 2
	}

	body := io.LimitReader(image, limit)

	if o.rate <= 0 {
		if _, err := io.Copy(w, body); err != nil {
			return
		}
	} else {
		part := max(int64(o.rate/steps), 1)

		for sent := int64(0); sent < limit; {
			n, err := io.CopyN(w, body, min(part, limit-sent))
			if err != nil {
				return
			}

			sent += n

			flush(w)

			if pause(ctx, time.Second/steps) != nil {
				return
			}
		}
	}

	flush(w)

	if o.stall {
		<-ctx.Done()
	}

	if o.cut {
		panic(http.ErrAbortHandler)
	}
}

func flush(w http.ResponseWriter) {
	// A writer that cannot flush, such as a recorder, has nothing to be flushed.
	_ = http.NewResponseController(w).Flush()
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
