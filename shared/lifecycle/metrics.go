package lifecycle

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Metrics are what the library counts. A nil *Metrics counts nothing.
type Metrics struct {
	errors *prometheus.CounterVec
	phases *prometheus.HistogramVec
	cloud  prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "omni_infra_errors_total",
			Help: "Turns of machine requests that failed, by the kind of error.",
		}, []string{"kind"}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "omni_infra_phase_seconds",
			Help:    "Time that a run of a provisioning phase took.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 10),
		}, []string{"phase"}),
		cloud: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "omni_infra_cloud_up",
			Help: "1 when the last check reached the cloud with valid credentials, else 0.",
		}),
	}

	registry.MustRegister(m.errors, m.phases, m.cloud)

	return m
}

func (m *Metrics) failed(kind driver.Kind) {
	if m != nil && kind != driver.KindPending {
		m.errors.WithLabelValues(kind.String()).Inc()
	}
}

func (m *Metrics) phase(name string, took time.Duration) {
	if m != nil {
		m.phases.WithLabelValues(name).Observe(took.Seconds())
	}
}

func (m *Metrics) checked(err error) {
	if m == nil {
		return
	}

	if err != nil {
		m.cloud.Set(0)
	} else {
		m.cloud.Set(1)
	}
}
