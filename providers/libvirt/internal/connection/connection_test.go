package connection

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// daemon stands for libvirtd: it opens links that can be cut.
type daemon struct {
	down   error
	hang   atomic.Int64 // in nanoseconds
	opened atomic.Int32
	open   atomic.Int32

	mu    sync.Mutex
	links []*handle
}

// hanging takes that long to answer whoever connects.
func hanging(d time.Duration) *daemon {
	h := new(daemon)
	h.hang.Store(int64(d))

	return h
}

// handle is one connection to the daemon. A call that no test expects panics.
type handle struct {
	Connect

	daemon *daemon
	refs   atomic.Int32
	cut    atomic.Bool
}

func (h *handle) IsAlive() (bool, error)                  { return !h.cut.Load(), nil }
func (h *handle) Ref() error                              { h.refs.Add(1); return nil }
func (*handle) SetKeepAlive(int, uint) error              { return nil }
func (*handle) RegisterCloseCallback(CloseCallback) error { return nil }
func (*handle) UnregisterCloseCallback() error            { return nil }
func (*handle) DomainEventDeregister(int) error           { return nil }

func (*handle) DomainEventLifecycleRegister(Domain, DomainEventLifecycleCallback) (int, error) {
	return 0, nil
}

func (*handle) DomainEventRebootRegister(Domain, DomainEventGenericCallback) (int, error) {
	return 1, nil
}

func (h *handle) Close() (int, error) {
	left := h.refs.Add(-1)
	if left == 0 {
		h.daemon.open.Add(-1)
	}

	return int(left), nil
}

func (d *daemon) dial(string) (Connect, error) {
	d.opened.Add(1)
	time.Sleep(time.Duration(d.hang.Load()))

	if d.down != nil {
		return nil, d.down
	}

	d.open.Add(1)

	h := &handle{daemon: d}
	h.refs.Store(1)

	d.mu.Lock()
	defer d.mu.Unlock()

	d.links = append(d.links, h)

	return h, nil
}

func newTest(d *daemon, config Config) *Connection {
	config.Open = d.dial

	return New(config)
}

func nothing(Connect) error { return nil }

func TestConnectionOpensOnceForAllAndAgainWhenItBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := hanging(time.Second)
		c := newTest(d, Config{})

		defer c.Close()

		results := make(chan error, 20)

		for range 20 {
			go func() { results <- Do(t.Context(), c, "call", nothing) }()
		}

		for range 20 {
			require.NoError(t, <-results)
		}

		require.EqualValues(t, 1, d.opened.Load())

		var lost atomic.Int32

		cancel := c.Subscribe(func(e Event) {
			if e.Kind == Lost {
				lost.Add(1)
			}
		})
		defer cancel()

		d.links[0].cut.Store(true)
		require.NoError(t, Do(t.Context(), c, "call", nothing))
		synctest.Wait()
		require.EqualValues(t, 2, d.opened.Load())
		require.EqualValues(t, 1, d.open.Load(), "the broken link is closed")
		require.EqualValues(t, 1, lost.Load())
	})
}

func TestDaemonThatIsDownIsTriedWithGrowingPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{down: libvirt.Error{Code: libvirt.ERR_SYSTEM_ERROR, Message: "Failed to connect socket to '/run/x': No such file or directory"}}
		c := newTest(d, Config{URI: "qemu+unix:///system?socket=/run/x"})

		defer c.Close()

		for range 600 {
			err := Do(t.Context(), c, "look", nothing)
			require.EqualError(t, err, `look: connect to libvirt at "qemu+unix:///system?socket=/run/x": `+
				`Failed to connect socket to '/run/x': No such file or directory `+
				`(check that the daemon runs, that the URI is right, and that this user may reach it)`)
			time.Sleep(100 * time.Millisecond)
		}

		require.Less(t, d.opened.Load(), int32(20))

		d.down = nil

		time.Sleep(lastPause)
		require.NoError(t, Do(t.Context(), c, "look", nothing))
	})
}

