package omni

import (
	"context"
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc"
)

// port is one of Omni's two doors, the API or the machine API. Connections come in from any number of listeners and go to
// the gRPC server that serves the port now; while there is none, or the port is cut off, they are closed at once.
type port struct {
	mu     sync.Mutex
	server *queue
	cut    bool
	conns  map[*portConn]struct{}
}

func newPort() *port { return &port{conns: map[*portConn]struct{}{}} }

// open lets connections wait for the server that comes next.
func (p *port) open() *queue {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.server == nil {
		p.server = &queue{conns: make(chan net.Conn), done: make(chan struct{})}
	}

	return p.server
}

// serve gives the port to a gRPC server until ctx ends.
func (p *port) serve(ctx context.Context, server *grpc.Server) error {
	q := p.open()
	serving, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})

	go func() {
		defer close(stopped)

		<-serving.Done()

		p.mu.Lock()
		p.server = nil
		p.mu.Unlock()

		server.Stop()
	}()

	err := server.Serve(q)
	if ctx.Err() != nil {
		err = nil
	}

	cancel()
	<-stopped

	return err
}

// accept lets the connections of l in until l is closed, and then ends them. One that waits for a server waits no longer than ctx.
func (p *port) accept(ctx context.Context, l net.Listener) error {
	defer p.end(func(c *portConn) bool { return c.from == l })

	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}

		p.deliver(ctx, conn, l)
	}
}

func (p *port) deliver(ctx context.Context, conn net.Conn, from net.Listener) {
	p.mu.Lock()

	if p.server == nil || p.cut {
		p.mu.Unlock()
		_ = conn.Close()

		return
	}

	server := p.server
	c := &portConn{Conn: conn, port: p, from: from}
	p.conns[c] = struct{}{}
	p.mu.Unlock()

	select {
	case server.conns <- c:
	case <-server.done:
		_ = c.Close()
	case <-ctx.Done():
		_ = c.Close()
	}
}

// setCut cuts the port off or connects it again.
func (p *port) setCut(cut bool) {
	p.mu.Lock()
	p.cut = cut
	p.mu.Unlock()

	if cut {
		p.end(func(*portConn) bool { return true })
	}
}

// end closes the connections that match.
func (p *port) end(matches func(*portConn) bool) {
	p.mu.Lock()

	var ending []*portConn

	for c := range p.conns {
		if matches(c) {
			ending = append(ending, c)
		}
	}

	p.mu.Unlock()

	for _, c := range ending {
		_ = c.Close()
	}
}

type portConn struct {
	net.Conn
	port *port
	from net.Listener
}

// Close closes the connection.
func (c *portConn) Close() error {
	c.port.mu.Lock()
	delete(c.port.conns, c)
	c.port.mu.Unlock()

	return c.Conn.Close()
}

// queue is the listener that a gRPC server gets its connections from.
type queue struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

var errPortClosed = errors.New("port closed")

// Accept waits for a connection.
func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.done:
		return nil, errPortClosed
	}
}

// Close ends Accept.
func (q *queue) Close() error {
	q.once.Do(func() { close(q.done) })

	return nil
}

// Addr returns an address that says nothing: clients are told the address of Options.
func (q *queue) Addr() net.Addr { return &net.UnixAddr{Name: "omni-sim", Net: "pipe"} }
