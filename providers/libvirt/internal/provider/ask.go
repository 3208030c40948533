package provider

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// A host gets patience to answer. One of which nothing was heard in that time gets no more than briefly, until rest has passed: it delays
// what is said of the others once, not each time. One that is slow gets its time.
const (
	patience = 45 * time.Second
	briefly  = 3 * time.Second
	rest     = 5 * time.Minute
)

// host is a hypervisor, and what is thought of it.
type host struct {
	*hypervisor.Host

	// doubted is when it was given up, or could not be reached, in nanoseconds since the epoch; 0 if it has answered since.
	doubted atomic.Int64
}

// answer is what one host has said.
type answer[T any] struct {
	host  *host
	value T
	err   error
}

// ask calls f for all hosts at once and returns what they said, in their order. A host whose time is up is given up. When an answer is
// enough, those who have not answered yet are not waited for; their answer is empty.
func ask[T any](ctx context.Context, hosts []*host, f func(context.Context, *host) (T, error), enough ...func(answer[T]) bool) []answer[T] {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	type numbered struct {
		index int
		answer[T]
	}

	said := make(chan numbered, len(hosts))

	for i, h := range hosts {
		go func() {
			value, err := patiently(ctx, h, len(hosts) > 1, func(ctx context.Context) (T, error) { return f(ctx, h) })
			said <- numbered{i, answer[T]{h, value, err}}
		}()
	}

	answers := make([]answer[T], len(hosts))
	for i, h := range hosts {
		answers[i].host = h
	}

	for range hosts {
		one := <-said
		answers[one.index] = one.answer

		for _, is := range enough {
			if is(one.answer) {
				return answers
			}
		}
	}

	return answers
}

// patiently calls f, which ends with its ctx, with the time that the host deserves. The only host has all the time that there is.
func patiently[T any](ctx context.Context, h *host, others bool, f func(context.Context) (T, error)) (T, error) {
	if !others {
		return f(ctx)
	}

	limit := patience

	if doubted := h.doubted.Load(); doubted != 0 && time.Since(time.Unix(0, doubted)) < rest {
		limit = briefly
	}

	deserved := limit

	// What the others say must not be lost with ctx.
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)*3/4)
	}

	began := time.Now()

	asked, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	value, err := f(asked)

	failed := err != nil && (asked.Err() != nil || errors.Is(err, connection.ErrUnreachable))

	switch {
	case ctx.Err() != nil:
	case !failed || h.Heard().After(began):
		h.doubted.Store(0)
	// One that was hurried, as for the addresses of its guests, may be as quick as ever in all else.
	case limit > deserved/2 || asked.Err() == nil:
		h.doubt()
	}

	return value, err
}

// doubt notes that the host was given up. One that was given up briefly keeps its time: after it, it is asked patiently again.
func (h *host) doubt() {
	now := time.Now()

	if before := h.doubted.Load(); before == 0 || now.Sub(time.Unix(0, before)) >= rest {
		h.doubted.Store(now.UnixNano())
	}
}

// unseenOf returns the hosts that could not say what they were asked, nil if there is none.
func unseenOf[T any](answers []answer[T]) *driver.Unseen {
	unseen := &driver.Unseen{Places: map[string]error{}}

	for _, a := range answers {
		if a.err != nil {
			unseen.Places[a.host.Name()] = a.err
		}
	}

	if len(unseen.Places) == 0 {
		return nil
	}

	return unseen
}
