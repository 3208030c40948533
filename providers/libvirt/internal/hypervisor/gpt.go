package hypervisor

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// The places in a disk with a GUID partition table (UEFI specification, 5.3) that tell its size: the table's header is in the second
// sector, and names the sector of its copy, which is the last one of the disk.
const (
	sectorSize    = 512
	headerSize    = 92
	copyOffset    = 32
	gptSignature  = "EFI PART"
	largestSector = 1 << 42
)

// gptSize returns the size of the disk that begins with head; false if it has no GUID partition table.
func gptSize(head []byte) (uint64, bool) {
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

// measure returns how many bytes an image has, which a device has to be told before it is filled. Talos' images say so at their
// beginning; others are read through once.
func measure(ctx context.Context, source driver.Image) (uint64, error) {
	r, err := source.Open(ctx)
	if err != nil {
		return 0, err
	}

	defer func() { _ = r.Close() }()

	head := make([]byte, sectorSize+headerSize)

	n, err := fill(r, head)
	if size, ok := gptSize(head[:n]); ok {
		return size, nil
	}

	size := uint64(n)
	chunk := make([]byte, chunkSize)

	for err == nil {
		n, err = fill(r, chunk)
		size += uint64(n)
	}

	if err != io.EOF { //nolint:errorlint // A wrapped EOF is a source that broke off.
		return 0, fmt.Errorf("read boot image %s: %w", source.Key(), err)
	}

	return size, nil
}
