package meta

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"sync"
)

const (
	// Size is how many bytes of a disk or file an Area takes.
	Size = 2 * slotSize

	slotSize   = 32 << 10
	headerSize = 24
	magic      = "SIMMETA1"
)

// ErrNoArea says that a disk or file holds no formatted area.
var ErrNoArea = errors.New("no META area")

// Area is a META in Size bytes of a disk or file. Two slots are written in turn, so that power lost within a write leaves the
// value before it. It is safe for concurrent use.
type Area struct {
	mu       sync.Mutex
	disk     disk
	values   map[uint8]string
	sequence uint64
}

type disk interface {
	io.ReaderAt
	io.WriterAt
}

// Format writes an area with values to disk, over whatever was there.
func Format(disk disk, values map[uint8]string) error {
	if _, err := disk.WriteAt(make([]byte, Size), 0); err != nil {
		return fmt.Errorf("clear META area: %w", err)
	}

	area := &Area{disk: disk}

	return area.write(values)
}

// Open reads the area that begins at the start of disk. Without one the error wraps ErrNoArea.
func Open(disk disk) (*Area, error) {
	area := &Area{disk: disk}

	data := make([]byte, Size)
	if _, err := disk.ReadAt(data, 0); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, ErrNoArea
		}

		return nil, fmt.Errorf("read META area: %w", err)
	}

	for slot := range 2 {
		sequence, values, ok := decode(data[slot*slotSize : (slot+1)*slotSize])
		if ok && sequence > area.sequence {
			area.sequence, area.values = sequence, values
		}
	}

	if area.sequence == 0 {
		return nil, ErrNoArea
	}

	return area, nil
}

// Get returns the value of key and whether there is one.
func (a *Area) Get(key uint8) (string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	value, ok := a.values[key]

	return value, ok
}

// Set stores value under key. When it returns without error the value outlives a loss of power.
func (a *Area) Set(key uint8, value string) error {
	a.mu.Lock()
	defer a.mu.Unlock()

	values := maps.Clone(a.values)
	if values == nil {
		values = map[uint8]string{}
	}

	values[key] = value

	return a.write(values)
}

// Wipe forgets every value, the old copies on disk as well.
func (a *Area) Wipe() error {
	a.mu.Lock()
	defer a.mu.Unlock()

	if err := a.write(nil); err != nil {
		return err
	}

	return a.write(nil)
}

// write stores values in the slot that does not hold the newest.
func (a *Area) write(values map[uint8]string) error {
	payload, err := json.Marshal(values)
	if err != nil {
		return fmt.Errorf("encode META: %w", err)
	}

	if len(payload) > slotSize-headerSize {
		return fmt.Errorf("write META: %d bytes of values do not fit in %d", len(payload), slotSize-headerSize)
	}

	sequence := a.sequence + 1
	slot := make([]byte, slotSize)

	copy(slot, magic)
	binary.LittleEndian.PutUint64(slot[8:], sequence)
	binary.LittleEndian.PutUint32(slot[16:], uint32(len(payload)))
	copy(slot[headerSize:], payload)
	binary.LittleEndian.PutUint32(slot[20:], checksum(slot, len(payload)))

	if _, err = a.disk.WriteAt(slot, int64(sequence%2)*slotSize); err != nil {
		return fmt.Errorf("write META: %w", err)
	}

	if file, ok := a.disk.(*os.File); ok {
		if err = file.Sync(); err != nil {
			return fmt.Errorf("flush META: %w", err)
		}
	}

	a.sequence, a.values = sequence, values

	return nil
}

func decode(slot []byte) (sequence uint64, values map[uint8]string, ok bool) {
	length := binary.LittleEndian.Uint32(slot[16:])

	if string(slot[:len(magic)]) != magic || length > slotSize-headerSize {
		return 0, nil, false
	}

	if binary.LittleEndian.Uint32(slot[20:]) != checksum(slot, int(length)) {
		return 0, nil, false
	}

	if json.Unmarshal(slot[headerSize:headerSize+length], &values) != nil {
		return 0, nil, false
	}

	return binary.LittleEndian.Uint64(slot[8:]), values, true
}

// checksum covers the sequence, the length and the payload.
func checksum(slot []byte, length int) uint32 {
	sum := crc32.NewIEEE()
	sum.Write(slot[:20])
	sum.Write(slot[headerSize : headerSize+length])

	return sum.Sum32()
}
