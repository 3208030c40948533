package oxide_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	api "github.com/oxidecomputer/oxide.go/oxide"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/oxide"
)

// request is one that no client of the API makes.
func request(t *testing.T, b *bench, method, path, body string) *http.Request {
	t.Helper()

	req, err := http.NewRequestWithContext(b.ctx(), method, "https://rack.test"+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+b.Token())
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Api-Version", "2026060800.0.0")

	return req
}

func (b *bench) raw(req *http.Request) (status int, header http.Header, body map[string]any) {
	b.t.Helper()

	resp, err := b.Transport(nil).RoundTrip(req)
	require.NoError(b.t, err)

	defer resp.Body.Close() //nolint:errcheck // It is in memory.

	text, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	require.NoError(b.t, json.Unmarshal(text, &body), "%s", text)

	return resp.StatusCode, resp.Header, body
}

func TestTokenIsCheckedAndMayBeReplaced(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		_, err := client(t, b.Rack, "wrong", nil).CurrentUserView(b.ctx())
		requireNo(t, err, api.ErrUnauthenticated, "credentials missing or invalid")

		me, err := b.CurrentUserView(b.ctx())
		require.NoError(t, err)
		require.Equal(t, api.Name("lab"), me.SiloName)

		fresh := b.RotateToken()
		_, err = b.CurrentUserView(b.ctx())
		require.ErrorIs(t, err, api.ErrHTTP401)
		_, err = client(t, b.Rack, fresh, nil).CurrentUserView(b.ctx())
		require.NoError(t, err)

		pong, err := client(t, b.Rack, "wrong", nil).Ping(b.ctx())
		require.NoError(t, err)
		require.Equal(t, api.PingStatusOk, pong.Status)
	})
}

func TestRolesSayWhatAUserMayDo(t *testing.T) {
	inBubble(t, oxide.Options{Projects: []string{"default", "hers"}}, func(b *bench) {
		d, err := b.disk("data", blank(), gib)
		require.NoError(t, err)

		token, err := b.AddUser("viewer", oxide.None, map[string]oxide.Role{"default": oxide.Viewer})
		require.NoError(t, err)

		viewer := client(t, b.Rack, token, nil)

		_, err = viewer.DiskView(b.ctx(), api.DiskViewParams{Disk: api.NameOrId(d.Id)})
		require.NoError(t, err)
		require.ErrorIs(t, viewer.DiskDelete(b.ctx(), api.DiskDeleteParams{Disk: api.NameOrId(d.Id)}), api.ErrForbidden)
		require.ErrorIs(t, viewer.DiskDelete(b.ctx(), api.DiskDeleteParams{Disk: "data", Project: "default"}), api.ErrForbidden)
		_, err = viewer.DiskList(b.ctx(), api.DiskListParams{Project: "hers"})
		require.ErrorIs(t, err, api.ErrObjectNotFound, "what may not be seen is not there")
		_, err = viewer.ProjectCreate(b.ctx(), api.ProjectCreateParams{Body: &api.ProjectCreate{Name: "x", Description: "d"}})
		require.ErrorIs(t, err, api.ErrForbidden)

		_, err = viewer.ProjectView(b.ctx(), api.ProjectViewParams{Project: "default"})
		require.NoError(t, err)
		_, err = viewer.ProjectListAllPages(b.ctx(), api.ProjectListParams{})
		require.ErrorIs(t, err, api.ErrForbidden, "the list is the silo's")
		_, err = viewer.ImageList(b.ctx(), api.ImageListParams{})
		require.ErrorIs(t, err, api.ErrForbidden, "the list is the silo's")

		token, err = b.AddUser("auditor", oxide.Viewer, nil)
		require.NoError(t, err)

		projects, err := client(t, b.Rack, token, nil).ProjectListAllPages(b.ctx(), api.ProjectListParams{})
		require.NoError(t, err)
		require.Len(t, projects, 2)

		token, err = b.AddUser("worker", oxide.None, map[string]oxide.Role{"default": oxide.Collaborator})
		require.NoError(t, err)
		require.NoError(t, client(t, b.Rack, token, nil).DiskDelete(b.ctx(), api.DiskDeleteParams{Disk: api.NameOrId(d.Id)}))

		_, err = b.AddUser("nobody", oxide.None, map[string]oxide.Role{"none": oxide.Viewer})
		require.ErrorContains(t, err, `no project "none"`)
	})
}

