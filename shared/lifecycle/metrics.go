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
	place  *prometheus.GaugeVec
	leader prometheus.Gauge
	left   *prometheus.GaugeVec
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
			Help: "1 when the last check reached the cloud with valid credentials, be it some of its places alone, else 0.",
		}),
		place: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "omni_infra_place_up",
			Help: "1 when the last check reached the place, else 0; for clouds whose machines are at several places.",
		}, []string{"place"}),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "omni_infra_leader",
			Help: "1 when this process holds the provider's lease and acts, 0 when it waits for another one.",
		}),
		left: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "omni_infra_left_over",
			Help: "What is left over: machines and objects without a request (orphan), with a damaged mark (unreadable), requests that do not go (stuck).",
		}, []string{"kind"}),
	}

	registry.MustRegister(m.errors, m.phases, m.cloud, m.place, m.leader, m.left)

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

	if err != nil && driver.UnseenOf(err) == nil {
		m.cloud.Set(0)
	} else {
		m.cloud.Set(1)
	}
}

// places notes which of the places a check reached.
func (m *Metrics) places(places []string, err error) {
	if m == nil {
		return
	}

	m.place.Reset()

	unseen := driver.UnseenOf(err)

	for _, place := range places {
		up := m.place.WithLabelValues(place)

		if err == nil || unseen != nil && !hides(unseen, place) {
			up.Set(1)
		} else {
			up.Set(0)
		}
	}
}

func (m *Metrics) leads(held bool) {
	if m == nil {
		return
	}

	m.leader.Set(0)

	if held {
		m.leader.Set(1)
	}
}

func (m *Metrics) leftOver(findings []Finding) {
	if m == nil {
		return
	}

	for _, kind := range []FindingKind{FindingOrphan, FindingUnreadable, FindingStuck} {
		n := 0

		for _, f := range findings {
			if f.Kind == kind {
				n++
			}
		}

		m.left.WithLabelValues(string(kind)).Set(float64(n))
	}
}
