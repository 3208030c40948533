package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/omni/client/pkg/client"
	"github.com/siderolabs/omni/client/pkg/jointoken"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	sideropb "github.com/siderolabs/siderolink/api/siderolink"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// asOmnictl is the variable that makes the test binary omnictl itself.
const asOmnictl = "TEST_AS_OMNICTL"

func TestMain(m *testing.M) {
	if os.Getenv(asOmnictl) != "" {
		main()

		return
	}

	os.Exit(run(m))
}

// omniSim is the program under test, which run has built.
var omniSim string

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "omnictl-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // best effort

	omniSim = filepath.Join(dir, "omni-sim")
	cmd := exec.Command("go", "build", "-o", omniSim, "./cmd/omni-sim") //nolint:noctx // the test's own time limit ends it
	cmd.Dir = filepath.Join("..", "..", "..", "sim")

	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build omni-sim: %s: %s\n", err, out)

		return 1
	}

	return m.Run()
}

// server is a running omni-sim.
type server struct {
	t       *testing.T
	env     []string
	machine string // address of the machine API
	log     *bytes.Buffer
}

var joinAddress = regexp.MustCompile(`machines join at grpc://(\S+),`)

// serve starts omni-sim on free ports and returns when it is ready.
func serve(t *testing.T, args ...string) *server {
	t.Helper()

	state := t.TempDir()
	s := &server{t: t, log: &bytes.Buffer{}}

	cmd := exec.Command(omniSim, append([]string{ //nolint:noctx // it is ended by a signal
		"--listen", "127.0.0.1:0", "--machine-listen", "127.0.0.1:0", "--state-dir", state,
	}, args...)...)

	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)

	var stdout bytes.Buffer

	cmd.Stdout = &stdout
	require.NoError(t, cmd.Start())

	lines := bufio.NewScanner(stderr)
	for s.machine == "" && lines.Scan() {
		fmt.Fprintln(s.log, lines.Text())

		if m := joinAddress.FindStringSubmatch(lines.Text()); m != nil {
			s.machine = m[1]
		}
	}

	require.NotEmpty(t, s.machine, "omni-sim ended: %s", s.log)

	logged := make(chan struct{})

	go func() {
		defer close(logged)

		for lines.Scan() {
			fmt.Fprintln(s.log, lines.Text())
		}
	}()

	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		<-logged
		assert.NoError(t, cmd.Wait())

		key := strings.TrimPrefix(s.env[1], "OMNI_SERVICE_ACCOUNT_KEY=")
		assert.NotContains(t, s.log.String(), key, "the key is in the log")
		assert.Empty(t, stdout.String(), "the key is in its file, and nowhere else")
	})

	s.env = readEnv(t, filepath.Join(state, "admin.env"))

	return s
}

// readEnv reads a file of export lines that only its owner may read.
func readEnv(t *testing.T, path string) []string {
	t.Helper()

	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	data, err := os.ReadFile(path)
	require.NoError(t, err)

	var env []string
	for line := range strings.Lines(string(data)) {
		env = append(env, strings.TrimPrefix(strings.TrimSpace(line), "export "))
	}

	require.Len(t, env, 2)

	return env
}

// command returns omnictl with the administrator's key and a home of its own.
func (s *server) command(ctx context.Context, args ...string) *exec.Cmd {
	program, err := os.Executable()
	require.NoError(s.t, err)

	home := s.t.TempDir()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), asOmnictl+"=1", "HOME="+home, "TALOS_HOME="+home, "XDG_CONFIG_HOME="+home)
	cmd.Env = append(cmd.Env, s.env...)

	return cmd
}

// omnictl runs omnictl and returns what it printed.
func (s *server) omnictl(args ...string) string {
	s.t.Helper()

	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()

	out, err := s.command(ctx, args...).CombinedOutput()
	require.NoError(s.t, err, "omnictl %s: %s", strings.Join(args, " "), out)

	return string(out)
}

// await runs omnictl until it prints as many lines that contain text.
func (s *server) await(lines int, text string, args ...string) string {
	s.t.Helper()

	var out string

	require.Eventually(s.t, func() bool {
		out = s.omnictl(args...)

		return strings.Count(out, text) == lines
	}, time.Minute, 200*time.Millisecond, "omnictl %s: want %d times %q", strings.Join(args, " "), lines, text)

	return out
}

func (s *server) write(content string) string {
	path := filepath.Join(s.t.TempDir(), "resource.yaml")
	require.NoError(s.t, os.WriteFile(path, []byte(content), 0o600))

	return path
}

// set is a MachineRequestSet in the form of omnictl apply.
func set(count int) string {
	return fmt.Sprintf(`metadata:
  namespace: default
  type: MachineRequestSets.omni.sidero.dev
  id: pool
spec:
  providerid: fakecloud
  machinecount: %d
  talosversion: 1.13.5
`, count)
}

var printedEnv = regexp.MustCompile(`(?m)^(OMNI_ENDPOINT|OMNI_SERVICE_ACCOUNT_KEY)=(\S+)$`)

// provider connects with what "omnictl infraprovider create" printed.
func (s *server) provider(printed string) *client.Client {
	env := printedEnv.FindAllStringSubmatch(printed, -1)
	require.Len(s.t, env, 2, printed)

	c, err := client.New(env[0][2], client.WithServiceAccount(env[1][2]))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, c.Close()) })

	return c
}

