package image

import (
	"encoding/binary"
	"hash"
	"hash/crc32"
	"io"
)

// storedXZ writes an xz stream that compresses nothing (The .xz File Format, version 1.2.0). A kernel and an initramfs are
// compressed as they are, and what LZMA would still get out of them costs a decoder written in Go half a minute of CPU.
type storedXZ struct {
	w       io.Writer
	pending []byte
	sum     hash.Hash32
	began   bool
	packed  uint64
	plain   uint64
	err     error
}

const (
	xzChunk       = 1 << 16
	xzBlockHeader = 12
	xzCheckSize   = 4
	// xzDictionary stands for 64 KiB, as much as one chunk.
	xzDictionary = 8
)

// xzFlags of the stream: the check is CRC32.
var xzFlags = []byte{0, 1}

func newStoredXZ(w io.Writer) *storedXZ { return &storedXZ{w: w, sum: crc32.NewIEEE()} }

// Write stores data.
func (x *storedXZ) Write(data []byte) (int, error) {
	x.begin()
	x.sum.Write(data)

	x.pending = append(x.pending, data...)
	for len(x.pending) >= xzChunk {
		x.chunk(x.pending[:xzChunk])
		x.pending = append(x.pending[:0], x.pending[xzChunk:]...)
	}

	return len(data), x.err
}

// Close ends the stream; it does not close the writer below.
func (x *storedXZ) Close() error {
	x.begin()

	if len(x.pending) > 0 {
		x.chunk(x.pending)
	}

	x.emit([]byte{0}) // The end of the chunks.
	x.packed++
	x.emit(make([]byte, -x.packed&3))
	x.emit(binary.LittleEndian.AppendUint32(nil, x.sum.Sum32()))

	index := []byte{0, 1}
	index = binary.AppendUvarint(index, xzBlockHeader+x.packed+xzCheckSize)
	index = binary.AppendUvarint(index, x.plain)
	index = append(index, make([]byte, -len(index)&3)...)
	x.emit(withCRC(index))

	footer := binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4)) // The index with its CRC, in units of four, less one.
	footer = append(footer, xzFlags...)
	x.emit(binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(footer)))
	x.emit(append(footer, "YZ"...))

	return x.err
}

// begin writes the headers of the stream and of its only block.
func (x *storedXZ) begin() {
	if x.began {
		return
	}

	x.began = true

	x.emit([]byte("\xfd7zXZ\x00"))
	x.emit(withCRC(xzFlags))
	// One filter, LZMA2, with one byte of properties.
	x.emit(withCRC([]byte{xzBlockHeader/4 - 1, 0, 0x21, 1, xzDictionary, 0, 0, 0}))
}

// chunk writes an LZMA2 chunk that is not compressed. The first one resets the dictionary.
func (x *storedXZ) chunk(data []byte) {
	control := byte(2)
	if x.plain == 0 {
		control = 1
	}

	x.emit(binary.BigEndian.AppendUint16([]byte{control}, uint16(len(data)-1)))
	x.emit(data)
	x.packed += 3 + uint64(len(data))
	x.plain += uint64(len(data))
}

func (x *storedXZ) emit(data []byte) {
	if x.err == nil {
		_, x.err = x.w.Write(data)
	}
}

func withCRC(data []byte) []byte {
	return binary.LittleEndian.AppendUint32(append([]byte(nil), data...), crc32.ChecksumIEEE(data))
}
