package rack

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

const token = "canary-token"

// answers are a rack that answers as a test says.
type answers func(r *http.Request) (reply, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) {
	given, err := f(r)
	if err != nil {
		return nil, err
	}

	return &http.Response{StatusCode: given.status, Header: given.header, Body: io.NopCloser(strings.NewReader(given.body)), Request: r}, nil
}

type reply struct {
	status int
	header http.Header
	body   string
}

func answer(status int, body string, header ...string) reply {
	h := http.Header{"X-Request-Id": {"req-1"}}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}

	return reply{status: status, header: h, body: body}
}

func refusal(code, message string) string {
	return fmt.Sprintf(`{"error_code":%q,"message":%q,"request_id":"req-1"}`, code, message)
}

func newClient(t *testing.T, f answers, change ...func(*Config)) *Client {
	t.Helper()

	config := Config{Credentials: Credentials{Host: "https://rack.test", Token: token}, Transport: f}
	for _, c := range change {
		c(&config)
	}

	c, err := New(config)
	require.NoError(t, err)

	return c
}

func TestEveryAnswerHasItsKind(t *testing.T) {
	for _, test := range []struct {
		name     string
		response reply
		kind     driver.Kind
		want     string
	}{
		{"not found", answer(404, refusal("ObjectNotFound", "not found: instance")), driver.KindNotFound, "the rack answers 404 ObjectNotFound: not found: instance (request req-1)"},
		{"gone", answer(410, refusal("Gone", "gone")), driver.KindNotFound, "410"},
		{"exists", answer(400, refusal("ObjectAlreadyExists", "already exists")), driver.KindTransient, "already exists"},
		{"wrong state", answer(400, refusal("InvalidRequest", "cannot delete instance: instance is running")), driver.KindTransient, "is running"},
		{"quota", answer(400, refusal("InvalidRequest", "vCPU Limit Exceeded: Not enough vCPUs available")), driver.KindCapacity, "Limit Exceeded"},
		{"no address", answer(400, refusal("InvalidRequest", "No external IP addresses available")), driver.KindCapacity, "No external IP"},
		{"a name that sounds full", answer(400, refusal("InvalidRequest", "disk \"high-capacity-1-boot\" cannot be deleted")), driver.KindTransient, "cannot be deleted"},
		{"long", answer(400, refusal("InvalidRequest", strings.Repeat("é", 1<<20))), driver.KindTransient, "éé..."},
		{"full", answer(507, refusal("InsufficientCapacity", "Insufficient capacity: No sleds")), driver.KindCapacity, "507 InsufficientCapacity"},
		{"token", answer(401, refusal("Unauthorized", "credentials missing or invalid")), driver.KindTransient, "the token is not valid, or not any more"},
		{"right", answer(403, refusal("Forbidden", "Forbidden")), driver.KindTransient, "the token's user has not the right"},
		{"conflict", answer(409, refusal("Conflict", "lost a race")), driver.KindTransient, "409 Conflict"},
		{"fault", answer(500, refusal("Internal", "Internal Server Error")), driver.KindTransient, "500 Internal"},
		{"busy", answer(503, refusal("ServiceNotAvailable", "busy")), driver.KindTransient, "503"},
		{"busy for a while", answer(503, refusal("ServiceNotAvailable", "busy"), "Retry-After", "7"), driver.KindThrottled, "503"},
		{"throttled", answer(429, "", "Retry-After", "20"), driver.KindThrottled, "429"},
		{"proxy", answer(502, "<html>Bad gateway secret</html>"), driver.KindTransient, "the rack answers 502 (request req-1)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newClient(t, func(*http.Request) (reply, error) { return test.response, nil })

			_, err := c.Instance(t.Context(), "lab", "r-1")
			require.Error(t, err)
			assert.Equal(t, test.kind, driver.KindOf(err), "%v", err)
			assert.ErrorContains(t, err, `look at instance "r-1": `)
			assert.ErrorContains(t, err, test.want)
			assert.NotContains(t, err.Error(), "\n")
			assert.NotContains(t, err.Error(), "secret")
			assert.Less(t, len(err.Error()), 2<<10)
			assert.NotContains(t, err.Error(), token)
		})
	}
}

