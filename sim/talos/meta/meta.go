// Package meta keeps the few values of a simulated machine that outlive a boot, as Talos keeps them in its META partition.
// sim/talos, its guest and the image builder of sim/factory import it. The layout on disk is this package's own, not that of
// Talos.
package meta

import (
	"maps"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/meta"
)

// The keys that a joining machine reads; the numbers are those of Talos.
const (
	UUIDOverride       uint8 = meta.UUIDOverride
	UniqueMachineToken uint8 = meta.UniqueMachineToken
)

// Memory is a META that lives as long as its value. The zero value is empty and ready, and safe for concurrent use.
type Memory struct {
	mu     sync.Mutex
	values map[uint8]string
}

// Get returns the value of key and whether there is one.
func (m *Memory) Get(key uint8) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()

	value, ok := m.values[key]

	return value, ok
}

// Set stores value under key.
func (m *Memory) Set(key uint8, value string) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.values == nil {
		m.values = map[uint8]string{}
	}

	m.values[key] = value

	return nil
}

// Wipe forgets every value.
func (m *Memory) Wipe() error {
	m.mu.Lock()
	defer m.mu.Unlock()

	clear(m.values)

	return nil
}

// Values returns a copy of all values.
func (m *Memory) Values() map[uint8]string {
	m.mu.Lock()
	defer m.mu.Unlock()

	return maps.Clone(m.values)
}
