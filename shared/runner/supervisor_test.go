package runner

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestConfigurationInOmniIsFollowedWithoutARestart(t *testing.T) {
	onBench(t, nil, func(b *bench) {
		opened, _ := b.connections()
		require.Equal(t, []string{"cloud:///default"}, opened)
		require.Equal(t, "Site", b.name())

		b.configure(`{"site":{"uri":"cloud:///omni"},"provider":{"name":"From Omni"}}`)

		opened, closed := b.connections()
		assert.Equal(t, []string{"cloud:///default", "cloud:///omni"}, opened)
		assert.Equal(t, []string{"cloud:///default"}, closed)
		assert.Equal(t, "From Omni", b.name())
		assert.Equal(t, []string{"provider.name", "site.uri"}, b.changed())

		b.configure("")
		opened, closed = b.connections()
		assert.Equal(t, []string{"cloud:///default", "cloud:///omni", "cloud:///default"}, opened)
		assert.Equal(t, []string{"cloud:///default", "cloud:///omni"}, closed)
		assert.Equal(t, "Site", b.name())
		assert.Empty(t, b.health())
	})
}

func TestFlagBeatsOmniAndOmniBeatsDefault(t *testing.T) {
	onBench(t, []string{"--site-uri", "cloud:///flag", "--pool", "a", "--pool", "b"}, func(b *bench) {
		b.configure(`{"site":{"uri":"cloud:///omni","pools":["c"]},"provider":{"concurrency":3}}`)

		opened, _ := b.connections()
		assert.Equal(t, []string{"cloud:///flag"}, opened)
		assert.Equal(t, []string{"a", "b"}, b.sup.settings.config.Pools)
		assert.Equal(t, 3, b.sup.settings.Provider.Concurrency)
		assert.Equal(t, []string{"provider.concurrency"}, b.changed())
	})
}

func TestFileBeatsOmniKeyByKey(t *testing.T) {
	file := write(t, "provider: {name: From file}\nsite: {pools: [a]}\n")

	onBench(t, []string{"--config-file", file}, func(b *bench) {
		b.configure(`{"site":{"uri":"cloud:///omni","pools":["c"]},"provider":{"name":"From Omni","description":"From Omni"}}`)

		assert.Equal(t, siteConfig{URI: "cloud:///omni", Pools: []string{"a"}}, b.sup.settings.config)
		assert.Equal(t, "From file", b.name())
		assert.Equal(t, []string{"provider.description", "site.uri"}, b.changed())

		told := b.logs.FilterMessage("settings in Omni are overridden by flags, environment or file").All()
		require.Len(t, told, 1)
		assert.Equal(t, []any{"provider.name", "site.pools"}, told[0].ContextMap()["overridden"])
	})
}

func TestLogLevelChangesWithoutAnEnd(t *testing.T) {
	onBench(t, nil, func(b *bench) {
		engine := b.sup.engine

		b.configure(`{"log":{"level":"debug"}}`)
		assert.Equal(t, zapcore.DebugLevel, b.sup.level.Level())
		assert.Same(t, engine, b.sup.engine)

		// The driver is kept when its own settings are, and with it what it keeps in memory.
		b.configure(`{"provider":{"concurrency":4}}`)
		assert.Equal(t, zapcore.InfoLevel, b.sup.level.Level())
		assert.NotSame(t, engine, b.sup.engine)

		opened, closed := b.connections()
		assert.Len(t, opened, 1)
		assert.Empty(t, closed)
	})
}

