package libvirt

import (
	"errors"
	"io"

	"libvirt.org/go/libvirt"
)

// Stream is a transfer of bytes to or from the hypervisor.
type Stream struct {
	handle

	// The rest is guarded by h.mu.
	f        *file
	pool     *pool
	path     string
	upload   bool
	sparse   bool
	at, end  uint64 // end is where an upload with a length has to stop; 0 is nowhere.
	finished bool
	failed   error
}

// maxPacket is how much one message of a download carries.
const maxPacket = 262120

// NewStream makes a stream, for one transfer.
func (c *Connect) NewStream(libvirt.StreamFlags) (*Stream, error) {
	if err := c.usable("Connect.NewStream"); err != nil {
		return nil, err
	}

	return &Stream{handle: newHandle(c)}, nil
}

// Free gives up the handle. A transfer under way goes nowhere from then on.
func (s *Stream) Free() error { return s.free(libvirt.ERR_INVALID_STREAM, "Stream") }

// Ref takes a reference to the handle, each of which is given up by Free.
func (s *Stream) Ref() error { return s.ref(libvirt.ERR_INVALID_STREAM, "Stream") }

// Upload starts a transfer into the volume, from offset on; a length other than zero limits it.
func (v *StorageVol) Upload(s *Stream, offset, length uint64, flags libvirt.StorageVolUploadFlags) error {
	return v.do("Upload", func(p *pool, found *volume) error {
		if err := found.settled(); err != nil {
			return err
		}

		f, err := v.conn.h.transferable(p, found, "upload")
		if err != nil {
			return err
		}

		s.f, s.pool, s.path, s.upload, s.at = f, p, found.path, true, offset
		s.sparse = flags&libvirt.STORAGE_VOL_UPLOAD_SPARSE_STREAM != 0

		if length > 0 {
			s.end = offset + length
		}

		return nil
	})
}

// Download starts a transfer from the volume, from offset on; a length other than zero limits it.
func (v *StorageVol) Download(s *Stream, offset, length uint64, flags libvirt.StorageVolDownloadFlags) error {
	return v.do("Download", func(p *pool, found *volume) error {
		if found.building {
			return found.settled()
		}

		f, err := v.conn.h.transferable(p, found, "download")
		if err != nil {
			return err
		}

		s.f, s.pool, s.path, s.at, s.end = f, p, found.path, offset, f.size
		s.sparse = flags&libvirt.STORAGE_VOL_DOWNLOAD_SPARSE_STREAM != 0

		if length > 0 {
			s.end = min(s.end, offset+length)
		}

		return nil
	})
}

func (h *Hypervisor) transferable(p *pool, v *volume, what string) (*file, error) {
	if !backends[p.kind].transfer {
		return nil, noSupport("storage pool doesn't support volume %s", what)
	}

	if f := h.files[v.path]; f != nil {
		return f, nil
	}

	return nil, system(libvirt.FROM_STREAMS, noEntry, "Unable to open stream for '%s'", v.path)
}

// streamCall is a call on a transfer under way, after which nothing of it is left if it fails.
func streamCall[T any](s *Stream, method string, effect func() (T, error)) (T, error) {
	var zero T

	if err := s.valid(libvirt.ERR_INVALID_STREAM, "Stream", method); err != nil {
		return zero, err
	}

	return call(s.conn, request{op: "Stream." + method, object: s.path}, func() (T, error) {
		switch {
		case s.f == nil:
			return zero, failure(libvirt.ERR_NO_SUPPORT, libvirt.FROM_STREAMS,
				"this function is not supported by the connection driver: virStream%s", method)
		case s.finished:
			return zero, failed(libvirt.FROM_RPC, "stream is closed")
		case s.failed != nil:
			return zero, s.failed
		}

		got, err := effect()
		if err != nil {
			s.failed = err
		}

		return got, err
	})
}

// Send sends bytes, and returns how many it took.
func (s *Stream) Send(p []byte) (int, error) {
	n, err := streamCall(s, "Send", func() (int, error) {
		if err := s.room(uint64(len(p)), true); err != nil {
			return 0, err
		}

		s.f.write(s.at, p)
		s.at += uint64(len(p))

		return len(p), nil
	})
	if err == nil && n == 0 {
		return 0, io.EOF
	}

	return n, err
}

// SendHole leaves a hole, in a transfer that was started as a sparse one.
func (s *Stream) SendHole(length int64, _ uint32) error {
	_, err := streamCall(s, "SendHole", func() (none, error) {
		if !s.sparse {
			return none{}, notValid(libvirt.FROM_RPC, "Skipping is not supported with this stream")
		}

		if err := s.room(uint64(length), false); err != nil { //nolint:gosec // Lengths are positive.
			return none{}, err
		}

		s.f.hole(s.at, uint64(length)) //nolint:gosec // Lengths are positive.
		s.at += uint64(length)         //nolint:gosec // Lengths are positive.

		return none{}, nil
	})

	return err
}

// room refuses bytes beyond the length of the transfer, or beyond the pool's space.
func (s *Stream) room(n uint64, data bool) error {
	if s.end > 0 && s.at+n > s.end {
		return system(libvirt.FROM_STREAMS, noSpace, "cannot write to stream")
	}

	if h := s.conn.h; data && s.at+n > s.f.allocation() && n > s.pool.capacity-h.usedLocked(s.pool) {
		return system(libvirt.FROM_STREAMS, noSpace, "cannot write to stream")
	}

	return nil
}

