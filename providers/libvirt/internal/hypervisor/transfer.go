package hypervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// chunkSize is how much is sent at once; runs of zeros of that size become holes.
const chunkSize = 1 << 20

// receiveSize is how much is received at once; libvirt hands over no more than one of its messages.
const receiveSize = 256 << 10

// errKeepsNoBytes says that the hypervisor is libvirt's own simulation, whose volumes have sizes but no content.
var errKeepsNoBytes = errors.New("the volumes of this hypervisor hold no bytes")

// stream is a libvirt stream with one user at a time, so that it can be given up while a call that nobody waits for still uses
// it.
type stream struct {
	// turn is held by the user. It is no mutex, for which simulated time would stand still.
	turn   chan struct{}
	s      connection.Stream
	closed bool
}

func newStream() *stream { return &stream{turn: make(chan struct{}, 1)} }

func (st *stream) lock()   { st.turn <- struct{}{} }
func (st *stream) unlock() { <-st.turn }

// close ends the transfer, whole or not.
func (st *stream) close() {
	// A call that hangs holds the lock.
	go func() {
		st.lock()
		defer st.unlock()

		st.closed = true

		if st.s != nil {
			_ = st.s.Abort() // An error says that the stream has ended, which is what is wanted.
			_ = st.s.Free()
			st.s = nil
		}
	}()
}

// use runs f with the stream.
func (st *stream) use(f func(connection.Stream) error) error {
	st.lock()
	defer st.unlock()

	if st.closed {
		return errors.New("the transfer was given up")
	}

	return f(st.s)
}

// openStream starts a transfer to or from a volume.
func (h *Host) openStream(ctx context.Context, pool, name, what string, begin func(connection.StorageVol, connection.Stream) error) (*stream, error) {
	st := newStream()

	_, err := poolCall(ctx, h, pool, what, func(c connection.Connect, p connection.StoragePool) (struct{}, error) {
		v, err := p.LookupStorageVolByName(name)
		if err != nil {
			return struct{}{}, err
		}

		defer func() { _ = v.Free() }()

		s, err := c.NewStream(0)
		if err != nil {
			return struct{}{}, err
		}

		if err := begin(v, s); err != nil {
			_ = s.Free()

			return struct{}{}, err
		}

		st.lock()
		defer st.unlock()

		if st.closed {
			_ = s.Abort()
			_ = s.Free()
		} else {
			st.s = s
		}

		return struct{}{}, nil
	})
	if err != nil {
		st.close()

		return nil, err
	}

	return st, nil
}

// emptyVolume is the size of files that are made to be filled by upload, which sees by their size whether all has arrived.
const emptyVolume = 1

// probeSize is how much of what was uploaded is read back.
const probeSize = 4 << 10

// target is where an upload goes.
type target struct {
	pool, name string
	// fixed says that the volume has its size already, and may be larger than what is sent. Otherwise it has been made with the size
	// emptyVolume.
	fixed bool
	// offset is where the first byte goes.
	offset uint64
	// dense sends holes as what they read as.
	dense bool
}

// send sends the next chunk.
func (to target) send(chunk []byte) func(connection.Stream) error {
	return func(s connection.Stream) error {
		if !to.dense && bytes.Equal(chunk, zeros[:len(chunk)]) {
			return s.SendHole(int64(len(chunk)), 0)
		}

		for len(chunk) > 0 {
			n, err := s.Send(chunk)
			if err != nil {
				return err
			}

			chunk = chunk[n:]
		}

		return nil
	}
}

// upload fills a volume with what r gives, and checks that it has arrived. It keeps holes, and one chunk in memory.
func (h *Host) upload(ctx context.Context, to target, r io.Reader, progress func(sent uint64)) error {
	what := fmt.Sprintf("upload to volume %q in storage pool %q", to.name, to.pool)

	st, err := h.openStream(ctx, to.pool, to.name, what, func(v connection.StorageVol, s connection.Stream) error {
		return v.Upload(s, to.offset, 0, libvirt.STORAGE_VOL_UPLOAD_SPARSE_STREAM)
	})
	if connection.Is(err, libvirt.ERR_NO_SUPPORT) {
		return errKeepsNoBytes
	}

	if err != nil {
		return err
	}

	defer st.close()

	var (
		sent    uint64
		readErr error
		last    probe
	)

	// A call that is given up may still read the chunk. Nothing is read into it after that.
	chunk := make([]byte, chunkSize)

	for readErr == nil {
		var n int

		if n, readErr = fill(r, chunk); n == 0 {
			continue
		}

		if err := connection.Do(ctx, h.conn, what, func(connection.Connect) error { return st.use(to.send(chunk[:n])) }); err != nil {
			return h.withFreeSpace(ctx, to.pool, err)
		}

		last.note(to.offset+sent, chunk[:n])

		sent += uint64(n)
		progress(sent)
	}

	if readErr != io.EOF { //nolint:errorlint // A wrapped EOF is a source that broke off.
		return fmt.Errorf("read what to upload to volume %q: %w", to.name, readErr)
	}

	if sent == 0 {
		return fmt.Errorf("%s: there is nothing to upload", what)
	}

	if err := connection.Do(ctx, h.conn, what, func(connection.Connect) error { return st.use(connection.Stream.Finish) }); err != nil {
		return h.withFreeSpace(ctx, to.pool, err)
	}

	return h.withFreeSpace(ctx, to.pool, h.checkUpload(ctx, to, what, sent, last))
}

