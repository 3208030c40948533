package machine

import (
	"bytes"
	"fmt"
)

// MarkSize is the length of the block at the head of a seed that holds the mark. It lies in the part of ISO 9660 that is left to
// systems, where readers of the file system do not look, and where it is found however large a device the seed lies on.
const MarkSize = 8 << 10

// MarkSeed puts the request's mark into the head of the file system.
func MarkSeed(iso []byte, m Mark) ([]byte, error) {
	// Whose it is and where the rest is have to fit; what else the mark says is with the domain.
	m.Labels = nil

	element, err := m.Element()
	if err != nil {
		return nil, err
	}

	if len(element) > MarkSize {
		return nil, fmt.Errorf("mark the seed of %q: the mark has %d bytes of at most %d", m.Ref(), len(element), MarkSize)
	}

	if len(iso) < MarkSize || len(bytes.Trim(iso[:MarkSize], "\x00")) > 0 {
		return nil, fmt.Errorf("mark the seed of %q: its file system has no room for a mark", m.Ref())
	}

	marked := bytes.Clone(iso)
	copy(marked, element)

	return marked, nil
}

// ParseSeedMark reads the first MarkSize bytes of a seed.
func ParseSeedMark(block []byte) (Mark, error) {
	return ParseMark(string(bytes.TrimRight(block, "\x00")))
}
