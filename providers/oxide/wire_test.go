package oxide_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/conformance/report"
	"github.com/omni-infra/omni-infra-providers/sim/factory"
	sim "github.com/omni-infra/omni-infra-providers/sim/oxide"
	"github.com/omni-infra/omni-infra-providers/sim/oxide/guests"
)

// bin is where programs are built, a temporary directory of its own.
var bin string

func TestMain(m *testing.M) {
	code := 1

	var err error
	if bin, err = os.MkdirTemp("", "oxide-wire-test-"); err == nil {
		code = m.Run()
		err = os.RemoveAll(bin)
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}

	os.Exit(code)
}

// build builds the programs that the suite over the wire needs.
var build = sync.OnceValue(func() error {
	cmd := exec.Command("go", "build", "-o", bin+"/", "./cmd/omni-infra-provider-oxide",
		"github.com/omni-infra/omni-infra-providers/sim/cmd/oxide-sim")
	cmd.Stderr = os.Stderr

	return cmd.Run()
})

// overLoopback serves a rack of simulated Talos machines. What the provider sends, and gets, is held against Oxide's document.
func overLoopback(t *testing.T) (rack *sim.Rack, url string) {
	t.Helper()

	machines := guests.Guests{BootTime: 50 * time.Millisecond, Log: zap.NewNop()}
	rack = sim.New(sim.Options{Boot: machines.Boot, InFlight: 4, Queue: true})
	t.Cleanup(rack.Close)

	transport := rack.Transport(nil)
	if d := document(); d != nil {
		transport = d.Transport(transport, true, func(err error) { assert.NoError(t, err) })
	}

	operator := rack.OperatorHandler()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.URL.Path, "/operator/") {
			operator.ServeHTTP(w, req)

			return
		}

		resp, err := transport.RoundTrip(req)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer resp.Body.Close() //nolint:errcheck // It is in memory.

		for key, values := range resp.Header {
			w.Header()[key] = values
		}

		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body) // Who does not listen any more does not need to know.
	}))
	t.Cleanup(server.Close)

	return rack, server.URL
}

func TestProgramPassesOverTheWire(t *testing.T) {
	require.NoError(t, build())

	rack, url := overLoopback(t)
	images := &factory.Factory{Images: factory.Fake{Size: 64 << 10}}

	source := httptest.NewServer(images.Handler())
	t.Cleanup(source.Close)

	t.Setenv("OXIDE_HOST", url)
	t.Setenv("OXIDE_TOKEN", rack.Token())

	w := conformance.Wire{
		Command: []string{
			filepath.Join(bin, "omni-infra-provider-oxide"), "--provider-id", "{id}", "--image-factory", source.URL, "--lease-duration", "5s",
		},
		Hook: filepath.Join(bin, "oxide-sim"), Provider: "wire", Data: plain,
		Only:     regexp.MustCompile(`^(GO-01|LC-01|DP-02|DP-06|DT-01|DT-04|SU-03|CR-01|CR-03)$`),
		Claims:   []conformance.Feature{conformance.MatchByToken, conformance.Power, conformance.Reboot, conformance.Replace},
		Patience: time.Minute, Calm: time.Second,
		Progress: func(c report.Case) { t.Logf("%s %s %s %s %.1f s", c.ID, c.Name, c.Verdict, c.Reason, c.Seconds) },
	}

	r, err := w.Run(t.Context())
	require.NoError(t, err)

	var text bytes.Buffer

	require.NoError(t, r.WriteText(&text))
	require.True(t, r.OK(), text.String())
	require.Equal(t, 8, r.Count(report.Pass), text.String())
	require.Equal(t, 1, r.Count(report.Unseen), text.String())
	require.Empty(t, rack.Machines())
	require.Empty(t, rack.Ledger().Leaks())
}
