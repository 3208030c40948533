package provider

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// chunkSize is how much is written at once: what the rack's import service takes, before it is encoded.
const chunkSize = 512 << 10

// source is a boot image that is being read, of a size that is known.
type source struct {
	r    io.ReadCloser
	size uint64
	// head was read to learn the size.
	head []byte
}

// The places in a disk with a GUID partition table that tell its size (UEFI specification, 5.3): the table's header is in the second
// sector, and names the sector of its copy, which is the last one of the disk.
const (
	sectorSize    = 512
	headerSize    = 92
	copyOffset    = 32
	gptSignature  = "EFI PART"
	largestSector = 1 << 42
)

// openImage opens an image and learns its size, which a disk has to be told before it is filled. Talos' images say so at their beginning;
// others are read through once, and then opened again.
func openImage(ctx context.Context, image driver.Image) (*source, error) {
	r, err := image.Open(ctx)
	if err != nil {
		return nil, err
	}

	s := &source{r: r, head: make([]byte, chunkSize)}

	n, err := fill(r, s.head)
	s.head = s.head[:n]

	if size, ok := diskSize(s.head); ok && (err == nil || err == io.EOF) { //nolint:errorlint // A wrapped EOF is a source that broke off.
		s.size = size

		return s, nil
	}

	s.size = uint64(n)
	chunk := make([]byte, chunkSize)

	for err == nil {
		n, err = fill(r, chunk)
		s.size += uint64(n)
	}

	s.close()

	switch {
	case err != io.EOF: //nolint:errorlint // as above
		return nil, fmt.Errorf("read boot image %s: %w", image.Key(), err)
	case s.size == 0:
		return nil, fmt.Errorf("read boot image %s: it is empty", image.Key())
	}

	s.head = nil

	if s.r, err = image.Open(ctx); err != nil {
		return nil, err
	}

	return s, nil
}

// diskSize returns the size of the disk that begins with head; false if it has no GUID partition table.
func diskSize(head []byte) (uint64, bool) {
	if len(head) < sectorSize+headerSize {
		return 0, false
	}

	header := head[sectorSize:]
	last := binary.LittleEndian.Uint64(header[copyOffset:])

	if !bytes.HasPrefix(header, []byte(gptSignature)) || last < 2 || last > largestSector {
		return 0, false
	}

	return (last + 1) * sectorSize, true
}

// next fills chunk. io.EOF, and nothing else, says that the image has ended.
func (s *source) next(chunk []byte) (int, error) {
	n := copy(chunk, s.head)
	s.head = s.head[n:]

	if n == len(chunk) {
		return n, nil
	}

	more, err := fill(s.r, chunk[n:])

	return n + more, err
}

func (s *source) close() { _ = s.r.Close() }

// progress says how far the image has been read, in percent if it can tell. It leaves the last step to who knows that all of it is there.
func (s *source) progress(read uint64) string {
	if m, ok := s.r.(interface{ Progress() (fetched, total int64) }); ok {
		if fetched, total := m.Progress(); total > 0 {
			return fmt.Sprintf("boot image: %d %%", min(99, fetched*100/total))
		}
	}

	return fmt.Sprintf("boot image: %d %%", min(99, read*100/max(s.size, 1)))
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
