package conformance

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"sync"
)

// schematics is the image factory behind Omni. It keeps what it was asked for.
type schematics struct {
	mu  sync.Mutex
	raw []string
}

// EnsureSchematic takes a schematic.
func (s *schematics) EnsureSchematic(_ context.Context, raw []byte) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.raw = append(s.raw, string(raw))
	sum := sha256.Sum256(raw)

	return hex.EncodeToString(sum[:]), nil
}

func (s *schematics) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Clone(s.raw)
}
