package nocloud

import (
	"encoding/binary"
	"strings"
)

// The image is the smallest that ECMA-119 (ISO 9660) allows: one directory, with Rock Ridge names (SUSP and RRIP 1.09),
// because plain ISO 9660 cannot spell "user-data". It is made in memory, so no copy of the join token touches a disk, and it
// holds no time of day, so the same files give the same bytes.

const (
	sectorSize = 2048

	// The first sectors are left to boot loaders; then each of these has one sector.
	volumeSector     = 16
	terminatorSector = 17
	pathTableLSector = 18
	pathTableMSector = 19
	rootSector       = 20
	firstFileSector  = 21

	pathTableSize = 10
)

type isoFile struct {
	name string
	data []byte
}

// isoImage lays out the files, whose names have to be in order, in the root directory of an image with the given label. The
// directory has to fit into one sector.
func isoImage(label string, files []isoFile) []byte {
	root := directoryRecord("\x00", rootSector, sectorSize, rockRidgeRoot()...)
	root = append(root, directoryRecord("\x01", rootSector, sectorSize, posix(0o040500, 2)...)...)

	next := firstFileSector
	image := make([]byte, firstFileSector*sectorSize)

	for _, file := range files {
		susp := append(posix(0o100400, 1), name(file.name)...)
		root = append(root, directoryRecord(plainName(file.name), next, len(file.data), susp...)...)

		sectors := (len(file.data) + sectorSize - 1) / sectorSize
		image = append(image, file.data...)
		next += sectors
		image = append(image, make([]byte, next*sectorSize-len(image))...)
	}

	sector := func(n int) []byte { return image[n*sectorSize : (n+1)*sectorSize] }

	copy(sector(rootSector), root)
	primaryVolume(sector(volumeSector), label, next)
	copy(sector(terminatorSector), "\xffCD001\x01")

	// A path table lists the directories: the root is its own parent.
	copy(sector(pathTableLSector), binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint32([]byte{1, 0}, rootSector), 1))
	copy(sector(pathTableMSector), binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32([]byte{1, 0}, rootSector), 1))

	return image
}

// primaryVolume fills in the volume descriptor of ECMA-119, 8.4.
func primaryVolume(out []byte, label string, sectors int) {
	copy(out, "\x01CD001\x01")
	text(out[8:40], "LINUX")
	text(out[40:72], label)
	copy(out[80:], both32(sectors))
	copy(out[120:], both16(1))
	copy(out[124:], both16(1))
	copy(out[128:], both16(sectorSize))
	copy(out[132:], both32(pathTableSize))
	binary.LittleEndian.PutUint32(out[140:], pathTableLSector)
	binary.BigEndian.PutUint32(out[148:], pathTableMSector)
	copy(out[156:], directoryRecord("\x00", rootSector, sectorSize))
	text(out[190:813], "")

	for _, at := range []int{813, 830, 847, 864} {
		copy(out[at:], strings.Repeat("0", 16)+"\x00")
	}

	out[881] = 1
}

// directoryRecord is ECMA-119, 9.1, with the system use area at its end.
func directoryRecord(identifier string, sector, size int, systemUse ...byte) []byte {
	const directoryFlag = 2

	record := make([]byte, 33, 255)
	copy(record[2:], both32(sector))
	copy(record[10:], both32(size))
	// Years since 1900, month, day; the same in every image.
	copy(record[18:], []byte{100, 1, 1})
	copy(record[28:], both16(1))
	record[32] = byte(len(identifier))

	if identifier < "\x02" {
		record[25] = directoryFlag
	}

	record = pad(append(record, identifier...))
	record = pad(append(record, systemUse...))
	record[0] = byte(len(record))

	return record
}

// rockRidgeRoot declares, in the root directory's own record, that Rock Ridge is in use.
func rockRidgeRoot() []byte {
	const extension = "RRIP_1991A"

	use := []byte{'S', 'P', 7, 1, 0xbe, 0xef, 0}
	use = append(use, posix(0o040500, 2)...)
	use = append(use, 'E', 'R', byte(8+len(extension)), 1, byte(len(extension)), 0, 0, 1)

	return append(use, extension...)
}

// posix is a PX entry: mode and number of links; user and group are root.
func posix(mode, links int) []byte {
	entry := append([]byte{'P', 'X', 36, 1}, both32(mode)...)
	entry = append(entry, both32(links)...)

	return append(entry, make([]byte, 16)...)
}

// name is an NM entry, the name that Linux shows.
func name(s string) []byte {
	return append([]byte{'N', 'M', byte(5 + len(s)), 1, 0}, s...)
}

// plainName is the name for systems without Rock Ridge, in the letters that ISO 9660 has.
func plainName(s string) string {
	return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) + ".;1"
}

func pad(b []byte) []byte {
	if len(b)%2 == 1 {
		return append(b, 0)
	}

	return b
}

// text fills a field with s and blanks.
func text(field []byte, s string) {
	for i := copy(field, s); i < len(field); i++ {
		field[i] = ' '
	}
}

// both32 and both16 are numbers in both byte orders, as ISO 9660 stores them.
func both32(n int) []byte {
	return binary.BigEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(n)), uint32(n))
}

func both16(n int) []byte {
	return binary.BigEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, uint16(n)), uint16(n))
}
