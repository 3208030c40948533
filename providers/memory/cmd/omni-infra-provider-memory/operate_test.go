package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	omnires "github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	"github.com/omni-infra/omni-infra-providers/shared/runner"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// patience bounds every wait.
const patience = time.Minute

// site is a simulated Omni on loopback that knows the provider, whose settings are in the environment of the test.
type site struct {
	t    *testing.T
	omni *omni.Omni
}

func newSite(t *testing.T) *site {
	t.Helper()

	listen := func() net.Listener {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)

		return l
	}

	api, machines := listen(), listen()
	endpoint := "http://" + api.Addr().String()

	o, err := omni.New(omni.Options{APIURL: endpoint, MachineAPIURL: "grpc://" + machines.Addr().String()})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)

	go func() { ended <- o.Run(ctx) }()
	go func() { ended <- o.Serve(ctx, api, machines) }()

	t.Cleanup(func() {
		cancel()
		assert.NoError(t, errors.Join(<-ended, <-ended))
		assert.Empty(t, o.Unmodelled())
	})

	key, err := o.CreateProvider(ctx, "memory")
	require.NoError(t, err)
	t.Setenv("OMNI_ENDPOINT", endpoint)
	t.Setenv("OMNI_SERVICE_ACCOUNT_KEY", key)

	return &site{t: t, omni: o}
}

// log is what a provider writes.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.text.String()
}

// start runs the provider until the returned function is called.
func (s *site) start(args ...string) (l *log, stop func()) {
	s.t.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	l = &log{}
	ended := make(chan error, 1)

	go func() { ended <- runner.Execute(ctx, program, append([]string{"--boot-seconds", "0"}, args...), l, l) }()

	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(s.t, <-ended)
	})
	s.t.Cleanup(stop)

	return l, stop
}

// command runs a command of the program and returns what it printed.
func (s *site) command(args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()

	var out, errs bytes.Buffer

	err = runner.Execute(ctx, program, args, &out, &errs)

	return out.String(), errs.String(), err
}

func (s *site) run(args ...string) string {
	s.t.Helper()

	out, errs, err := s.command(args...)
	require.NoError(s.t, err, errs)

	return out
}

// machines is what "machines list" shows.
func (s *site) machines() []lifecycle.MachineInfo {
	s.t.Helper()

	var infos []lifecycle.MachineInfo

	require.NoError(s.t, json.Unmarshal([]byte(s.run("machines", "list", "-o", "json")), &infos))

	return infos
}

func (s *site) await(what string, ok func() bool) {
	s.t.Helper()
	require.Eventually(s.t, ok, patience, 100*time.Millisecond, what)
}

func (s *site) request(id string) {
	r := infra.NewMachineRequest(id)
	r.Metadata().Labels().Set(omnires.LabelInfraProviderID, "memory")
	r.TypedSpec().Value.TalosVersion = "1.13.5"
	require.NoError(s.t, s.omni.State().Create(s.t.Context(), r))
}

func (s *site) update(res resource.Resource, change func(resource.Resource), opts ...state.UpdateOption) {
	_, err := s.omni.State().UpdateWithConflicts(s.t.Context(), res.Metadata(), func(r resource.Resource) error {
		change(r)

		return nil
	}, opts...)
	require.NoError(s.t, err)
}