// join lets a machine join with the provider's token.
func (s *server) join(c *client.Client, uuid, request string) {
	t := s.t

	config, err := safe.StateGetByID[*siderolink.ProviderJoinConfig](t.Context(), c.Omni().State(), "fakecloud")
	require.NoError(t, err)

	token, err := jointoken.NewWithExtraData(config.TypedSpec().Value.GetJoinToken(), jointoken.Version2, map[string]string{
		omni.LabelInfraProviderID: "fakecloud", omni.LabelMachineRequest: request,
	})
	require.NoError(t, err)

	encoded, err := token.Encode()
	require.NoError(t, err)

	unique, err := jointoken.NewNodeUniqueToken("fingerprint", "token").Encode()
	require.NoError(t, err)

	key, err := wgtypes.GeneratePrivateKey()
	require.NoError(t, err)

	conn, err := grpc.NewClient(s.machine, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)

	defer conn.Close() //nolint:errcheck // the call is over

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	_, err = sideropb.NewProvisionServiceClient(conn).Provision(ctx, &sideropb.ProvisionRequest{
		NodeUuid:        uuid,
		NodePublicKey:   key.PublicKey().String(),
		JoinToken:       &encoded,
		NodeUniqueToken: &unique,
		TalosVersion:    proto.String("v1.13.5"),
	})
	require.NoError(t, err)
}

// TestOmnictlWorksAgainstOmniSim goes through what an operator does.
func TestOmnictlWorksAgainstOmniSim(t *testing.T) {
	const uuid = "9204b267-ab33-4540-8560-5edbff05a540"

	s := serve(t)
	c := s.provider(s.omnictl("infraprovider", "create", "fakecloud"))

	require.Contains(t, s.omnictl("infraprovider", "list"), "fakecloud")

	status := infra.NewProviderStatus("fakecloud")
	status.TypedSpec().Value.Name = "Fake cloud"
	require.NoError(t, c.Omni().State().Create(t.Context(), status))
	s.await(1, "Fake cloud", "infraprovider", "list")

	watch := s.watch("get", "machinerequests", "--watch")

	s.omnictl("apply", "-f", s.write(set(2)))
	out := s.await(2, "MachineRequest ", "get", "machinerequests")
	assert.Equal(t, 2, strings.Count(out, "1.13.5"))

	s.omnictl("apply", "-f", s.write(set(3)))
	s.await(3, "MachineRequest ", "get", "machinerequests")

	for range 3 {
		require.Regexp(t, `\+ .*MachineRequest .*pool-`, <-watch)
	}

	s.omnictl("apply", "-f", s.write(set(1)))
	out = s.await(1, "MachineRequest ", "get", "machinerequests")

	request := regexp.MustCompile(`pool-\w+`).FindString(out)
	s.join(c, uuid, request)
	s.await(1, "Link ", "get", "links")
	assert.Contains(t, s.omnictl("get", "link", uuid, "-o", "yaml"), "omni.sidero.dev/machine-request: "+request)
	assert.Contains(t, s.omnictl("get", "inframachineregistrations", "-o", "json"), uuid)

	s.omnictl("delete", "link", uuid)
	s.await(0, "Link ", "get", "links")

	s.omnictl("delete", "machinerequestset", "pool")
	s.await(0, "MachineRequest ", "get", "machinerequests")
}

func TestOmnictlWorksOverTLS(t *testing.T) {
	s := serve(t, "--tls")

	assert.Equal(t, "https", s.endpoint().Scheme)
	assert.Contains(t, s.omnictl("get", "sysversion", "-o", "yaml", "--insecure-skip-tls-verify"), "backendversion: 1.9.3")
}

func (s *server) endpoint() *url.URL {
	u, err := url.Parse(strings.TrimPrefix(s.env[0], "OMNI_ENDPOINT="))
	require.NoError(s.t, err)

	return u
}

// TestOmniSimRefusesWrongFlags proves that each wrong flag is named in one line.
func TestOmniSimRefusesWrongFlags(t *testing.T) {
	for flag, want := range map[string]string{
		"--factory=factory.test":    `omni-sim: --factory "factory.test": want http or https://HOST:PORT`,
		"--machine-url=http://x":    `omni-sim: --machine-url "http://x": want grpc or https://HOST:PORT`,
		"--join-tokens-mode=odd":    `omni-sim: set up the simulated Omni: join tokens mode "odd": want strict, legacyAllowed or legacy`,
		"--defect=all":              `omni-sim: --defect "all": want unfiltered-cache or provider-removal-takes-all-sets`,
		"--listen=127.0.0.1:100000": "omni-sim: --listen: listen tcp: address 100000: invalid port",
	} {
		out, err := exec.CommandContext(t.Context(), omniSim, "--machine-listen=127.0.0.1:0", "--listen=127.0.0.1:0", flag).CombinedOutput()
		assert.Error(t, err)
		assert.Equal(t, want+"\n", string(out))
	}
}

// watch runs omnictl in the background and returns the lines that it prints after the header.
func (s *server) watch(args ...string) <-chan string {
	ctx, cancel := context.WithCancel(s.t.Context())
	cmd := s.command(ctx, args...)

	stdout, err := cmd.StdoutPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, cmd.Start())

	lines := make(chan string, 100)

	go func() {
		reader := bufio.NewReader(stdout)

		for {
			line, err := reader.ReadString('\n')
			if err != nil {
				return
			}

			if strings.Contains(line, "MachineRequest ") {
				lines <- line
			}
		}
	}()

	s.t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it is killed
	})

	return lines
}