func TestBadConfigurationNeverStopsARunningProvider(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"unknown field", `{"site":{"url":"cloud:///x"}}`, `section site: invalid configuration: url: unknown field; did you mean "uri"?`},
		{"unknown section", `{"sites":{}}`, `sites: unknown field`},
		{"wrong type", `{"provider":{"concurrency":"canary"}}`, `provider.concurrency: got the text "canary", want a whole number from 1 to 256`},
		{"out of range", `{"provider":{"concurrency":0}}`, "provider.concurrency: got the number 0"},
		{"not JSON", `provider: {}`, "is not one JSON object"},
		{"a list", `[]`, "is not one JSON object"},
		{"null", `null`, "is not one JSON object"},
		{"two objects", `{} {}`, "is not one JSON object"},
		{"cut off", `{"provider":{`, "is not one JSON object"},
		{"secret", `{"site":{"password":"canary-secret"}}`, "password: this is a secret, which is not taken from here"},
		{"how to reach Omni", `{"omni":{"endpoint":"https://other.test"}}`, "omni: this is not taken from here"},
		{"provider id", `{"provider":{"id":"other"}}`, "provider.id: this is not taken from here"},
		{"URL", `{"image_factory":"factory"}`, "image factory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onBench(t, nil, func(b *bench) {
				b.configure(`{"site":{"uri":"cloud:///good"}}`)

				engine := b.sup.engine

				b.configure(tt.text)
				b.wait(time.Hour)

				assert.Same(t, engine, b.sup.engine, "it goes on with the last good one")
				assert.Equal(t, "cloud:///good", b.sup.settings.config.URI)
				assert.Contains(t, b.health(), tt.want)
				assert.NotContains(t, b.health(), "canary-secret")

				told := b.logs.FilterMessage("configuration is not taken").All()
				require.Len(t, told, 1, "the log has it once")
				assert.Contains(t, told[0].ContextMap()["error"], tt.want)

				code, body := b.healthz()
				assert.Equal(t, http.StatusOK, code)
				assert.Contains(t, body, "the last good one is in use")

				b.configure(`{"site":{"uri":"cloud:///better"}}`)
				b.wait(time.Minute)
				assert.Equal(t, "cloud:///better", b.sup.settings.config.URI)
				assert.Empty(t, b.health())

				_, body = b.healthz()
				assert.Equal(t, "ok\n", body)

				for _, entry := range b.logs.All() {
					assert.NotContains(t, fmt.Sprint(entry.Message, entry.ContextMap()), "canary-secret")
				}
			})
		})
	}
}

func TestBadConfigurationAtTheStartIsWaitedOut(t *testing.T) {
	onBench(t, nil, func(b *bench) {
		b.wait(time.Minute)

		opened, _ := b.connections()
		assert.Empty(t, opened)
		assert.Contains(t, b.health(), `did you mean "uri"?`)

		code, _ := b.healthz()
		assert.Equal(t, http.StatusServiceUnavailable, code)

		b.configure(`{"site":{"uri":"cloud:///omni"}}`)
		b.wait(time.Minute)

		opened, _ = b.connections()
		assert.Equal(t, []string{"cloud:///omni"}, opened)
		assert.Empty(t, b.health())

		code, _ = b.healthz()
		assert.Equal(t, http.StatusOK, code)
	}, func(b *bench) { b.configure(`{"site":{"url":"cloud:///omni"}}`) })
}

func TestCloudThatDoesNotAnswerIsNotMovedTo(t *testing.T) {
	onBench(t, nil, func(b *bench) {
		b.site.down["cloud:///new"] = errors.New("connection refused")
		b.configure(`{"site":{"uri":"cloud:///new"}}`)
		b.wait(5 * time.Minute)
		assert.Equal(t, "cloud:///default", b.sup.settings.config.URI)
		assert.Contains(t, b.health(), "connection refused")

		b.site.mu.Lock()
		b.site.down = nil
		b.site.mu.Unlock()

		b.wait(time.Minute)
		assert.Equal(t, "cloud:///new", b.sup.settings.config.URI, "it moves by itself once the cloud answers")
		assert.Empty(t, b.health())
	})
}

func TestDriverThatPanicsOrDoesNotEndKeepsTheRunningOne(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		check      func()
	}{
		{"panics", "internal error of the provider, please report it: panic: no such cloud", func() { panic("no such cloud") }},
		{"does not end", "making the driver and asking its cloud has not ended after 35s", func() { time.Sleep(time.Hour) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onBench(t, nil, func(b *bench) {
				b.site.mu.Lock()
				b.site.check = func(uri string) {
					if uri == "cloud:///new" {
						tt.check()
					}
				}
				b.site.mu.Unlock()

				b.configure(`{"site":{"uri":"cloud:///new"}}`)
				b.wait(time.Minute)
				assert.Equal(t, "cloud:///default", b.sup.settings.config.URI)
				assert.Contains(t, b.health(), tt.want)

				b.configure("")
				b.wait(2 * time.Hour)
				assert.Empty(t, b.health())
				assert.Subset(t, b.site.closed, []string{"cloud:///new"}, "what was opened is closed, however late")
			})
		})
	}
}

