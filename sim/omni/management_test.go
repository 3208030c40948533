package omni_test

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/siderolabs/image-factory/pkg/schematic"

	sim "github.com/omni-infra/omni-infra-providers/sim/omni"
	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// roundTrip answers HTTP calls.
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(code int, body string) (*http.Response, error) {
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Body: io.NopCloser(strings.NewReader(body))}, nil
}

// TestSchematicsGoToTheFactory proves that Omni passes schematics on and answers with what the factory said.
func TestSchematicsGoToTheFactory(t *testing.T) {
	raw := []byte("customization:\n    systemExtensions:\n        officialExtensions:\n            - siderolabs/hello-world-service\n")

	parsed, err := schematic.Unmarshal(raw)
	require.NoError(t, err)

	id, err := parsed.ID()
	require.NoError(t, err)

	for _, tc := range []struct {
		name    string
		factory func(*http.Request) (*http.Response, error) // nil for none
		want    string                                      // an id or a part of the error
	}{
		{"without a factory the id is computed", nil, id},
		{"the factory's id counts", func(r *http.Request) (*http.Response, error) {
			body, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Equal(t, "POST http://factory.test/schematics", r.Method+" "+r.URL.String())
			require.Contains(t, string(body), "siderolabs/hello-world-service")

			return answer(http.StatusCreated, `{"id":"abc"}`)
		}, "abc"},
		{"its refusal is passed on", func(*http.Request) (*http.Response, error) {
			return answer(http.StatusBadRequest, "no such extension")
		}, "no such extension"},
		{"an answer without id is an error", func(*http.Request) (*http.Response, error) { return answer(http.StatusOK, "{}") }, "without an id"},
		{"a broken connection is an error", func(*http.Request) (*http.Response, error) { return nil, errors.New("reset") }, "reset"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var opts sim.Options

				if tc.factory != nil {
					opts.Factory = &sim.HTTPFactory{
						URL:    &url.URL{Scheme: "http", Host: "factory.test"},
						Client: &http.Client{Transport: roundTrip(tc.factory)},
					}
				}

				resp, err := provider(t, start(t, opts), "fakecloud").Management().CreateSchematicFromRaw(t.Context(), raw)
				if err != nil {
					assert.Equal(t, codes.Unknown, status.Code(err))
					assert.ErrorContains(t, err, tc.want)

					return
				}

				assert.Equal(t, tc.want, resp.GetSchematicId())
			})
		})
	}
}

func TestOmniTellsHowToJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, sim.Options{MachineAPIURL: "grpc://omni.test:8090"})

		config, err := connect(t, j.omni, j.omni.AdminKey()).Management().GetMachineJoinConfig(t.Context(), "", true)
		require.NoError(t, err)
		assert.Equal(t, []string{
			"siderolink.api=grpc://omni.test:8090?grpc_tunnel=true&jointoken=" + j.defaultToken(),
			"talos.events.sink=[fdae:41e4:649b:9303::1]:8091",
			"talos.logging.kernel=tcp://[fdae:41e4:649b:9303::1]:8092",
		}, config.GetKernelArgs())
		assert.Contains(t, config.GetConfig(), "apiUrl: grpc://omni.test:8090")
	})
}

// TestPowerOffIsAnOrderToTalos proves that Omni switches machines off through their tunnel, and none on.
func TestPowerOffIsAnOrderToTalos(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, sim.Options{})
		admin := connect(t, j.omni, j.omni.AdminKey()).Management()

		resp, err := j.join(j.request("u", j.defaultToken(), unique(t, "f", "t")))
		require.NoError(t, err)
		require.Equal(t, codes.Unavailable, status.Code(admin.MachinePowerOff(t.Context(), "u")))

		stream := j.open(resp.GetNodeAddressPrefix(), talosapi.Report{UUID: "u"})

		synctest.Wait()
		require.NoError(t, admin.MachinePowerOff(t.Context(), "u"))
		assert.Equal(t, talosapi.CommandShutdown, receive(t, stream).Command)
		assert.EqualError(t, admin.MachinePowerOn(t.Context(), "u"),
			"rpc error: code = FailedPrecondition desc = machine is not managed by a static infra provider, power on the machine manually")
	})
}