func TestCallThatHangsEndsInTimeAndGivesUpTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(daemon)
		c := newTest(d, Config{CallTimeout: time.Minute, MaxCalls: 2})

		defer c.Close()

		release := make(chan struct{})
		hang := func(Connect) error {
			<-release

			return nil
		}

		start := time.Now()
		err := Do(t.Context(), c, `create volume "x"`, hang)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, `create volume "x": no answer from libvirt at "qemu:///system"`)
		require.Equal(t, time.Minute, time.Since(start))

		what, found := c.Unanswered(`"x"`)
		require.True(t, found)
		require.Equal(t, `create volume "x"`, what)

		// A caller that gives up says nothing about the daemon.
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		require.ErrorIs(t, Do(ctx, c, "second", hang), context.Canceled)
		require.EqualValues(t, 2, d.opened.Load())

		// Two calls are without an answer: no third is begun.
		err = Do(t.Context(), c, "third", hang)
		require.ErrorContains(t, err, "third: 2 calls to libvirt")

		close(release)
		synctest.Wait()

		_, found = c.Unanswered("")
		require.False(t, found)
		require.NoError(t, Do(t.Context(), c, "fourth", nothing))
	})
}

func TestAttemptToConnectThatHangsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := hanging(time.Hour)
		c := newTest(d, Config{CallTimeout: time.Minute})

		defer c.Close()

		start := time.Now()

		for time.Since(start) < 5*time.Minute {
			require.ErrorIs(t, Do(t.Context(), c, "look", nothing), ErrUnreachable)
			time.Sleep(time.Second)
		}

		// The daemon has come to itself, but not what was begun before that.
		d.hang.Store(0)

		time.Sleep(time.Minute + lastPause)
		require.NoError(t, Do(t.Context(), c, "look", nothing))
		require.LessOrEqual(t, d.opened.Load(), int32(7))

		time.Sleep(time.Hour)
		synctest.Wait()
		require.EqualValues(t, 1, d.open.Load(), "what comes late is not needed any more")
	})
}

func TestHungAttemptsAreNotWithoutNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := hanging(10 * time.Hour)
		c := newTest(d, Config{CallTimeout: time.Minute})

		for range 100 {
			require.ErrorIs(t, Do(t.Context(), c, "look", nothing), ErrUnreachable)
			time.Sleep(lastPause)
		}

		require.EqualValues(t, maxAttempts, d.opened.Load())

		c.Close()
		time.Sleep(10 * time.Hour)
		synctest.Wait()
		require.Zero(t, d.open.Load())
	})
}

func TestClosedConnectionOpensNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(daemon)
		c := newTest(d, Config{})

		require.NoError(t, Do(t.Context(), c, "call", nothing))
		c.Close()
		require.ErrorContains(t, Do(t.Context(), c, "call", nothing), "closed")
		require.EqualValues(t, 0, d.open.Load())
	})
}

func TestPasswordInURIIsNotShown(t *testing.T) {
	require.Equal(t, "qemu+libssh://user:xxxxx@host/system", New(Config{URI: "qemu+libssh://user:hush@host/system"}).URI())
	require.NotContains(t, New(Config{URI: "qemu+libssh://user:hush@host:port/system"}).URI(), "hush")

	const uri = "nothing://user:hush@host/"

	d := &daemon{down: libvirt.Error{Code: libvirt.ERR_NO_CONNECT, Message: "no connection driver available for " + uri}}
	c := newTest(d, Config{URI: uri})
	err := Do(t.Context(), c, "call", nothing)
	require.ErrorContains(t, err, "no connection driver available for nothing://user:xxxxx@host/")
	require.NotContains(t, err.Error(), "hush")
}

