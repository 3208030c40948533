package connection

import (
	"fmt"
	"sync/atomic"

	"libvirt.org/go/libvirt"
)

// A link that has been silent for keepaliveInterval seconds is probed; after keepaliveCount probes without a reply it is dead.
const (
	keepaliveInterval = 5
	keepaliveCount    = 4
)

// link is one open connection.
type link struct {
	conn Connect
	// alive says, without a call to the daemon, whether the connection stands.
	alive func() bool
	// hold keeps the connection's memory until release is called, also when the link is closed meanwhile.
	hold func() (release func(), err error)
	// turn is held by the call that is under way, where the client library takes only one at a time; nil where it takes many.
	turn chan struct{}
	// close gives up the connection. It may take as long as the daemon does.
	close func()
}

// openLink opens a connection and passes the daemon's events to report.
func openLink(open func(uri string) (Connect, error), uri string, report func(Event)) (*link, error) {
	conn, err := open(uri)
	if err != nil {
		return nil, err
	}

	var lost atomic.Bool

	// Drivers inside the process know neither keepalive nor close callbacks, and need none.
	_ = conn.SetKeepAlive(keepaliveInterval, keepaliveCount)
	closeCallback := conn.RegisterCloseCallback(func(Connect, libvirt.ConnectCloseReason) {
		lost.Store(true)
		report(Event{Kind: Lost})
	}) == nil

	callbacks, err := registerEvents(conn, report)

	var turn chan struct{}
	if _, ok := conn.(realConnect); ok && oneCallAtATime() {
		turn = make(chan struct{}, 1)
	}

	// Each registered callback holds the connection open.
	closeAll := func() {
		if turn != nil {
			turn <- struct{}{} // A call that hangs ends when the daemon is found dead.
		}

		for _, id := range callbacks {
			_ = conn.DomainEventDeregister(id)
		}

		if closeCallback {
			_ = conn.UnregisterCloseCallback()
		}

		_, _ = conn.Close()
	}

	if err != nil {
		closeAll()

		return nil, err
	}

	return &link{
		conn: conn,
		alive: func() bool {
			if lost.Load() {
				return false
			}

			alive, err := conn.IsAlive()

			return err == nil && alive
		},
		hold: func() (func(), error) {
			if err := conn.Ref(); err != nil {
				return nil, fmt.Errorf("hold the connection to libvirt: %w", err)
			}

			return func() { _, _ = conn.Close() }, nil
		},
		turn:  turn,
		close: closeAll,
	}, nil
}