func TestCloudThatDoesNotAnswerAtTheStartIsWaitedForWhenOmniNamesIt(t *testing.T) {
	refuse := func(b *bench) { b.site.down["cloud:///omni"] = errors.New("connection refused") }

	onBench(t, nil, func(b *bench) {
		b.wait(time.Minute)
		assert.Contains(t, b.health(), "connection refused")
		b.configure("")
		assert.Equal(t, "cloud:///default", b.sup.settings.config.URI)
	}, refuse, func(b *bench) { b.configure(`{"site":{"uri":"cloud:///omni"}}`) })

	onBench(t, []string{"--site-uri", "cloud:///omni"}, func(b *bench) {
		select {
		case err := <-b.done:
			require.ErrorContains(t, err, "cannot start: connection refused")
			b.done <- nil
		default:
			require.Fail(t, "nothing in Omni can mend it, so the program ends")
		}
	}, refuse)
}

func TestWatchThatWasCutIsOpenedAgain(t *testing.T) {
	onBench(t, nil, func(b *bench) {
		b.configure(`{"provider":{"name":"One"}}`)
		b.gate.mu.Lock()
		b.gate.fails = errors.New("unavailable")
		b.gate.mu.Unlock()
		b.gate.cutWatch()
		b.wait(time.Minute)
		assert.Equal(t, "One", b.name(), "Omni out of reach changes nothing")
		b.configure(`{"provider":{"name":"Two"}}`)

		b.gate.mu.Lock()
		b.gate.fails = nil
		b.gate.mu.Unlock()

		b.wait(time.Minute)
		assert.Equal(t, "Two", b.name())
	})
}

func TestLabelThatWasTakenAwayIsNoticed(t *testing.T) {
	onBench(t, nil, func(b *bench) {
		b.configure(`{"provider":{"name":"One"}}`)
		require.Equal(t, "One", b.name())

		b.unlabel()
		b.wait(2 * time.Minute)
		assert.Equal(t, "Site", b.name(), "Omni does not tell of it, so it is looked for")
	})
}

func TestQuietProviderAsksOmniSeldom(t *testing.T) {
	onBench(t, nil, func(b *bench) {
		b.wait(time.Hour)
		assert.Less(t, b.gate.gets, 70)
	})
}

func TestHealthPagesStayWhereTheyAreUntilTheirAddressChanges(t *testing.T) {
	s := newStatus(zap.NewNop())
	defer func() { s.stop() }()

	get := func(url string) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", nil)
		require.NoError(t, err)

		res, err := http.DefaultClient.Do(req)
		if err == nil {
			assert.Equal(t, http.StatusOK, res.StatusCode)
			require.NoError(t, res.Body.Close())
		}

		return err
	}

	free := func() string {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, l.Close())

		return l.Addr().String()
	}

	one, two := free(), free()

	require.NoError(t, s.serve(t.Context(), one))
	require.NoError(t, s.serve(t.Context(), one))
	require.NoError(t, get("http://"+one))

	require.ErrorContains(t, s.serve(t.Context(), "127.0.0.1:99999"), "--listen 127.0.0.1:99999")
	require.NoError(t, get("http://"+one), "what cannot be listened to changes nothing")

	require.NoError(t, s.serve(t.Context(), two))
	require.NoError(t, get("http://"+two))
	require.Error(t, get("http://"+one))

	require.NoError(t, s.serve(t.Context(), ""))
	require.Error(t, get("http://"+two))
}

func TestSettingThatIsAStructOfItsOwnIsFollowed(t *testing.T) {
	onBench(t, nil, func(b *bench) {
		b.configure(`{"site":{"network":"198.51.100.0/24"}}`)
		assert.Equal(t, "198.51.100.0/24", b.sup.settings.config.Network.String())
		assert.Equal(t, []string{"site.network"}, b.changed())

		opened, _ := b.connections()
		assert.Len(t, opened, 2)
	})
}

func TestConfigurationThatIsNotTakenMovesNoPages(t *testing.T) {
	onBench(t, nil, func(b *bench) {
		b.site.down["cloud:///new"] = errors.New("connection refused")
		b.configure(`{"listen":"127.0.0.1:0","site":{"uri":"cloud:///new"}}`)
		b.wait(time.Minute)
		require.Contains(t, b.health(), "connection refused")
		assert.Empty(t, b.sup.status.address)

		b.configure("")
		b.wait(time.Hour)
		assert.Empty(t, b.sup.status.address)
		assert.Empty(t, b.health())
	})
}
