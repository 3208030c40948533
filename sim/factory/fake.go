package factory

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// Fake is a source of images that cannot boot: a raw disk of Size bytes whose first sector tells what it is an image of, in any
// format that is asked for. The same request always gives the same bytes.
type Fake struct {
	// Size is the virtual size; zero means 1 MiB. It is rounded up to whole sectors.
	Size int
}

const (
	fakeSize   = 1 << 20
	sectorSize = 512
)

// Open returns the image.
func (s Fake) Open(_ context.Context, image Image) (File, error) {
	size := s.Size
	if size <= 0 {
		size = fakeSize
	}

	disk := make([]byte, (size+sectorSize-1)/sectorSize*sectorSize)
	copy(disk, FakeLabel(image))

	data, err := encode(disk, image.Format)
	if err != nil {
		return nil, err
	}

	return memoryFile{bytes.NewReader(data)}, nil
}

// FakeLabel is the text at the start of a fake disk.
func FakeLabel(image Image) string {
	return fmt.Sprintf("fake Talos %s %s-%s secureboot=%t schematic %s\n", image.Version, image.Platform, image.Arch, image.SecureBoot, image.ID)
}

type memoryFile struct{ *bytes.Reader }

func (memoryFile) Close() error { return nil }

func encode(disk []byte, format string) ([]byte, error) {
	var (
		out    bytes.Buffer
		writer io.WriteCloser
		err    error
	)

	switch format {
	case "raw", "iso":
		return disk, nil
	case "qcow2":
		return qcow2(disk), nil
	case "raw.gz":
		writer = gzip.NewWriter(&out)
	case "raw.xz":
		// A small dictionary: this has to be fast, not small.
		writer, err = xz.WriterConfig{DictCap: 1 << 16}.NewWriter(&out)
	case "raw.zst":
		writer, err = zstd.NewWriter(&out)
	default:
		return nil, fmt.Errorf("format %q: %w", format, ErrNoImage)
	}

	if err != nil {
		return nil, err
	}

	if _, err = writer.Write(disk); err != nil {
		return nil, err
	}

	if err = writer.Close(); err != nil {
		return nil, err
	}

	return out.Bytes(), nil
}

// qcow2 returns a version 2 image of disk in which every cluster is allocated (QEMU's docs/interop/qcow2.txt).
func qcow2(disk []byte) []byte {
	const (
		clusterBits = 16
		cluster     = 1 << clusterBits
		copied      = 1 << 63
		perTable    = cluster / 8
	)

	data := (len(disk) + cluster - 1) / cluster
	tables := (data + perTable - 1) / perTable
	// The header, the refcount table, one refcount block, the L1 table, the L2 tables, then the data. One block counts 32768
	// clusters, or 2 GiB.
	total := 4 + tables + data

	image := make([]byte, total*cluster)
	be := binary.BigEndian

	copy(image, "QFI\xfb")
	be.PutUint32(image[4:], 2)
	be.PutUint32(image[20:], clusterBits)
	be.PutUint64(image[24:], uint64(len(disk)))
	be.PutUint32(image[36:], uint32(tables))
	be.PutUint64(image[40:], 3*cluster)
	be.PutUint64(image[48:], cluster)
	be.PutUint32(image[56:], 1)

	be.PutUint64(image[cluster:], 2*cluster)

	for i := range total {
		be.PutUint16(image[2*cluster+2*i:], 1)
	}

	for i := range tables {
		be.PutUint64(image[3*cluster+8*i:], uint64((4+i)*cluster)|copied)
	}

	for i := range data {
		be.PutUint64(image[4*cluster+8*i:], uint64((4+tables+i)*cluster)|copied)
	}

	copy(image[(4+tables)*cluster:], disk)

	return image
}