// Finish ends a transfer, and says whether all has arrived. libvirt looks at the pool anew after an upload.
func (s *Stream) Finish() error {
	_, err := streamCall(s, "Finish", func() (none, error) {
		s.finished = true
		s.landLocked()

		return none{}, nil
	})

	return err
}

func (s *Stream) landLocked() {
	if s.upload && s.pool.active {
		h := s.conn.h
		h.refreshLocked(s.pool)
		h.poolEventLocked(s.pool, poolRefreshEvent, nil)
	}
}

// Abort breaks a transfer off. What has arrived stays.
func (s *Stream) Abort() error {
	_, err := streamCall(s, "Abort", func() (none, error) {
		s.finished = true
		s.landLocked()

		return none{}, nil
	})

	return err
}

// Recv receives bytes; io.EOF says that there are no more.
func (s *Stream) Recv(p []byte) (int, error) { return s.recv("Recv", p, 0) }

// RecvFlags is Recv; the flags may make it stop at a hole, which it returns -3 for.
func (s *Stream) RecvFlags(p []byte, flags libvirt.StreamRecvFlagsValues) (int, error) {
	return s.recv("RecvFlags", p, flags)
}

func (s *Stream) recv(method string, p []byte, flags libvirt.StreamRecvFlagsValues) (int, error) {
	n, err := streamCall(s, method, func() (int, error) {
		if s.at >= s.end {
			return 0, nil
		}

		n := min(uint64(len(p)), s.end-s.at, maxPacket)

		if s.sparse {
			data, length := s.f.extent(s.at)
			if !data && flags&libvirt.STREAM_RECV_STOP_AT_HOLE != 0 {
				return -3, nil
			}

			n = min(n, length)
		}

		copy(p, s.f.read(s.at, n))
		s.at += n

		return int(n), nil //nolint:gosec // It is at most maxPacket.
	})
	if err == nil && n == 0 {
		return 0, io.EOF
	}

	return n, err
}

// RecvHole receives the length of the hole at which RecvFlags has stopped.
func (s *Stream) RecvHole(uint32) (int64, error) {
	return streamCall(s, "RecvHole", func() (int64, error) {
		data, length := s.f.extent(s.at)
		if data || s.at >= s.end {
			return 0, nil
		}

		length = min(length, s.end-s.at)
		s.at += length

		return int64(length), nil //nolint:gosec // Files are not that large.
	})
}

// StreamSinkFunc takes bytes, and returns how many.
type StreamSinkFunc func(s *Stream, data []byte) (int, error)

// StreamSinkHoleFunc takes a hole.
type StreamSinkHoleFunc func(s *Stream, length int64) error

// StreamSourceFunc gives at most n bytes, and none at the end.
type StreamSourceFunc func(s *Stream, n int) ([]byte, error)

// StreamSourceHoleFunc says whether the source is in data, and how far that, or the hole, goes.
type StreamSourceHoleFunc func(s *Stream) (inData bool, length int64, err error)

// StreamSourceSkipFunc makes the source go on behind a hole.
type StreamSourceSkipFunc func(s *Stream, length int64) error

// RecvAll receives all bytes.
func (s *Stream) RecvAll(sink StreamSinkFunc) error { return s.recvAll(0, sink, nil) }

// SparseRecvAll receives all bytes and holes.
func (s *Stream) SparseRecvAll(sink StreamSinkFunc, hole StreamSinkHoleFunc) error {
	return s.recvAll(libvirt.STREAM_RECV_STOP_AT_HOLE, sink, hole)
}

func (s *Stream) recvAll(flags libvirt.StreamRecvFlagsValues, sink StreamSinkFunc, hole StreamSinkHoleFunc) error {
	buffer := make([]byte, maxPacket)

	for {
		n, err := s.recv("RecvAll", buffer, flags)

		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case n == -3:
			length, err := s.RecvHole(0)
			if err != nil {
				return err
			}

			if err := hole(s, length); err != nil {
				return err
			}

			continue
		}

		for data := buffer[:n]; len(data) > 0; {
			done, err := sink(s, data)
			if err != nil {
				_ = s.Abort()

				return err
			}

			data = data[done:]
		}
	}
}

// SendAll sends all bytes that source gives.
func (s *Stream) SendAll(source StreamSourceFunc) error {
	for {
		data, err := source(s, maxPacket)
		if err != nil {
			_ = s.Abort()

			return err
		}

		if len(data) == 0 {
			return nil
		}

		if _, err := s.Send(data); err != nil {
			return err
		}
	}
}

// SparseSendAll sends all bytes and holes that a source has.
func (s *Stream) SparseSendAll(source StreamSourceFunc, hole StreamSourceHoleFunc, skip StreamSourceSkipFunc) error {
	for {
		inData, length, err := hole(s)
		if err == nil && !inData && length > 0 {
			if err = s.SendHole(length, 0); err == nil {
				err = skip(s, length)
			}

			if err == nil {
				continue
			}
		}

		var data []byte
		if err == nil {
			data, err = source(s, maxPacket)
		}

		if err != nil {
			_ = s.Abort()

			return err
		}

		if len(data) == 0 {
			return nil
		}

		if _, err := s.Send(data); err != nil {
			return err
		}
	}
}
