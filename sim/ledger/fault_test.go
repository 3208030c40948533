package ledger_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

func TestFaultBefallsTheCallsItIsMeantFor(t *testing.T) {
	l := ledger.New()
	s := l.Session()

	remove := l.Inject(ledger.Fault{Kind: ledger.Conflict, Op: "create", Nth: 2, Times: 2})

	var got []bool

	for _, op := range []string{"create-vm", "list", "create-vm", "create-disk", "create-vm"} {
		got = append(got, s.Call(op, "", func() error { return nil }) == nil)
	}

	require.Equal(t, []bool{true, true, false, false, true}, got)
	require.Equal(t, 3, l.CallsOf("create-vm"))

	remove()
	l.Inject(ledger.Fault{Kind: ledger.NotFound, Times: -1})()
	require.NoError(t, s.Call("create-vm", "", func() error { return nil }))
}

func TestEachKindOfFaultHasItsAnswerAndEffect(t *testing.T) {
	const patience = time.Minute

	for _, tt := range []struct {
		fault  ledger.Fault
		want   error
		after  time.Duration
		effect int
	}{
		{fault: ledger.Fault{}, effect: 1},
		{fault: ledger.Fault{Kind: ledger.Cut}, want: ledger.ErrDisconnected},
		{fault: ledger.Fault{Kind: ledger.Lost}, want: ledger.ErrDisconnected, effect: 1},
		{fault: ledger.Fault{Kind: ledger.Hang}, want: ledger.ErrDisconnected, after: 20 * time.Second},
		{fault: ledger.Fault{Kind: ledger.Hang, For: time.Hour}, want: context.DeadlineExceeded, after: patience},
		{fault: ledger.Fault{Kind: ledger.Slow, For: time.Second}, after: time.Second, effect: 1},
		{fault: ledger.Fault{Kind: ledger.Slow, For: time.Hour}, want: context.DeadlineExceeded, after: patience, effect: 1},
		{fault: ledger.Fault{Kind: ledger.Throttled, For: time.Hour}, want: &ledger.FaultError{Kind: ledger.Throttled, RetryAfter: time.Hour}},
		{fault: ledger.Fault{Kind: ledger.Full}, want: &ledger.FaultError{Kind: ledger.Full}},
	} {
		t.Run(string(tt.fault.Kind)+tt.fault.For.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ledger.New()
				struck, effects := 0, make(chan struct{}, 1)
				tt.fault.Then = func() { struck++ }
				l.Inject(tt.fault)

				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()

				start := time.Now()
				err := l.Session().CallContext(ctx, "call", "", func() error { effects <- struct{}{}; return nil })

				require.Equal(t, tt.want, err)
				require.Equal(t, tt.after, time.Since(start))
				require.Equal(t, 1, struck)
				l.Settle()
				require.Len(t, effects, tt.effect)
			})
		})
	}
}

func TestCallInQuietTimeIsAnOffence(t *testing.T) {
	for name, tt := range map[string]struct {
		pause time.Duration
		want  []string
	}{
		"at once":  {},
		"in grace": {5 * time.Second, nil},
		"too soon": {19 * time.Second, []string{"list is called 19s after the cloud had asked for 20s without calls"}},
		"in time":  {20 * time.Second, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ledger.New()
				s := l.Session()

				l.Inject(ledger.Fault{Kind: ledger.Throttled, Grace: 5 * time.Second})
				require.Error(t, s.Call("create", "", nil))
				time.Sleep(tt.pause)

				for range 2 {
					require.NoError(t, s.Call("list", "", func() error { return nil }))
				}

				require.NoError(t, l.Session().Call("list", "", func() error { return nil }), "another process knows nothing of it")
				require.Equal(t, tt.want, l.Leaks())
			})
		})
	}
}