// checkUpload says whether all has arrived: the daemon writes behind our back, and does not always say when it could not.
func (h *Host) checkUpload(ctx context.Context, to target, what string, sent uint64, last probe) error {
	filled, err := h.volume(ctx, to.pool, to.name)
	if err != nil {
		return err
	}

	if !to.fixed && filled.Capacity != sent {
		return driver.Capacity(fmt.Errorf("%s: it holds %d bytes of %d", what, filled.Capacity, sent))
	}

	if len(last.content) == 0 {
		return nil
	}

	got, err := h.download(ctx, to.pool, to.name, last.at, uint64(len(last.content)))
	if err != nil {
		return err
	}

	if !bytes.Equal(got, last.content) {
		return fmt.Errorf("%s: byte %d and what follows were read back otherwise than they were sent", what, last.at)
	}

	return nil
}

// probe is the last of what was sent that is not a hole.
type probe struct {
	at      uint64
	content []byte
}

func (p *probe) note(at uint64, chunk []byte) {
	if bytes.Equal(chunk, zeros[:len(chunk)]) {
		return
	}

	from := max(0, len(chunk)-probeSize)
	p.at = at + uint64(from)
	p.content = append(p.content[:0], chunk[from:]...)
}

// fill reads until chunk is full. It differs from io.ReadFull in that io.EOF, and nothing else, says that the source has ended:
// io.ErrUnexpectedEOF is how a source says that it was cut short.
func fill(r io.Reader, chunk []byte) (n int, err error) {
	for n < len(chunk) && err == nil {
		var more int

		more, err = r.Read(chunk[n:])
		n += more
	}

	return n, err
}

var zeros = make([]byte, chunkSize)

// download returns a part of a volume.
func (h *Host) download(ctx context.Context, pool, name string, offset, length uint64) ([]byte, error) {
	what := fmt.Sprintf("read volume %q in storage pool %q", name, pool)

	st, err := h.openStream(ctx, pool, name, what, func(v connection.StorageVol, s connection.Stream) error {
		return v.Download(s, offset, length, 0)
	})
	if connection.Is(err, libvirt.ERR_NO_SUPPORT) {
		return nil, errKeepsNoBytes
	}

	if err != nil {
		return nil, err
	}

	defer st.close()

	return connection.Call(ctx, h.conn, what, func(connection.Connect) ([]byte, error) {
		var content []byte

		err := st.use(func(s connection.Stream) error {
			buffer := make([]byte, length)

			for uint64(len(content)) < length {
				n, err := s.Recv(buffer)
				if errors.Is(err, io.EOF) {
					break
				}

				if err != nil {
					return err
				}

				content = append(content, buffer[:n]...)
			}

			return s.Finish()
		})

		return content, err
	})
}

// open returns a reader of all that a volume holds.
func (h *Host) open(ctx context.Context, pool, name string) (*reader, error) {
	what := fmt.Sprintf("read volume %q in storage pool %q", name, pool)

	st, err := h.openStream(ctx, pool, name, what, func(v connection.StorageVol, s connection.Stream) error {
		return v.Download(s, 0, 0, 0)
	})
	if err != nil {
		return nil, err
	}

	return &reader{ctx: ctx, conn: h.conn, what: what, st: st}, nil
}

// reader reads a volume. Close has to be called at the end.
type reader struct {
	ctx   context.Context //nolint:containedctx // A reader has no other way to get it.
	conn  *connection.Connection
	what  string
	st    *stream
	ready []byte
	err   error
}

// Read receives more of the volume, into a buffer of its own: a call that is given up may still write to it.
func (r *reader) Read(p []byte) (int, error) {
	for len(r.ready) == 0 && r.err == nil {
		r.ready, r.err = connection.Call(r.ctx, r.conn, r.what, func(connection.Connect) ([]byte, error) {
			buffer := make([]byte, receiveSize)
			received := 0

			err := r.st.use(func(s connection.Stream) error {
				n, err := s.Recv(buffer)
				received = n

				if errors.Is(err, io.EOF) {
					return s.Finish()
				}

				return err
			})

			return buffer[:received], err
		})

		if r.err == nil && len(r.ready) == 0 {
			r.err = io.EOF
		}
	}

	n := copy(p, r.ready)
	r.ready = r.ready[n:]

	if n == 0 {
		return 0, r.err
	}

	return n, nil
}

func (r *reader) Close() error {
	r.st.close()

	return nil
}
