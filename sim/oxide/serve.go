package oxide

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// version is the newest version of the API that the rack speaks, and oldest the first one that came with versions.
const (
	version = "2026060800.0.0"
	oldest  = "2025010100.0.0"
)

// request is a call as it came in.
type request struct {
	id     string // of the request, in the answer's header too
	op     string
	method string
	url    *url.URL
	header http.Header
	path   func(name string) string
	body   []byte
}

// call is a request that is being worked on. The lock of the rack is held.
type call struct {
	*Rack
	*request
	user  *user
	query url.Values
}

// dump is the whole request as text, with the secrets in it.
func (q *request) dump() string {
	var user struct {
		Data []byte `json:"user_data"`
	}

	_ = json.Unmarshal(q.body, &user) // There may be none.

	return fmt.Sprintf("%s %s Authorization: %s %s %s", q.method, q.url, q.header.Get("Authorization"), q.body, user.Data)
}

// object is what the call is about, for the books: the name of what is to be made, or what the path names.
func (q *request) object(r *route) string {
	if r.object != "" {
		return q.path(r.object)
	}

	var named struct {
		Name string `json:"name"`
	}

	_ = json.Unmarshal(q.body, &named) // Then it has none.

	return named.Name
}

// serve answers one request of a session. An error is that of the connection, and no answer.
func (r *Rack) serve(session *ledger.Session, req *http.Request, found *route, path func(string) string) (*reply, error) {
	r.mu.Lock()
	q := &request{id: r.newID(), op: found.op, method: req.Method, url: req.URL, header: req.Header, path: path}
	r.mu.Unlock()

	body, tooLarge, err := readBody(req, found.bodyCap())
	if err != nil {
		return nil, err
	}

	q.body = body

	var out *reply

	err = session.CallContext(req.Context(), q.op, q.object(found), func() error {
		status, answer, err := http.StatusBadRequest, any(nil), error(nil)
		if tooLarge {
			err = badRequest("request body exceeded maximum size of %d bytes", found.bodyCap())
		} else if status, answer, err = r.work(req.Context(), q, found); err != nil {
			if _, ok := errors.AsType[*refusal](err); !ok {
				return err
			}
		}

		out = written(q.id, status, answer, err)

		return err
	})

	fault, isFault := errors.AsType[*ledger.FaultError](err)
	_, isAnswer := errors.AsType[*refusal](err)

	switch {
	case isFault:
		return written(q.id, 0, nil, worded(fault, q)), nil
	case err != nil && !isAnswer:
		return nil, err
	}

	return out, nil
}

// readBody reads a body up to its limit.
func readBody(req *http.Request, limit int64) (body []byte, tooLarge bool, err error) {
	if req.Body == nil {
		return nil, false, nil
	}

	body, err = io.ReadAll(io.LimitReader(req.Body, limit+1))

	return body, int64(len(body)) > limit, err
}

// work does what a call asks for, and goes on when the client gives up.
func (r *Rack) work(ctx context.Context, q *request, found *route) (status int, answer any, err error) {
	type result struct {
		status int
		answer any
		err    error
	}

	done := make(chan result, 1)

	r.mu.Lock()

	if r.closed {
		r.mu.Unlock()

		return 0, nil, ledger.ErrDisconnected
	}

	r.tasks.Go(func() {
		var got result

		got.status, got.answer, got.err = r.inTurn(ctx, q, found)
		done <- got
	})

	r.mu.Unlock()

	select {
	case got := <-done:
		return got.status, got.answer, got.err
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
}

// inTurn does what a call asks for once it is its turn.
func (r *Rack) inTurn(ctx context.Context, q *request, found *route) (int, any, error) {
	if r.slots != nil {
		select {
		case r.slots <- struct{}{}:
		default:
			if !r.opts.Queue {
				return 0, nil, unavailable()
			}

			select {
			case r.slots <- struct{}{}:
			case <-ctx.Done():
				return 0, nil, ctx.Err()
			case <-r.ctx.Done():
				return 0, nil, ledger.ErrDisconnected
			}
		}

		defer func() { <-r.slots }()
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	r.inFlight++
	r.most = max(r.most, r.inFlight)

	defer func() { r.inFlight-- }()

	r.pauseLocked(r.opts.Latency)

	if !found.long {
		r.pauseLocked(r.opts.Durations[q.op])
	}

	if r.closed {
		return 0, nil, ledger.ErrDisconnected
	}

	return r.handleLocked(q, found)
}

func (r *Rack) handleLocked(q *request, found *route) (int, any, error) {
	c := &call{Rack: r, request: q}

	if err := checkVersion(q.header); err != nil {
		return 0, nil, err
	}

	if !found.open {
		if c.user = r.userOf(q.header.Get("Authorization")); c.user == nil {
			return 0, nil, unauthorized()
		}
	}

	query, err := url.ParseQuery(q.url.RawQuery)
	if err != nil {
		return 0, nil, badRequest("unable to parse query string: %s", err)
	}

	c.query = query

	return found.handle(c)
}

func checkVersion(header http.Header) error {
	asked := header.Values("Api-Version")

	switch {
	case len(asked) == 0:
		return nil
	case !versionForm.MatchString(asked[0]):
		return badRequest("bad value for header %q: %s", "api-version", asked[0])
	case asked[0] < oldest || asked[0] > version:
		return badRequest("server does not support this API version: %s", asked[0])
	}

	return nil
}

func (r *Rack) userOf(authorization string) *user {
	token, ok := strings.CutPrefix(authorization, "Bearer ")
	if !ok {
		return nil
	}

	for _, u := range r.users {
		if u.token == token {
			return u
		}
	}

	return nil
}

// decode reads the body of a call.
func decode[T any](c *call) (body T, err error) {
	if err := json.Unmarshal(c.body, &body); err != nil {
		return body, badBody(err.Error())
	}

	return body, nil
}

// decodeBase64 reads standard base64 with padding and without line breaks.
func decodeBase64(text string) ([]byte, error) {
	if i := strings.IndexAny(text, "\r\n"); i >= 0 {
		return nil, base64.CorruptInputError(i)
	}

	return base64.StdEncoding.Strict().DecodeString(text)
}

// took is when something was made and last changed.
func took(t time.Time) *time.Time { return &t }
