package provider

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/rack"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

const (
	// mostTries is how often a chunk is sent before the import is given up.
	mostTries = 6
	// firstRetry is the pause before a chunk is sent again; it doubles.
	firstRetry = 250 * time.Millisecond
)

// chunk is a part of an image.
type chunk struct {
	offset uint64
	data   []byte
}

// write sends an image to a disk, several parts at once. A disk that was never written to reads as zeros, so what is zero is not sent. There
// are never more chunks in memory than can be under way.
func (d *Driver) write(ctx context.Context, disk oxide.Disk, from *source, progress func(string)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var wg sync.WaitGroup

	full, empty := make(chan chunk), make(chan []byte, d.config.Writers+1)

	for range d.config.Writers + 1 {
		empty <- make([]byte, chunkSize)
	}

	for range d.config.Writers {
		wg.Go(func() {
			for c := range full {
				if err := d.writeChunk(ctx, disk, c); err != nil {
					cancel(err)
				}

				empty <- c.data[:chunkSize]
			}
		})
	}

	err := readChunks(ctx, from, full, empty, progress)

	close(full)
	wg.Wait()

	// What a writer has met is why the reader was stopped.
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}

	return err
}

// readChunks reads an image and passes on what is not zero.
func readChunks(ctx context.Context, from *source, full chan<- chunk, empty <-chan []byte, progress func(string)) error {
	var offset uint64

	for said := ""; ; {
		var buffer []byte

		select {
		case buffer = <-empty:
		case <-ctx.Done():
			return ctx.Err()
		}

		for {
			n, err := from.next(buffer)
			if err != nil && err != io.EOF { //nolint:errorlint // A wrapped EOF is a source that broke off.
				return err
			}

			at := offset
			offset += uint64(n)

			if offset > wholeGiB(from.size) {
				return fmt.Errorf("the boot image is larger than the %d bytes that it says it has", from.size)
			}

			if text := from.progress(offset); text != said {
				said = text
				progress(text)
			}

			if !isZero(buffer[:n]) {
				select {
				case full <- chunk{offset: at, data: buffer[:n]}:
				case <-ctx.Done():
					return ctx.Err()
				}

				if err == nil {
					break
				}
			}

			switch {
			case err == nil:
			case offset < from.size:
				return fmt.Errorf("the boot image ends after %d bytes of %d", offset, from.size)
			default:
				return nil
			}
		}
	}
}

var zeros [chunkSize]byte

func isZero(data []byte) bool { return bytes.Equal(data, zeros[:len(data)]) }

// writeChunk sends a part of an image, again if need be. The rack takes whole blocks, so the last part is filled up with zeros.
func (d *Driver) writeChunk(ctx context.Context, disk oxide.Disk, c chunk) error {
	if rest := len(c.data) % sectorSize; rest != 0 {
		end := len(c.data) + sectorSize - rest
		clear(c.data[len(c.data):end])
		c.data = c.data[:end]
	}

	data := base64.StdEncoding.EncodeToString(c.data)
	wait := firstRetry

	for try := 1; ; try++ {
		err := d.rack.Write(ctx, disk, c.offset, data)

		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case driver.IsNotFound(err) || rack.Invalid(err) || try == mostTries:
			return err
		}

		if err := sleep(ctx, max(wait, driver.PauseOf(err))); err != nil {
			return err
		}

		wait *= 2
	}
}
