package connection

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"libvirt.org/go/libvirt"
)

// A link that has been silent for keepaliveInterval seconds is probed; after keepaliveCount probes without a reply it is dead.
const (
	keepaliveInterval = 5
	keepaliveCount    = 4
)

// link is one open connection.
type link struct {
	conn *libvirt.Connect
	// alive says, without a call to the daemon, whether the connection stands.
	alive func() bool
	// hold keeps the connection's memory until release is called, also when the link is closed meanwhile.
	hold func() (release func(), err error)
	// close gives up the connection. It may take as long as the daemon does.
	close func()
}

// startEvents registers libvirt's event loop, which has to be there before the first connection, and runs it as long as the
// process lives.
var startEvents = sync.OnceValue(func() error {
	if err := libvirt.EventRegisterDefaultImpl(); err != nil {
		return err
	}

	go func() {
		for {
			if err := libvirt.EventRunDefaultImpl(); err != nil {
				time.Sleep(time.Second)
			}
		}
	}()

	return nil
})

// openLibvirt connects to a daemon and passes its events to report.
func openLibvirt(uri string, report func(Event)) (*link, error) {
	if err := startEvents(); err != nil {
		return nil, err
	}

	// Credentials come from the URI's own parameters and from libvirt's authentication file; some transports ask for a
	// callback even so. Nobody is there to be asked.
	conn, err := libvirt.NewConnectWithAuth(uri, &libvirt.ConnectAuth{
		CredType: []libvirt.ConnectCredentialType{
			libvirt.CRED_AUTHNAME, libvirt.CRED_USERNAME, libvirt.CRED_PASSPHRASE,
			libvirt.CRED_NOECHOPROMPT, libvirt.CRED_ECHOPROMPT, libvirt.CRED_REALM,
		},
		Callback: func([]*libvirt.ConnectCredential) {},
	}, 0)
	if err != nil {
		return nil, err
	}

	var lost atomic.Bool

	// Drivers inside the process know neither keepalive nor close callbacks, and need none.
	_ = conn.SetKeepAlive(keepaliveInterval, keepaliveCount)
	closeCallback := conn.RegisterCloseCallback(func(*libvirt.Connect, libvirt.ConnectCloseReason) {
		lost.Store(true)
		report(Event{Kind: Lost})
	}) == nil

	callbacks, err := registerEvents(conn, report)

	// Each registered callback holds the connection open.
	closeAll := func() {
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
		close: closeAll,
	}, nil
}