func TestServerChecksVersionAndBody(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		for version, want := range map[string]string{
			"2027010100.0.0": "server does not support this API version: 2027010100.0.0", "new": `bad value for header "api-version": new`,
		} {
			req := request(t, b, http.MethodGet, "/v1/me", "")
			req.Header.Set("Api-Version", version)

			status, _, body := b.raw(req)
			require.Equal(t, http.StatusBadRequest, status)
			require.Equal(t, want, body["message"])
			require.NotContains(t, body, "error_code", "the control plane has not seen it")
		}

		status, header, body := b.raw(request(t, b, http.MethodPost, "/v1/projects", "{"))
		require.Equal(t, http.StatusBadRequest, status)
		require.Contains(t, body["message"], "unable to parse JSON body")
		require.Equal(t, header.Get("X-Request-Id"), body["request_id"])

		status, _, body = b.raw(request(t, b, http.MethodPost, "/v1/projects", strings.Repeat(" ", 1<<20+1)))
		require.Equal(t, http.StatusBadRequest, status)
		require.Equal(t, "request body exceeded maximum size of 1048576 bytes", body["message"])

		d, err := b.disk("data", importing(), gib)
		require.NoError(t, err)

		_, _, body = b.raw(request(t, b, http.MethodPost, "/v1/disks/"+d.Id+"/bulk-write", strings.Repeat(" ", 8<<20+1)))
		require.Equal(t, "request body exceeded maximum size of 8388608 bytes", body["message"])
	})
}

func TestCallsInFlightAreBounded(t *testing.T) {
	for name, queue := range map[string]bool{"refused": false, "queued": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, oxide.Options{InFlight: 4, Queue: queue, Latency: time.Second}, func(b *bench) {
				var (
					wait sync.WaitGroup
					mu   sync.Mutex
					no   int
				)

				start := time.Now()

				for range 10 {
					wait.Go(func() {
						if _, err := b.CurrentUserView(b.ctx()); err != nil {
							requireNo(t, err, api.ErrServiceUnavailable, "Service Unavailable")
							mu.Lock()
							defer mu.Unlock()
							no++
						}
					})
				}

				wait.Wait()
				require.Equal(t, 4, b.MostInFlight())

				if queue {
					require.Zero(t, no)
					require.Equal(t, 3*time.Second, time.Since(start))
				} else {
					require.Equal(t, 6, no)
					require.Equal(t, time.Second, time.Since(start))
				}
			})
		})
	}
}

func TestFaultsHaveTheRacksWords(t *testing.T) {
	for kind, want := range map[ledger.FaultKind]error{
		ledger.NotFound: api.ErrObjectNotFound, ledger.Conflict: api.ErrConflict, ledger.Unavailable: api.ErrServiceUnavailable,
		ledger.Full: api.ErrInsufficientCapacity, ledger.Unauthorized: api.ErrUnauthenticated, ledger.Echo: api.ErrInternalError,
	} {
		t.Run(string(kind), func(t *testing.T) {
			inBubble(t, oxide.Options{}, func(b *bench) {
				b.Ledger().Inject(ledger.Fault{Kind: kind, Op: "instance_create"})

				_, err := b.create(spec("one", ""))
				require.ErrorIs(t, err, want)
				require.Empty(t, b.Machines(), "it has no effect")

				if kind == ledger.Echo {
					require.ErrorContains(t, err, "user-data-of-one")
					require.ErrorContains(t, err, b.Token())
				}
			})
		})
	}

	inBubble(t, oxide.Options{}, func(b *bench) {
		b.Ledger().Inject(ledger.Fault{Kind: ledger.Throttled, For: 90 * time.Second})

		status, header, _ := b.raw(request(t, b, http.MethodGet, "/v1/me", ""))
		require.Equal(t, http.StatusTooManyRequests, status)
		require.Equal(t, "90", header.Get("Retry-After"))
	})
}

func TestReplyThatIsLostIsABrokenConnection(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		b.Ledger().Inject(ledger.Fault{Kind: ledger.Lost, Op: "disk_create"})

		_, err := b.disk("data", blank(), gib)
		require.ErrorContains(t, err, ledger.ErrDisconnected.Error())
		_, err = b.disk("data", blank(), gib)
		require.ErrorIs(t, err, api.ErrObjectAlreadyExists, "it had its effect")

		b.Ledger().Inject(ledger.Fault{Kind: ledger.Hang, For: time.Hour})

		ctx, cancel := context.WithTimeout(b.ctx(), time.Minute)
		defer cancel()

		_, err = b.CurrentUserView(ctx)
		require.ErrorContains(t, err, context.DeadlineExceeded.Error())
	})
}

// TestWorkGoesOnWhenTheClientGivesUp has one that does not wait for the end of a long operation.
func TestWorkGoesOnWhenTheClientGivesUp(t *testing.T) {
	inBubble(t, oxide.Options{Durations: map[string]time.Duration{"disk_create": time.Minute}}, func(b *bench) {
		ctx, cancel := context.WithTimeout(b.ctx(), time.Second)
		defer cancel()

		_, err := b.DiskCreate(ctx, api.DiskCreateParams{Project: project, Body: &api.DiskCreate{
			Name: "data", Description: "d", Size: gib, DiskBackend: blank(),
		}})
		require.ErrorContains(t, err, context.DeadlineExceeded.Error())

		d, err := b.DiskView(b.ctx(), api.DiskViewParams{Project: project, Disk: "data"})
		require.NoError(t, err)
		require.Equal(t, api.DiskStateStateCreating, d.State.State())
		time.Sleep(time.Minute)
		require.Equal(t, "detached", b.diskState(d.Id))
	})
}
