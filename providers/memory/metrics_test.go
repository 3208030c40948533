package memory_test

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics has the registries of all processes of a run.
type metrics struct {
	mu         sync.Mutex
	registries []*prometheus.Registry
}

func (m *metrics) registry() *prometheus.Registry {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.registries = append(m.registries, prometheus.NewRegistry())

	return m.registries[len(m.registries)-1]
}

func (m *metrics) texts() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()

	texts := map[string]string{}

	for i, r := range m.registries {
		families, err := r.Gather()
		texts[fmt.Sprintf("the metrics of process %d", i+1)] = fmt.Sprint(families, err)
	}

	return texts
}
