package libvirt

import (
	"encoding/binary"
	"path"
	"time"
)

// blockSize is the grain in which content is kept: blocks that were never written take no space.
const blockSize = 4096

// file is a file, or a block device, of the host. It keeps what was written to it, but for holes.
type file struct {
	size   uint64
	blocks map[uint64][]byte // They are never changed in place, so that clones can share them.
	// reserved is space taken without having been written.
	reserved uint64
	mode     string
	changed  time.Time
	// virtual, backing and backingFormat are what the header of a qcow2 image says; header says that it has one.
	header        bool
	version       uint32
	virtual       uint64
	backing       string
	backingFormat string
}

func newFile(size uint64, mode string) *file {
	return &file{size: size, blocks: map[uint64][]byte{}, mode: mode, changed: time.Now()}
}

// clone returns a file with the same content.
func (f *file) clone() *file {
	c := *f
	c.blocks = make(map[uint64][]byte, len(f.blocks))

	for i, b := range f.blocks {
		c.blocks[i] = b
	}

	return &c
}

// allocation is the space that the file takes.
func (f *file) allocation() uint64 {
	written := uint64(len(f.blocks)) * blockSize

	return max(written, f.reserved)
}

// capacity is the size of the disk in the file.
func (f *file) capacity() uint64 {
	if f.header {
		return f.virtual
	}

	return f.size
}

func (f *file) format() string {
	if f.header {
		return "qcow2"
	}

	return "raw"
}

// write puts data at an offset, and makes the file longer if need be.
func (f *file) write(offset uint64, data []byte) {
	f.changed = time.Now()
	f.size = max(f.size, offset+uint64(len(data)))

	for at := offset; len(data) > 0; {
		index, start := at/blockSize, at%blockSize
		n := min(uint64(len(data)), blockSize-start)
		block := make([]byte, blockSize)
		copy(block, f.blocks[index])
		copy(block[start:], data[:n])
		f.blocks[index] = block
		data = data[n:]
		at += n
	}

	f.probe()
}

// hole leaves a hole of that length at an offset.
func (f *file) hole(offset, length uint64) {
	f.changed = time.Now()
	f.size = max(f.size, offset+length)
}

// truncate cuts the file, or makes it longer.
func (f *file) truncate(size uint64) {
	f.changed, f.size = time.Now(), size

	for index := range f.blocks {
		if index*blockSize >= size {
			delete(f.blocks, index)
		}
	}

	f.probe()
}

// read returns the file's own bytes from an offset.
func (f *file) read(offset, length uint64) []byte {
	if offset >= f.size {
		return nil
	}

	out := make([]byte, min(length, f.size-offset))

	for done := uint64(0); done < uint64(len(out)); {
		index, start := (offset+done)/blockSize, (offset+done)%blockSize
		n := min(uint64(len(out))-done, blockSize-start)

		if block, ok := f.blocks[index]; ok {
			copy(out[done:done+n], block[start:])
		}

		done += n
	}

	return out
}

// extent returns how many bytes from an offset are data, or a hole.
func (f *file) extent(offset uint64) (data bool, length uint64) {
	_, data = f.blocks[offset/blockSize]
	end := (offset/blockSize + 1) * blockSize

	for end < f.size {
		if _, more := f.blocks[end/blockSize]; more != data {
			break
		}

		end += blockSize
	}

	return data, min(end, f.size) - offset
}

// roundUp returns the smallest multiple of a size that is not below n.
func roundUp(n, multiple uint64) uint64 { return (n + multiple - 1) / multiple * multiple }

// sector is what sizes of qcow2 images are multiples of.
const sector = 512

// The header of a qcow2 image: magic and version, where the name of the backing file is and how long, and the disk's size.
const (
	qcowMagic  = "QFI\xfb"
	qcowHeader = 104
	qcowMin    = 196616 // the size of an empty image
)

// formatQcow2 makes the file an empty qcow2 image of a version.
func (f *file) formatQcow2(version uint32, virtual uint64, backing, backingFormat string) {
	header := make([]byte, qcowHeader+len(backing))
	copy(header, qcowMagic)
	binary.BigEndian.PutUint32(header[4:], version)

	if backing != "" {
		binary.BigEndian.PutUint64(header[8:], qcowHeader)
		binary.BigEndian.PutUint32(header[16:], uint32(len(backing))) //nolint:gosec // Paths are short.
		copy(header[qcowHeader:], backing)
	}

	binary.BigEndian.PutUint32(header[20:], 16)
	binary.BigEndian.PutUint64(header[24:], virtual)

	f.size = qcowMin
	f.reserved = qcowMin/blockSize*blockSize + blockSize
	f.write(0, header)
	f.backingFormat = backingFormat
}

// resizeQcow2 changes the size in the header.
func (f *file) resizeQcow2(virtual uint64) {
	f.write(24, binary.BigEndian.AppendUint64(nil, roundUp(virtual, sector)))
}

// probe reads the header, if the file has one.
func (f *file) probe() {
	before := f.backing
	f.header, f.virtual, f.backing = false, 0, ""

	header := f.read(0, qcowHeader)
	if len(header) < 32 || string(header[:4]) != qcowMagic {
		return
	}

	f.header, f.virtual = true, binary.BigEndian.Uint64(header[24:])
	f.version = binary.BigEndian.Uint32(header[4:])

	at, length := binary.BigEndian.Uint64(header[8:]), binary.BigEndian.Uint32(header[16:])
	if at == 0 || length > 1023 {
		return
	}

	f.backing = string(f.read(at, uint64(length)))
	if f.backing != before {
		f.backingFormat = "" // An upload brings its own, which the name does not tell.
	}
}

// readLocked returns what a guest reads from a disk: that of an overlay is what lies below it, as far as the guest has not
// written, which guests here never do.
func (h *Hypervisor) readLocked(f *file, offset, length uint64) []byte {
	if f.header {
		below := h.files[f.backing]
		if f.backing == "" || below == nil {
			return make([]byte, min(length, f.virtual-min(offset, f.virtual)))
		}

		return h.readLocked(below, offset, length)
	}

	return f.read(offset, length)
}

func (h *Hypervisor) removeFileLocked(kind, name string) {
	if h.files[name] != nil {
		delete(h.files, name)
		h.goneLocked(kind, name)
	}
}

// filesInLocked returns the files of a folder by their names.
func (h *Hypervisor) filesInLocked(folder string) map[string]*file {
	found := map[string]*file{}

	for name, f := range h.files {
		if path.Dir(name) == folder {
			found[path.Base(name)] = f
		}
	}

	return found
}
