package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Session is the connection of one client process to the cloud. Make one for each process with Ledger.Session.
type Session struct {
	ledger *Ledger

	// The rest is guarded by ledger.mu.
	closed bool
	// quiet is how long no call may come after quietSince.
	quiet      time.Duration
	quietSince time.Time
	grace      time.Duration
}

type crash struct {
	call int
	lost bool
	kill func()
}

// Session opens a connection.
func (l *Ledger) Session() *Session {
	l.mu.Lock()
	defer l.mu.Unlock()

	s := &Session{ledger: l}
	l.sessions = append(l.sessions, s)

	return s
}

// CrashAfter plays the death of the client's process around call number n, counted from 1 as Calls does.
//
// When the reply is lost, the process dies as soon as call n has had its effect, and never sees the answer. Otherwise it sees
// the answer, does what it does with it, and dies at the moment when it makes its next call, which then has no effect.
// Either way all sessions that are open then are closed and kill is called, from the goroutine of the call. There is one
// planned crash at a time; n = 0 takes it back.
func (l *Ledger) CrashAfter(n int, lost bool, kill func()) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.crash = nil
	if n > 0 {
		l.crash = &crash{call: n, lost: lost, kill: kill}
	}
}

// LoseReply makes call number n, counted from 1 as Calls does, have its effect and answer ErrDisconnected. The session stays
// open. There is one such call at a time; n = 0 takes it back.
func (l *Ledger) LoseReply(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.losing = n
}

// Outage makes all calls answer ErrDisconnected without effect, until it is called with false. Sessions stay open.
func (l *Ledger) Outage(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.outage = on
	if on {
		l.addLocked("the cloud is out of reach")
	} else {
		l.addLocked("the cloud is in reach again")
	}
}

// Disconnect closes all open sessions.
func (l *Ledger) Disconnect() {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.disconnectLocked()
}

// Call is CallContext for a caller that waits for ever.
func (s *Session) Call(op, object string, effect func() error) error {
	return s.CallContext(context.Background(), op, object, effect)
}

// CallContext records a call with its answer around effect, which does the cloud's work, and makes it suffer the faults that
// were injected. It returns effect's error, ErrDisconnected when the session is closed by then, or that of a fault. object is
// what the call is about, empty if there is nothing to say. Effect may run after CallContext has returned, when ctx has ended.
func (s *Session) CallContext(ctx context.Context, op, object string, effect func() error) error {
	l := s.ledger

	number, line, fault, err := s.begin(op, object)
	if err != nil {
		return err
	}

	err = l.play(ctx, fault, effect)

	l.mu.Lock()

	if answer, ok := errors.AsType[*FaultError](err); ok && answer.RetryAfter > 0 {
		s.quiet, s.quietSince, s.grace = answer.RetryAfter, time.Now(), fault.Grace
	}

	text := callText(number, op, object)

	switch kill := l.dueLocked(number, true); {
	case kill != nil:
		l.setLocked(line, text+" -> done, reply lost")
		l.addLocked(fmt.Sprintf("the process dies: reply of call %d is lost", number))
		l.mu.Unlock()
		kill()

		return ErrDisconnected
	case s.closed:
		l.setLocked(line, text+" -> done, nobody listens")
		err = ErrDisconnected
	case l.losing == number:
		l.setLocked(line, text+" -> done, reply lost")
		err = ErrDisconnected
	case err != nil:
		l.setLocked(line, text+" -> "+err.Error())
	default:
		l.setLocked(line, text)
	}

	l.mu.Unlock()

	return err
}

// begin numbers and records the call, unless the session is closed or the process dies right before it.
func (s *Session) begin(op, object string) (number, line int, fault Fault, err error) {
	l := s.ledger

	l.mu.Lock()

	if s.closed || l.outage {
		l.mu.Unlock()

		return 0, 0, Fault{}, ErrDisconnected
	}

	if kill := l.dueLocked(l.calls, false); kill != nil {
		l.addLocked(fmt.Sprintf("the process dies: after call %d, before %s", l.calls, op))
		l.mu.Unlock()
		kill()

		return 0, 0, Fault{}, ErrDisconnected
	}

	defer l.mu.Unlock()

	l.calls++
	l.ops[op]++
	s.quietLocked(op)

	return l.calls, l.addLocked(callText(l.calls, op, object) + " ..."), l.faultLocked(op), nil
}

// dueLocked returns the kill function when the process has to die now, and closes the sessions. call is the last one that
// had its effect.
func (l *Ledger) dueLocked(call int, lost bool) func() {
	if l.crash == nil || l.crash.lost != lost || call < l.crash.call {
		return nil
	}

	kill := l.crash.kill
	l.crash = nil
	l.disconnectLocked()

	return kill
}

func (l *Ledger) disconnectLocked() {
	for _, s := range l.sessions {
		s.closed = true
	}

	l.sessions = nil
}

func callText(number int, op, object string) string {
	if object == "" {
		return fmt.Sprintf("%3d %s", number, op)
	}

	return fmt.Sprintf("%3d %s %s", number, op, object)
}
