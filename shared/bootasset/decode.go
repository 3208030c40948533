package bootasset

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"github.com/ulikunitz/xz/lzma"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// maxWindow is the most memory that a compressed image may ask its decoder to keep, what the strongest settings of xz need.
const maxWindow = 64 << 20

// decoders are the ways to unpack an image, by the last part of its extension. They stream.
var decoders = map[string]func(io.Reader) (io.ReadCloser, error){
	"":    func(r io.Reader) (io.ReadCloser, error) { return io.NopCloser(r), nil },
	"gz":  func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) },
	"xz":  decodeXZ,
	"zst": decodeZstandard,
}

func decodeZstandard(r io.Reader) (io.ReadCloser, error) {
	d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}

	return d.IOReadCloser(), nil
}

// decodeXZ looks at the first block's header itself, because the decoder allocates whatever dictionary an image names, and at
// the last stream's footer, because the decoder takes a file that is cut between two blocks for a whole one.
func decodeXZ(r io.Reader) (io.ReadCloser, error) {
	input := &tail{r: r}
	buffered := bufio.NewReaderSize(input, 1<<16)

	head, err := buffered.Peek(xzHeadSize)
	if err != nil && !atEnd(err) {
		return nil, err
	}

	size, err := xzDictionary(head)
	if err != nil {
		return nil, err
	}

	if size > maxWindow {
		return nil, driver.Terminalf("the image needs a dictionary of %d MiB to unpack: at most %d MiB are given", size>>20, maxWindow>>20)
	}

	d, err := xz.NewReader(buffered)
	if err != nil {
		return nil, err
	}

	return io.NopCloser(&wholeXZ{decoded: d, input: input}), nil
}

// wholeXZ ends without an error only after the footer of a stream.
type wholeXZ struct {
	decoded io.Reader
	input   *tail
}

func (w *wholeXZ) Read(p []byte) (int, error) {
	n, err := w.decoded.Read(p)
	if atEnd(err) && !xzFooter(w.input.last) {
		err = io.ErrUnexpectedEOF
	}

	return n, err
}

// tail remembers the last bytes that were read, as many as an xz footer has.
type tail struct {
	r    io.Reader
	last []byte
}

func (t *tail) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)

	t.last = append(t.last, p[max(0, n-xzStreamFooter):n]...)
	t.last = append(t.last[:0], t.last[max(0, len(t.last)-xzStreamFooter):]...)

	return n, err
}

// xzFooter checks the layout of "The .xz File Format", 2.1.2.
func xzFooter(b []byte) bool {
	return len(b) == xzStreamFooter && string(b[10:]) == "YZ" && crc32.ChecksumIEEE(b[4:10]) == binary.LittleEndian.Uint32(b)
}

// atEnd reports whether a reader came to its end, which io.EOF itself says and no error around it.
func atEnd(err error) bool {
	return err == io.EOF //nolint:errorlint // See above.
}

const (
	xzStreamHeader = 12
	xzStreamFooter = 12
	// A block header has at most 1024 bytes.
	xzHeadSize = xzStreamHeader + 1024
)

// xzDictionary returns the dictionary size of the first block, zero when there is no block. The layout is that of "The .xz
// File Format", 2.1.1 and 3.1.
func xzDictionary(head []byte) (int64, error) {
	const lzma2Filter = 0x21

	errNoXZ := fmt.Errorf("the data is not an xz file")

	if len(head) <= xzStreamHeader || string(head[:6]) != "\xfd7zXZ\x00" {
		return 0, errNoXZ
	}

	// The size of the header, in units of four bytes; zero stands for the index, after the last block.
	block := head[xzStreamHeader:]
	if block[0] == 0 {
		return 0, nil
	}

	if size := (int(block[0]) + 1) * 4; len(block) >= size {
		block = block[:size]
	}

	if len(block) < 2 {
		return 0, errNoXZ
	}

	flags, rest := block[1], block[2:]

	next := func() (uint64, bool) {
		n, used := binary.Uvarint(rest)
		rest = rest[max(used, 0):]

		return n, used > 0
	}

	// The compressed and the uncompressed size, each only with its flag.
	for _, flag := range []byte{0x40, 0x80} {
		if flags&flag != 0 {
			if _, ok := next(); !ok {
				return 0, errNoXZ
			}
		}
	}

	for range flags&3 + 1 {
		id, ok1 := next()
		length, ok2 := next()

		if !ok1 || !ok2 || length > uint64(len(rest)) {
			return 0, errNoXZ
		}

		if id == lzma2Filter && length == 1 {
			return lzma.DecodeDictCap(rest[0])
		}

		rest = rest[length:]
	}

	return 0, errNoXZ
}