func TestNotFoundOfAListOrACreateIsAboutSomethingElse(t *testing.T) {
	c := newClient(t, func(*http.Request) (reply, error) {
		return answer(404, refusal("ObjectNotFound", "not found: project")), nil
	})

	_, listErr := c.Instances(t.Context(), "lab")
	_, createErr := c.CreateInstance(t.Context(), "lab", oxide.InstanceCreate{Name: "r-1"})

	for _, err := range []error{listErr, createErr} {
		require.ErrorContains(t, err, "is there such a thing, and may this token see it?")
		require.Equal(t, driver.KindTransient, driver.KindOf(err))
	}
}

func TestOnlyWhatIsInvalidInItselfIsTerminal(t *testing.T) {
	for code, kind := range map[string]driver.Kind{
		"InvalidRequest": driver.KindTerminal, "InvalidValue": driver.KindTerminal, "ObjectAlreadyExists": driver.KindTransient, "Conflict": driver.KindTransient,
	} {
		c := newClient(t, func(*http.Request) (reply, error) { return answer(400, refusal(code, "no")), nil })

		_, err := c.CreateDisk(t.Context(), "lab", oxide.DiskCreate{Name: "d"})
		require.Equal(t, kind, driver.KindOf(Terminal(err)), code)
		require.Equal(t, code == "ObjectAlreadyExists", Exists(err))
	}

	c := newClient(t, func(*http.Request) (reply, error) { return answer(400, refusal("InvalidRequest", "over quota")), nil })
	_, err := c.CreateDisk(t.Context(), "lab", oxide.DiskCreate{Name: "d"})
	require.Equal(t, driver.KindCapacity, driver.KindOf(Terminal(err)))
}

func TestWhatTheRackRepeatsOfSecretsIsNotShown(t *testing.T) {
	c := newClient(t, func(r *http.Request) (reply, error) {
		body, err := io.ReadAll(r.Body)

		return answer(400, refusal("InvalidRequest", r.Header.Get("Authorization")+string(body))), err
	})

	_, err := c.CreateInstance(t.Context(), "lab", oxide.InstanceCreate{Name: "r-1", UserData: "Y2FuYXJ5"})
	require.ErrorContains(t, err, "Bearer [token]")
	require.NotContains(t, err.Error(), token)
	require.NotContains(t, err.Error(), "Y2FuYXJ5")
	require.NotContains(t, fmt.Sprintf("%v %+v %#v", c.config.Credentials, c.config.Credentials, c.config.Credentials), token)
}

func TestAPartOfTheUserDataIsNotShownEither(t *testing.T) {
	data := base64.StdEncoding.EncodeToString([]byte("apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: grpc://omni?jointoken=canary\n"))

	for name, message := range map[string]string{
		"whole": data, "in its middle": `unexpected "` + data + `" at column 3`, "the beginning": "near " + data[:len(data)/2] + "...",
	} {
		c := newClient(t, func(*http.Request) (reply, error) { return answer(400, refusal("InvalidRequest", "no: "+message)), nil })

		_, err := c.CreateInstance(t.Context(), "lab", oxide.InstanceCreate{Name: "r-1", UserData: data})
		require.ErrorContains(t, err, "no: ", name)
		require.ErrorContains(t, err, "[user data]", name)
		require.NotContains(t, err.Error(), data[:24], name)
	}
}

func TestListsHaveAllPages(t *testing.T) {
	c := newClient(t, func(r *http.Request) (reply, error) {
		switch r.URL.Query().Get("page_token") {
		case "":
			return answer(200, `{"items":[{"id":"1","name":"a"}],"next_page":"two"}`), nil
		case "two":
			return answer(200, `{"items":[{"id":"2","name":"b"}],"next_page":null}`), nil
		default:
			return answer(400, refusal("InvalidRequest", "no such page")), nil
		}
	})

	all, err := c.Disks(t.Context(), "lab")
	require.NoError(t, err)
	require.Len(t, all, 2)
}

func TestNeverMoreCallsThanAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu        sync.Mutex
			now, most int
			wg        sync.WaitGroup
		)

		c := newClient(t, func(*http.Request) (reply, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()

			time.Sleep(time.Second)

			mu.Lock()
			now--
			mu.Unlock()

			return answer(200, `{"id":"1"}`), nil
		}, func(c *Config) { c.InFlight = 3 })

		began := time.Now()

		for range 30 {
			wg.Go(func() { assert.NoError(t, c.Check(t.Context())) })
		}

		wg.Wait()
		require.Equal(t, 3, most)
		require.Equal(t, 10*time.Second, time.Since(began))
	})
}

func TestNobodyCallsInAQuietTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last []time.Time

		c := newClient(t, func(*http.Request) (reply, error) {
			last = append(last, time.Now())
			if len(last) == 1 {
				return answer(429, "", "Retry-After", "20"), nil
			}

			return answer(200, `{"id":"1"}`), nil
		})

		err := c.Check(t.Context())
		require.Equal(t, driver.KindThrottled, driver.KindOf(err))
		require.Equal(t, 20*time.Second, driver.PauseOf(err))

		short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()

		err = c.Check(short)
		require.Equal(t, driver.KindPending, driver.KindOf(err), "%v", err)
		require.NoError(t, c.Check(t.Context()))
		require.Len(t, last, 2)
		require.Equal(t, 20*time.Second, last[1].Sub(last[0]))
	})
}

func TestTheLibrarysQuietTimeIsKeptToo(t *testing.T) {
	c := newClient(t, func(*http.Request) (reply, error) {
		t.Error("called")

		return answer(200, "{}"), nil
	})

	ctx := driver.WithTurn(t.Context(), func(context.Context) error { return driver.Pending(time.Minute, "quiet") })
	require.Equal(t, driver.KindPending, driver.KindOf(c.Check(ctx)), "the kind comes through Oxide's client")
}

func TestACallEndsWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, func(r *http.Request) (reply, error) {
			<-r.Context().Done()

			return reply{}, r.Context().Err()
		})

		began := time.Now()
		require.ErrorContains(t, c.Check(t.Context()), "the rack has not answered for 1m0s")
		require.Equal(t, time.Minute, time.Since(began))

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		require.ErrorIs(t, c.Check(ctx), context.Canceled)
	})
}

func TestLogsHaveBothIdsOfACallAndNoSecret(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)

	var sent string

	c := newClient(t, func(r *http.Request) (reply, error) {
		sent = r.Header.Get("X-Client-Request-Id")

		return answer(200, `{"id":"1"}`), nil
	}, func(c *Config) { c.Logger = zap.New(core) })

	require.NoError(t, c.Check(t.Context()))
	require.Len(t, logs.All(), 1)

	fields := logs.All()[0].ContextMap()
	require.NotEmpty(t, sent)
	require.Equal(t, sent, fields["call_id"])
	require.Equal(t, "req-1", fields["request_id"])
	require.NotContains(t, fmt.Sprint(fields), token)
}

func TestATokenFromAFileIsReadAgainWhenItIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("old-token\n"), 0o600))

	good := "old-token"
	c := newClient(t, func(r *http.Request) (reply, error) {
		if r.Header.Get("Authorization") != "Bearer "+good {
			return answer(401, refusal("Unauthorized", "credentials missing or invalid")), nil
		}

		return answer(200, `{"id":"1"}`), nil
	}, func(c *Config) { c.Credentials = Credentials{Host: "rack.test", TokenFile: file} })

	require.NoError(t, c.Check(t.Context()))

	good = "new-token"
	require.NoError(t, os.WriteFile(file, []byte("new-token\n"), 0o600))
	require.ErrorContains(t, c.Check(t.Context()), "the token is not valid")
	require.NoError(t, c.Check(t.Context()))
}

