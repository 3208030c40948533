package cdi

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// HTTP returns a function for Options.Fetch that really reads images, with that client, and measures their disks: raw ones, those
// compressed by gzip, xz or zstd, and qcow2. Nothing is kept. A registry's image is taken to fit everywhere.
func HTTP(client *http.Client) func(ctx context.Context, s Source) (Image, error) {
	return func(ctx context.Context, s Source) (Image, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
		if err != nil || request.URL.Scheme != "http" && request.URL.Scheme != "https" {
			return Image{}, err
		}

		response, err := client.Do(request)
		if err != nil {
			return Image{}, fmt.Errorf("Unable to connect to http data source: %w", err) //nolint:staticcheck // As CDI words it.
		}
		defer response.Body.Close() //nolint:errcheck // Only read from.

		if response.StatusCode != http.StatusOK {
			return Image{}, fmt.Errorf("Unable to connect to http data source: expected status code 200, got %d. Status: %s", //nolint:staticcheck // As CDI words it.
				response.StatusCode, response.Status)
		}

		size, err := virtualSize(response.Body)
		if err != nil {
			return Image{}, fmt.Errorf("Unable to process data: %w", err) //nolint:staticcheck // As CDI words it.
		}

		return Image{VirtualSize: size}, nil
	}
}

// qcow2 is the head of an image of QEMU's; its virtual size is at an offset, big-endian.
var qcow2 = []byte("QFI\xfb")

const (
	qcow2Head = 32
	qcow2Size = 24
)

// virtualSize reads an image to its end and returns the size of its disk.
func virtualSize(body io.Reader) (int64, error) {
	r := bufio.NewReader(body)
	head, _ := r.Peek(qcow2Head) // A shorter image is none of these.

	var (
		plain io.Reader = r
		err   error
	)

	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		plain, err = gzip.NewReader(r)
	case bytes.HasPrefix(head, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		plain, err = xz.NewReader(r)
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		var decoder *zstd.Decoder

		decoder, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
		if err == nil {
			defer decoder.Close()
		}

		plain = decoder
	case len(head) == qcow2Head && bytes.HasPrefix(head, qcow2):
		if _, err := io.Copy(io.Discard, r); err != nil {
			return 0, err
		}

		return int64(binary.BigEndian.Uint64(head[qcow2Size:])), nil //nolint:gosec // A size above 8 EiB fits nowhere either way.
	}

	if err != nil {
		return 0, err
	}

	return io.Copy(io.Discard, plain)
}