func TestOperatorLooksAtMachinesAndSwitchesThem(t *testing.T) {
	s := newSite(t)

	out, _, err := s.command("machines", "power-off", "a")
	require.ErrorContains(t, err, `no provider "memory" is running: Omni has no heartbeat of it; start it, or leave the wish for it with --no-wait`)
	assert.Empty(t, out)

	s.start()
	s.request("a")
	s.request("b")
	s.await("both machines join", func() bool {
		infos := s.machines()

		return len(infos) == 2 && infos[0].Joined && infos[0].Power == "on" && infos[1].Power == "on"
	})

	table := strings.Split(s.run("machines", "list"), "\n")
	assert.Regexp(t, `^REQUEST +UUID +MACHINE +POWER +ADDRESS +STAGE +PHASE +AGE +ERROR$`, table[0])
	assert.Regexp(t, `^a +[0-9a-f-]{36} +vm-\d+ +on +- +provisioned +Provision Complete +\d+s +-$`, table[1])
	assert.Contains(t, s.run("machines", "list", "-o", "yaml"), "stage: provisioned")

	assert.Equal(t, "a: off\nb: off\n", s.run("machines", "power-off", "a", "b"))
	assert.Equal(t, "off", s.machines()[0].Power)

	_, _, err = s.command("machines", "reboot", "a")
	require.EqualError(t, err, `reboot of the machine of "a": it is off; switch it on instead`)

	assert.Equal(t, "b: on\n", s.run("machines", "power-on", "b"))
	s.await("it joins again", func() bool { return s.machines()[1].Joined })
	assert.Equal(t, "b: rebooted\n", s.run("machines", "reboot", "b"))

	out, _, err = s.command("machines", "power-on", "a", "c")
	require.EqualError(t, err, `power on of the machine of "c": provider "memory" has no such machine request; there are a, b`)
	assert.Equal(t, "a: on\n", out, "what is refused for one says nothing of the other")

	s.update(infra.NewMachineRequest("a"), func(r resource.Resource) { r.Metadata().Annotations().Set(lifecycle.PowerAnnotation, "on") })
	_, _, err = s.command("machines", "power-off", "a")
	require.ErrorContains(t, err, "the annotation omni-infra.dev/power of the machine request decides that")
}

func TestWishIsLeftForAProviderThatIsNotRunning(t *testing.T) {
	s := newSite(t)
	_, stop := s.start()

	s.request("a")
	s.await("the machine joins", func() bool { infos := s.machines(); return len(infos) == 1 && infos[0].Power == "on" })
	stop()

	assert.Equal(t, "a: left for the provider\n", s.run("machines", "power-off", "--no-wait", "a"))

	_, _, err := s.command("machines", "power-off", "--timeout", "1s", "a")
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "\n")
}

func TestConfigurationInOmniReachesTheRunningProvider(t *testing.T) {
	s := newSite(t)
	log, _ := s.start()
	said := func(text string) { s.await(text, func() bool { return strings.Contains(log.String(), text) }) }
	said("provider is running")

	configure := func(text string) {
		s.update(infra.NewProvider("memory"), func(r resource.Resource) {
			r.Metadata().Labels().Set(omnires.LabelInfraProviderID, "memory")
			r.Metadata().Annotations().Set(runner.ConfigAnnotation, text)
		})
	}

	s.request("a")
	s.await("the machine joins", func() bool { infos := s.machines(); return len(infos) == 1 && infos[0].Power == "on" })

	configure(`{"provider":{"name":"From Omni","concurrency":4}}`)
	said(`{"changed": ["provider.concurrency", "provider.name"]}`)

	configure(`{"memory":{"max_machine":4}}`)
	said(`did you mean \"max_machines\"?`)

	configure(`{"log":{"level":"debug"},"provider":{"name":"From Omni","concurrency":4}}`)
	said(`{"changed": ["log.level"]}`)

	assert.Equal(t, "on", s.machines()[0].Power, "the cloud is the same one")
	assert.Equal(t, 1, strings.Count(log.String(), "machine provisioned"))
	assert.NotContains(t, log.String(), "vanished")
}

func TestCommandsTellWhatIsWrongInOneLine(t *testing.T) {
	t.Setenv("OMNI_ENDPOINT", "")
	t.Setenv("OMNI_SERVICE_ACCOUNT_KEY", "")

	s := &site{t: t}

	for _, tt := range []struct{ name, args, want string }{
		{"no Omni", "machines list", "OMNI_ENDPOINT is required"},
		{"no request", "machines reboot", "requires at least 1 arg"},
		{"unknown command", "machines stop", `unknown command "stop"`},
		{"unknown output", "machines list -o xml", `--output "xml": want table, json or yaml`},
		{"timeout", "machines reboot --timeout 0s a", "--timeout 0s: want a time as 2m"},
		{"no file", "validate /nonexistent/class.yaml", "/nonexistent/class.yaml: no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, _, err := s.command(strings.Fields(tt.args)...)
			require.ErrorContains(t, err, tt.want)
			assert.Empty(t, out)
		})
	}

	for _, command := range []string{"machines", "machines list", "machines power-on", "machines power-off", "machines reboot", "sweep", "schema", "validate", "version"} {
		help := s.run(append(strings.Fields(command), "--help")...)
		assert.Contains(t, help, "omni-infra-provider-memory "+command)

		if command != "machines" {
			assert.Contains(t, help, "Examples:", command)
		}
	}

	assert.Equal(t, s.run("version"), s.run("--version"))
}