func TestCredentialsComeFromOneOfTheirPlaces(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))

		return path
	}

	const profiles = "[profile.lab]\nhost = \"https://lab.test\"\ntoken = \"canary-token\"\n[profile.other]\nhost = \"https://other.test\"\ntoken = \"canary-token-2\"\n"

	write("two/credentials.toml", profiles)
	write("two/config.toml", "default-profile = \"other\"\n")
	write("no-default/credentials.toml", profiles)
	write("no-default/config.toml", "")
	write("broken/credentials.toml", "[profile.lab\ntoken = canary-token")
	write("broken/config.toml", "default-profile = \"lab\"\n")
	write("half/credentials.toml", "[profile.lab]\ntoken = \"canary-token\"\n")

	for _, test := range []struct {
		name string
		c    Credentials
		host string
		want string
	}{
		{"host and token", Credentials{Host: "https://rack.test", Token: token}, "https://rack.test/", ""},
		{"host without scheme", Credentials{Host: "rack.test", Token: token}, "https://rack.test/", ""},
		{"token file", Credentials{Host: "https://rack.test", TokenFile: write("token", token+"\n")}, "https://rack.test/", ""},
		{"profile", Credentials{Profile: "lab", ConfigDir: filepath.Join(dir, "two")}, "https://lab.test/", ""},
		{"default profile", Credentials{ConfigDir: filepath.Join(dir, "two")}, "https://other.test/", ""},
		{"nothing", Credentials{ConfigDir: filepath.Join(dir, "nowhere")}, "", "no rack is given: want --oxide-host and OXIDE_TOKEN, or a profile"},
		{"no token", Credentials{Host: "https://rack.test"}, "", "want OXIDE_TOKEN in the environment"},
		{"no host", Credentials{Token: token}, "", "want --oxide-host or OXIDE_HOST"},
		{"profile and host", Credentials{Profile: "lab", Host: "https://rack.test"}, "", "both a profile and a host or token"},
		{"two tokens", Credentials{Host: "https://rack.test", Token: token, TokenFile: "x"}, "", "both OXIDE_TOKEN and a token file"},
		{"password", Credentials{Host: "https://u:canary-token@rack.test", Token: token}, "", "user and password cannot be part of its URL"},
		{"missing file", Credentials{Host: "https://rack.test", TokenFile: filepath.Join(dir, "none")}, "", "read the token for the rack"},
		{"two lines", Credentials{Host: "https://rack.test", TokenFile: write("lines", token+"\nx")}, "", "does not hold a token and nothing else"},
		{"unknown profile", Credentials{Profile: "x", ConfigDir: filepath.Join(dir, "two")}, "", `has no profile "x"`},
		{"no default", Credentials{ConfigDir: filepath.Join(dir, "no-default")}, "", "names no default profile"},
		{"broken file", Credentials{ConfigDir: filepath.Join(dir, "broken")}, "", "cannot be used"},
		{"half a profile", Credentials{Profile: "lab", ConfigDir: filepath.Join(dir, "half")}, "", "cannot be used"},
		{"host that is none", Credentials{Host: "https://%zz", Token: token}, "", "is no URL"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := New(Config{Credentials: test.c})
			if test.want == "" {
				require.NoError(t, err)
				require.Equal(t, test.host, c.api.Load().Host())

				return
			}

			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error(), token)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestCertificatesOfAnAuthorityOfOnesOwnAreRead(t *testing.T) {
	dir := t.TempDir()
	none := filepath.Join(dir, "none.pem")
	require.NoError(t, os.WriteFile(none, []byte("nothing"), 0o600))

	_, err := New(Config{Credentials: Credentials{Host: "rack.test", Token: token}, CAFile: none})
	require.ErrorContains(t, err, "has no certificate in PEM form")
	_, err = New(Config{Credentials: Credentials{Host: "rack.test", Token: token}, CAFile: filepath.Join(dir, "missing")})
	require.ErrorContains(t, err, "no such file")
}

func TestRetryAfterIsBounded(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 10 * time.Second, "7": 7 * time.Second, "0": time.Second, "-5": time.Second, "99999999999999999999": 10 * time.Second, "86400": 10 * time.Minute,
		"soon": 10 * time.Second, "Thu, 01 Jan 1970 00:00:00 GMT": time.Second,
	} {
		require.Equal(t, want, pauseOf(http.Header{"Retry-After": {text}}), text)
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add(400, refusal("InvalidRequest", "x"), "3")
	f.Add(200, `{"items":[{"state":{"state":"detached"}}]}`, "")
	f.Add(503, "<html>", "soon")

	f.Fuzz(func(t *testing.T, status int, body, after string) {
		if status < 100 || status > 999 || strings.ContainsAny(after, "\r\n") {
			return
		}

		c := newClient(t, func(*http.Request) (reply, error) { return answer(status, body, "Retry-After", after), nil })

		if err := c.Check(t.Context()); err != nil {
			require.NotContains(t, err.Error(), token)
		}
	})
}
