package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// chunkSize is how much is sent at once; runs of zeros of that size become holes.
const chunkSize = 1 << 20

// errKeepsNoBytes says that the hypervisor is libvirt's own simulation, whose volumes have sizes but no content.
var errKeepsNoBytes = errors.New("the volumes of this hypervisor hold no bytes")

// stream is a libvirt stream with one user at a time, so that it can be given up while a call that nobody waits for still uses
// it.
type stream struct {
	mu     sync.Mutex
	s      *libvirt.Stream
	closed bool
}

// close ends the transfer, whole or not.
func (st *stream) close() {
	// A call that hangs holds the lock.
	go func() {
		st.mu.Lock()
		defer st.mu.Unlock()

		st.closed = true

		if st.s != nil {
			_ = st.s.Abort() // An error says that the stream has ended, which is what is wanted.
			_ = st.s.Free()
			st.s = nil
		}
	}()
}

// use runs f with the stream.
func (st *stream) use(f func(*libvirt.Stream) error) error {
	st.mu.Lock()
	defer st.mu.Unlock()

	if st.closed {
		return errors.New("the transfer was given up")
	}

	return f(st.s)
}

// openStream starts a transfer to or from a volume.
func (d *Driver) openStream(ctx context.Context, pool, name, what string, begin func(*libvirt.StorageVol, *libvirt.Stream) error) (*stream, error) {
	st := new(stream)

	_, err := poolCall(ctx, d, pool, what, func(c *libvirt.Connect, p *libvirt.StoragePool) (struct{}, error) {
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

		st.mu.Lock()
		defer st.mu.Unlock()

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

// emptyVolume is the size of volumes that are made to be filled by upload, which sees by their size whether all has arrived.
const emptyVolume = 1

// upload fills a volume, made with the size emptyVolume, with what r gives. It keeps holes.
func (d *Driver) upload(ctx context.Context, pool, name string, r io.Reader, progress func(sent uint64)) error {
	what := fmt.Sprintf("upload to volume %q in storage pool %q", name, pool)

	st, err := d.openStream(ctx, pool, name, what, func(v *libvirt.StorageVol, s *libvirt.Stream) error {
		return v.Upload(s, 0, 0, libvirt.STORAGE_VOL_UPLOAD_SPARSE_STREAM)
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
	)

	for readErr == nil {
		// Each chunk has a buffer of its own: a call that is given up may still read it.
		chunk := make([]byte, chunkSize)

		var n int

		if n, readErr = fill(r, chunk); n == 0 {
			continue
		}

		if err := connection.Do(ctx, d.conn, what, func(*libvirt.Connect) error { return st.use(send(chunk[:n])) }); err != nil {
			return d.withFreeSpace(ctx, pool, err)
		}

		sent += uint64(n)
		progress(sent)
	}

	if readErr != io.EOF { //nolint:errorlint // A wrapped EOF is a source that broke off.
		return fmt.Errorf("read what to upload to volume %q: %w", name, readErr)
	}

	if sent == 0 {
		return fmt.Errorf("%s: there is nothing to upload", what)
	}

	if err := connection.Do(ctx, d.conn, what, func(*libvirt.Connect) error { return st.use((*libvirt.Stream).Finish) }); err != nil {
		return d.withFreeSpace(ctx, pool, err)
	}

	// The daemon writes behind our back, and does not always say when it could not.
	filled, err := d.volume(ctx, pool, name)
	if err != nil {
		return err
	}

	if filled.Capacity != sent {
		return d.withFreeSpace(ctx, pool, driver.Capacity(fmt.Errorf("%s: it holds %d bytes of %d", what, filled.Capacity, sent)))
	}

	return nil
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

func send(chunk []byte) func(*libvirt.Stream) error {
	return func(s *libvirt.Stream) error {
		if bytes.Equal(chunk, zeros[:len(chunk)]) {
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

// download returns a part of a volume.
func (d *Driver) download(ctx context.Context, pool, name string, offset, length uint64) ([]byte, error) {
	what := fmt.Sprintf("read volume %q in storage pool %q", name, pool)

	st, err := d.openStream(ctx, pool, name, what, func(v *libvirt.StorageVol, s *libvirt.Stream) error {
		return v.Download(s, offset, length, 0)
	})
	if connection.Is(err, libvirt.ERR_NO_SUPPORT) {
		return nil, errKeepsNoBytes
	}

	if err != nil {
		return nil, err
	}

	defer st.close()

	return connection.Call(ctx, d.conn, what, func(*libvirt.Connect) ([]byte, error) {
		var content []byte

		err := st.use(func(s *libvirt.Stream) error {
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
