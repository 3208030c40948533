package memory

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// watchStart is the first line of a watch, which says that nothing is missed from here on.
const watchStart = "watching"

// remote is a cloud in another process, behind Handler.
type remote struct{ http *http.Client }

// Dial returns a client of the cloud that another process serves with Handler on a Unix socket. It connects at the first call.
func Dial(socket string) *Client { return &Client{remote: &remote{http: overSocket(socket)}} }

func overSocket(socket string) *http.Client {
	var dialer net.Dialer

	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
	}}
}

// Owner is the cloud in another process as its owner sees it.
type Owner struct{ remote remote }

// DialOwner returns the owner's side of the cloud that another process serves with Handler on a Unix socket.
func DialOwner(socket string) *Owner { return &Owner{remote: remote{http: overSocket(socket)}} }

// The calls of the owner.
const (
	ownerMachines = "owner/machines"
	ownerDelete   = "owner/delete-machine"
	ownerPower    = "owner/power"
)

// Machines returns all machines, the oldest first.
func (o *Owner) Machines(ctx context.Context) (all []ledger.Machine, err error) {
	return all, o.remote.ask(ctx, ownerMachines, nil, &all)
}

// DeleteMachine takes a machine away, running or not. Its volumes stay.
func (o *Owner) DeleteMachine(ctx context.Context, id string) error {
	return o.remote.ask(ctx, ownerDelete, id, nil)
}

// Power switches a machine on or off.
func (o *Owner) Power(ctx context.Context, id string, on bool) error {
	return o.remote.ask(ctx, ownerPower, powerArgs{id, on}, nil)
}

// ask makes one call. answer is a pointer, or nil.
func (r *remote) ask(ctx context.Context, op Op, args, answer any) error {
	response, err := r.send(ctx, op, args)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // it was read

	if answer == nil {
		return nil
	}

	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return fmt.Errorf("%w: %w", ErrConnection, err)
	}

	return nil
}

// send returns the answer of a call that went well, with its body still to be read.
func (r *remote) send(ctx context.Context, op Op, args any) (*http.Response, error) {
	body, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://cloud/"+string(op), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}

	response, err := r.http.Do(request)

	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrConnection, err)
	case response.StatusCode == http.StatusOK:
		return response, nil
	}
	defer response.Body.Close() //nolint:errcheck // it was read

	no := &Error{Status: response.StatusCode}
	if err := json.NewDecoder(response.Body).Decode(no); err != nil {
		return nil, fmt.Errorf("%w: answer %s: %w", ErrConnection, response.Status, err)
	}

	return nil, no
}

func (r *remote) watch(ctx context.Context, changed func(Event)) error {
	response, err := r.send(ctx, OpWatchVMs, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // it was read

	events := json.NewDecoder(response.Body)

	for begun := false; ; begun = true {
		var e struct {
			Note  string
			Event *Event
		}

		switch err := events.Decode(&e); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil || (!begun && e.Note != watchStart):
			return ErrWatchBroken
		case e.Event != nil:
			changed(*e.Event)
		}
	}
}

type importArgs struct {
	Name, URL string
	Tags      map[string]string
}

type powerArgs struct {
	ID string
	On bool
}

type none struct{}

type handler func(ctx context.Context, body []byte) (any, error)

// Handler serves the cloud to clients in other processes (Dial) and to their owner (DialOwner). User data passes through it, so it
// has to be behind a socket that only its users can reach. A call that fails in another way than with an *Error loses its connection.
func Handler(c *Cloud) http.Handler {
	client := c.Client()

	calls := map[Op]handler{
		OpPing: handle(func(ctx context.Context, _ *none) (none, error) { return none{}, client.Ping(ctx) }),
		OpImportImage: handle(func(ctx context.Context, a importArgs) (Image, error) {
			return client.ImportImage(ctx, a.Name, a.URL, a.Tags)
		}),
		OpGetImage: handle(client.GetImage), OpListImages: handle(client.ListImages), OpDeleteImage: act(client.DeleteImage),
		OpCreateVolume: handle(client.CreateVolume), OpGetVolume: handle(client.GetVolume),
		OpListVolumes: handle(client.ListVolumes), OpDeleteVolume: act(client.DeleteVolume),
		OpCreateVM: handle(client.CreateVM), OpGetVM: handle(client.GetVM), OpListVMs: handle(client.ListVMs),
		OpDeleteVM: act(client.DeleteVM), OpStartVM: act(client.StartVM), OpStopVM: act(client.StopVM), OpRebootVM: act(client.RebootVM),

		ownerMachines: handle(func(context.Context, *none) ([]ledger.Machine, error) { return c.Machines(), nil }),
		ownerDelete:   act(func(_ context.Context, id string) error { return c.DeleteMachine(id) }),
		ownerPower: handle(func(_ context.Context, a powerArgs) (none, error) {
			if a.On {
				return none{}, c.SwitchOn(a.ID)
			}

			return none{}, c.SwitchOff(a.ID)
		}),
	}

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op := Op(r.URL.Path[1:])

		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))

		switch call, ok := calls[op]; {
		case err != nil:
			panic(http.ErrAbortHandler)
		case op == OpWatchVMs:
			serveWatch(w, r, client)
		case !ok:
			refuse(w, notFound("call", string(op)))
		default:
			answer(r.Context(), w, call, body)
		}
	})
}

func handle[A, T any](f func(ctx context.Context, args A) (T, error)) handler {
	return func(ctx context.Context, body []byte) (any, error) {
		var args A
		if err := json.Unmarshal(body, &args); err != nil {
			return nil, invalid("arguments: %s", err)
		}

		return f(ctx, args)
	}
}

func act(f func(ctx context.Context, id string) error) handler {
	return handle(func(ctx context.Context, id string) (none, error) { return none{}, f(ctx, id) })
}

func answer(ctx context.Context, w http.ResponseWriter, call handler, body []byte) {
	got, err := call(ctx, body)

	no, isAnswer := errors.AsType[*Error](err)

	switch {
	case isAnswer:
		refuse(w, no)
	case err != nil:
		panic(http.ErrAbortHandler)
	default:
		// Who does not listen any more does not need to know.
		_ = json.NewEncoder(w).Encode(got)
	}
}

func refuse(w http.ResponseWriter, no *Error) {
	w.WriteHeader(no.Status)
	_ = json.NewEncoder(w).Encode(no)
}

func serveWatch(w http.ResponseWriter, r *http.Request, client *Client) {
	control := http.NewResponseController(w)
	stream := json.NewEncoder(w)

	send := func(line map[string]any) {
		// A watcher may be slow, but not for ever; and the events of one that is gone are lost.
		_ = control.SetWriteDeadline(time.Now().Add(time.Minute))
		_ = stream.Encode(line)
		_ = control.Flush()
	}

	err := client.watch(r.Context(), func() { send(map[string]any{"Note": watchStart}) }, func(e Event) { send(map[string]any{"Event": e}) })
	if no, ok := errors.AsType[*Error](err); ok {
		refuse(w, no)

		return
	}

	panic(http.ErrAbortHandler)
}
