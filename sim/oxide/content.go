package oxide

import (
	"bytes"
	"errors"
	"io"
	"maps"
)

// blockSize is the unit in which contents are kept.
const blockSize = 64 << 10

// errFull says that the rack holds as much as it may.
var errFull = errors.New("the rack holds as much as it may keep in memory")

var zeroes [blockSize]byte

// block is never changed, so that copies share it.
type block struct {
	data []byte
	refs int
}

// content is what is on a disk. Only blocks that are not all zero are kept.
type content struct {
	size   int64
	blocks map[int64]*block
}

func newContent(size int64) *content { return &content{size: size, blocks: map[int64]*block{}} }

// copyLocked returns a content of that size with the same bytes.
func (r *Rack) copyLocked(from *content, size int64) *content {
	to := &content{size: size, blocks: maps.Clone(from.blocks)}

	for _, b := range to.blocks {
		b.refs++
	}

	return to
}

func (r *Rack) dropContentLocked(c *content) {
	if c == nil {
		return
	}

	for i, b := range c.blocks {
		r.releaseLocked(b)
		delete(c.blocks, i)
	}
}

func (r *Rack) releaseLocked(b *block) {
	if b == nil {
		return
	}

	if b.refs--; b.refs == 0 {
		r.content -= int64(len(b.data))
	}
}

// writeLocked writes bytes that lie within the content.
func (r *Rack) writeLocked(c *content, data []byte, offset int64) error {
	for len(data) > 0 {
		i, from := offset/blockSize, offset%blockSize
		n := min(int64(len(data)), blockSize-from)

		if err := r.writeBlockLocked(c, i, from, data[:n]); err != nil {
			return err
		}

		data, offset = data[n:], offset+n
	}

	return nil
}

func (r *Rack) writeBlockLocked(c *content, i, from int64, data []byte) error {
	old := c.blocks[i]
	fresh := make([]byte, blockSize)

	if old != nil {
		copy(fresh, old.data)
	}

	copy(fresh[from:], data)

	if bytes.Equal(fresh, zeroes[:]) {
		r.releaseLocked(old)
		delete(c.blocks, i)

		return nil
	}

	if r.content+blockSize > r.opts.MaxContent && (old == nil || old.refs > 1) {
		return errFull
	}

	r.releaseLocked(old)

	c.blocks[i] = &block{data: fresh, refs: 1}
	r.content += blockSize

	return nil
}

// Content is what was on a disk, an image or a snapshot when it was asked for.
type Content struct {
	size   int64
	blocks map[int64][]byte
}

func (c *content) exported() *Content {
	out := &Content{size: c.size, blocks: make(map[int64][]byte, len(c.blocks))}

	for i, b := range c.blocks {
		out.blocks[i] = b.data
	}

	return out
}

// Size returns the number of bytes, holes included.
func (c *Content) Size() int64 { return c.size }

// Held returns how many bytes are in blocks of 64 KiB that are not all zero.
func (c *Content) Held() int64 { return int64(len(c.blocks)) * blockSize }

// ReadAt reads as io.ReaderAt says. What was never written is zero.
func (c *Content) ReadAt(p []byte, offset int64) (n int, err error) {
	if offset < 0 {
		return 0, errors.New("read at a negative offset")
	}

	for n < len(p) && offset < c.size {
		from := offset % blockSize
		piece := min(int64(len(p)-n), blockSize-from, c.size-offset)

		data := c.blocks[offset/blockSize]
		if data == nil {
			data = zeroes[:]
		}

		copy(p[n:], data[from:from+piece])

		n, offset = n+int(piece), offset+piece
	}

	if n < len(p) {
		return n, io.EOF
	}

	return n, nil
}
