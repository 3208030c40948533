package ledger_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

func nothing() error { return nil }

func TestHistoryTellsCallsAndAnswersOnTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ledger.New()
		s := l.Session()

		require.NoError(t, s.Call("create-vm", "vm-1", nothing))
		time.Sleep(90 * time.Minute)
		require.EqualError(t, s.Call("start-vm", "vm-1", func() error { return errors.New("no room") }), "no room")
		l.Note("operator pulls the plug")

		require.Equal(t, "00:00:00.000   1 create-vm vm-1\n01:30:00.000   2 start-vm vm-1 -> no room\n"+
			"01:30:00.000 operator pulls the plug\n", l.History())
		require.Equal(t, 2, l.Calls())
	})
}

func TestLeaksAreTheObjectsThatMayNotStay(t *testing.T) {
	l := ledger.New()
	l.Made(ledger.Object{Kind: "vm", ID: "vm-1", Name: "a"})
	l.Made(ledger.Object{Kind: "volume", ID: "vol-1"})
	l.Made(ledger.Object{Kind: "image", ID: "img-1", Keep: true})
	l.Gone("vm", "vm-1")

	require.Equal(t, []string{"volume vol-1 is left"}, l.Leaks())

	l.Gone("volume", "vol-1")
	require.Empty(t, l.Leaks())
	require.Len(t, l.Objects(), 1)
}

func TestExposedSecretIsALeakAndIsNotRepeated(t *testing.T) {
	l := ledger.New()
	l.Note("early-canary")
	require.NoError(t, l.Secret("first", "early-canary"))
	require.Equal(t, []string{`secret "first" is in the history`}, l.Leaks())
	require.ErrorContains(t, l.Secret("short", "abc"), "at least 8")
	require.NoError(t, l.Secret("join token", "canary-4711"))

	l.Scan("the log", "nothing here")
	require.Len(t, l.Leaks(), 1)

	l.Scan("the log", "token=canary-4711")
	require.NoError(t, l.Session().Call("create-vm", "vm-canary-4711", nothing))

	leaks := strings.Join(l.Leaks(), "\n")
	require.Contains(t, leaks, `secret "join token" is in the log`)
	require.Contains(t, leaks, `secret "join token" is in the history`)
	require.NotContains(t, leaks, "4711")
}

func TestCrashCutsTheProcessOffAtTheChosenCall(t *testing.T) {
	for _, tt := range []struct {
		name        string
		lost        bool
		wantEffects int
	}{
		{name: "reply lost: the call has its effect but no answer", lost: true, wantEffects: 2},
		{name: "reply delivered: the next call has no effect", lost: false, wantEffects: 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := ledger.New()
			s := l.Session()
			effects, kills := 0, 0
			call := func(s *ledger.Session) error { return s.Call("op", "", func() error { effects++; return nil }) }

			l.CrashAfter(2, tt.lost, func() { kills++ })

			require.NoError(t, call(s))

			if tt.lost {
				require.ErrorIs(t, call(s), ledger.ErrDisconnected)
			} else {
				require.NoError(t, call(s))
				require.Zero(t, kills)
				require.ErrorIs(t, call(s), ledger.ErrDisconnected)
			}

			require.ErrorIs(t, call(s), ledger.ErrDisconnected, "a dead process makes no calls")
			require.Equal(t, 1, kills)
			require.Equal(t, tt.wantEffects, effects)
			require.NoError(t, call(l.Session()), "the restarted process has a session of its own")
		})
	}
}

func TestCallThatRunsDuringTheCrashGetsNoAnswer(t *testing.T) {
	l := ledger.New()
	s := l.Session()

	err := s.Call("slow", "", func() error {
		l.Disconnect()

		return nil
	})

	require.ErrorIs(t, err, ledger.ErrDisconnected)
	require.Contains(t, l.History(), "nobody listens")
}

func TestLostReplyLeavesTheSessionOpen(t *testing.T) {
	l := ledger.New()
	s := l.Session()
	effects := 0
	call := func() error { return s.Call("op", "", func() error { effects++; return nil }) }

	l.LoseReply(2)
	require.NoError(t, call())
	require.ErrorIs(t, call(), ledger.ErrDisconnected)
	require.NoError(t, call())
	require.Equal(t, 3, effects)
	require.Contains(t, l.History(), "2 op -> done, reply lost")
}

func TestOutageLetsNoCallThrough(t *testing.T) {
	l := ledger.New()
	s := l.Session()
	effects := 0
	call := func() error { return s.Call("op", "", func() error { effects++; return nil }) }

	l.Outage(true)
	require.ErrorIs(t, call(), ledger.ErrDisconnected)
	l.Outage(false)
	require.NoError(t, call())
	require.Equal(t, 1, effects)
	require.Equal(t, 1, l.Calls())
}

func TestNotifyTellsOfObjectsAndNeverBlocks(t *testing.T) {
	l := ledger.New()
	changed := make(chan struct{}, 1)

	l.Notify(changed)
	l.Made(ledger.Object{Kind: "vm", ID: "vm-1"})
	l.Made(ledger.Object{Kind: "vm", ID: "vm-2"})
	<-changed
	l.Gone("vm", "vm-1")
	<-changed
	l.Notify(nil)
	l.Gone("vm", "vm-2")
	require.Empty(t, changed)
}

func TestHistoryHasTheNameOfASecretInItsPlace(t *testing.T) {
	l := ledger.New()
	l.Note("token is %s", "hush-hush-hush")
	require.NoError(t, l.Secret("join token", "hush-hush-hush"))

	require.NotContains(t, l.History(), "hush")
	require.Contains(t, l.History(), "token is [join token]")
	require.Equal(t, "a [join token] b", l.Redact("a hush-hush-hush b"))
	require.Equal(t, []string{`secret "join token" is in the history`}, l.Leaks())
}

func TestBooksOfARealCloudLookWhatThereIs(t *testing.T) {
	l := ledger.New()
	there := []ledger.Object{{Kind: "vm", ID: "vm-1"}, {Kind: "image", ID: "img-1", Keep: true}}

	l.Look(func() []ledger.Object { return there })
	require.Equal(t, there, l.Objects())
	require.Equal(t, []string{"vm vm-1 is left"}, l.Leaks())

	there = nil
	require.Empty(t, l.Leaks())
}