func TestErrorsOfLibvirtHaveTheirKind(t *testing.T) {
	for _, test := range []struct {
		err  libvirt.Error
		kind driver.Kind
		text string
	}{
		{libvirt.Error{Code: libvirt.ERR_NO_DOMAIN, Message: "Domain not found"}, driver.KindNotFound, "do: Domain not found"},
		{libvirt.Error{Code: libvirt.ERR_NO_STORAGE_VOL, Message: "no volume"}, driver.KindNotFound, "do: no volume"},
		{libvirt.Error{Code: libvirt.ERR_NO_STORAGE_POOL, Message: "no pool"}, driver.KindNotFound, "do: no pool"},
		{libvirt.Error{Code: libvirt.ERR_NO_NETWORK, Message: "no network"}, driver.KindNotFound, "do: no network"},
		{libvirt.Error{Code: libvirt.ERR_NO_MEMORY, Message: "out of memory"}, driver.KindCapacity, "do: out of memory"},
		{
			libvirt.Error{Code: libvirt.ERR_INTERNAL_ERROR, Message: "qemu unexpectedly closed the monitor: cannot set up guest memory 'pc.ram': Cannot allocate memory\n"},
			driver.KindCapacity, "do: qemu unexpectedly closed the monitor: cannot set up guest memory 'pc.ram': Cannot allocate memory",
		},
		{libvirt.Error{Code: libvirt.ERR_SYSTEM_ERROR, Message: "write: No space left on device"}, driver.KindCapacity, "do: write: No space left on device"},
		{libvirt.Error{Code: libvirt.ERR_OPERATION_FAILED, Message: "Not enough free space in pool for volume 'x'"}, driver.KindCapacity, "do: Not enough free space in pool for volume 'x'"},
		{
			libvirt.Error{Code: libvirt.ERR_AUTH_FAILED, Message: "authentication failed"}, driver.KindTransient,
			"do: authentication failed (libvirt refuses this user; it needs the rights to manage domains and storage)",
		},
		{libvirt.Error{Code: libvirt.ERR_NO_SUPPORT, Message: "no"}, driver.KindTransient, "do: no (this kind of libvirt connection cannot do that)"},
		{libvirt.Error{Code: libvirt.ERR_INTERNAL_ERROR, Message: "client socket is closed"}, driver.KindTransient, "do: client socket is closed"},
	} {
		got := classify("do", test.err)
		require.EqualError(t, got, test.text)
		require.Equal(t, test.kind, driver.KindOf(got), test.text)
		require.True(t, Is(got, test.err.Code), test.text)
	}

	plain := errors.New("plain")
	require.ErrorIs(t, classify("do", plain), plain)
	require.False(t, Is(plain, libvirt.ERR_NO_DOMAIN))
}

func TestBusyPoolIsTold(t *testing.T) {
	require.True(t, Busy(classify("refresh", libvirt.Error{Code: libvirt.ERR_INTERNAL_ERROR, Message: "pool 'x' has asynchronous jobs running."})))
	require.True(t, Busy(classify("refresh", libvirt.Error{Code: libvirt.ERR_RESOURCE_BUSY, Message: "busy"})))
	require.False(t, Busy(classify("refresh", libvirt.Error{Code: libvirt.ERR_INTERNAL_ERROR, Message: "else"})))
	require.False(t, Busy(nil))
}

func TestWhyAConnectionCannotBeOpenedIsSaid(t *testing.T) {
	for _, test := range []struct {
		err  libvirt.Error
		want string
	}{
		{libvirt.Error{Message: "libvirt.so.0: cannot open shared object file: No such file or directory"}, "install it: libvirt0"},
		{libvirt.Error{Code: libvirt.ERR_AUTH_FAILED, Message: "no"}, "credentials"},
		{libvirt.Error{Code: libvirt.ERR_LIBSSH, Message: "no"}, "known hosts"},
		{libvirt.Error{Code: libvirt.ERR_NO_CONNECT, Message: "no"}, "check the URI"},
		{libvirt.Error{Code: libvirt.ERR_SYSTEM_ERROR, Message: "no"}, "daemon runs"},
	} {
		require.ErrorContains(t, classifyOpen("qemu:///system", "qemu:///system", test.err), test.want)
	}
}

func TestInterceptorStandsAroundEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := errors.New("lost")
		made := 0
		c := newTest(new(daemon), Config{Intercept: func(what string, next func() error) error {
			return fmt.Errorf("%s: %w", what, errors.Join(next(), lost))
		}})

		defer c.Close()

		require.ErrorIs(t, Do(t.Context(), c, "call", func(Connect) error { made++; return nil }), lost)
		require.Equal(t, 1, made)
	})
}
