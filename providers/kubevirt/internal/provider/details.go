package provider

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// What goes on for longer than detailsAfter is looked at more closely, each time that detailsEvery has passed: the reason of a claim that
// gets no storage is in events alone. Users read it within a minute, and a machine that comes up as it should costs no such calls.
const (
	detailsAfter = 20 * time.Second
	detailsEvery = 30 * time.Second
)

// waitFor names what is waited for.
type waitFor struct {
	ref  driver.Ref
	what string
}

// imageWait is the wait for an image, which is nobody's alone.
func imageWait(image machine.ImageVolume) driver.Ref { return driver.Ref{ProviderID: image.ProviderID} }

// details are the claims of what is waited for, what is told of it in events, and since when each volume is as it is.
type details struct {
	claims []corev1.PersistentVolumeClaim
	events []corev1.Event
	still  map[string]time.Time
}

func (d details) claim(name string) *corev1.PersistentVolumeClaim {
	for i := range d.claims {
		if d.claims[i].Name == name {
			return &d.claims[i]
		}
	}

	return nil
}

// progresses is what is waited for. Its zero value is ready for use.
type progresses struct {
	mu    sync.Mutex
	waits map[waitFor]*wait
}

type wait struct {
	since, looked time.Time
	details       details
	// progress is how far each volume was when that was new.
	progress map[string]progress
}

// progress is how far a volume is.
type progress struct {
	uid   types.UID
	phase cdiv1.DataVolumePhase
	told  cdiv1.DataVolumeProgress
	since time.Time
}

// note notes how far the volumes are.
func (w *wait) note(volumes []*cdiv1.DataVolume) {
	before := w.progress
	w.progress, w.details.still = make(map[string]progress, len(volumes)), make(map[string]time.Time, len(volumes))

	for _, v := range volumes {
		is := progress{uid: v.UID, phase: v.Status.Phase, told: v.Status.Progress, since: before[v.Name].since}
		if is != before[v.Name] {
			is.since = time.Now()
		}

		w.progress[v.Name], w.details.still[v.Name] = is, is.since
	}
}

// mostWaits bounds the waits that are remembered; those of machines are forgotten when they run or go.
const mostWaits = 4096

// due returns what is known of volumes that are waited for, and whether it is time to look more closely.
func (p *progresses) due(w waitFor, volumes []*cdiv1.DataVolume) (known details, due bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	one, ok := p.waits[w]
	if !ok {
		if p.waits == nil || len(p.waits) >= mostWaits {
			p.waits = map[waitFor]*wait{}
		}

		one = &wait{since: time.Now()}
		p.waits[w] = one
	}

	one.note(volumes)

	if time.Since(one.since) < detailsAfter || time.Since(one.looked) < detailsEvery {
		return one.details, false
	}

	one.looked = time.Now()

	return one.details, true
}

func (p *progresses) set(w waitFor, d details) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if one, ok := p.waits[w]; ok {
		d.still = one.details.still
		one.details = d
	}
}

// forget ends the waits of a request.
func (p *progresses) forget(ref driver.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for w := range p.waits {
		if w.ref == ref {
			delete(p.waits, w)
		}
	}
}

// warningsOf selects the warnings about what a field of them names.
func warningsOf(field, value string) fields.Set {
	return fields.Set{field: value, "type": corev1.EventTypeWarning}
}

// The fields of events that say what they are about.
const (
	eventsName = "involvedObject.name"
	eventsUID  = "involvedObject.uid"
)

// eventsOf selects the warnings about a machine and its pods, whose names are nowhere but in the pods.
func eventsOf(vm *kubevirtv1.VirtualMachine, instance *kubevirtv1.VirtualMachineInstance) []fields.Set {
	about := []fields.Set{warningsOf(eventsName, vm.Name)}

	if instance != nil {
		for uid := range instance.Status.ActivePods {
			about = append(about, warningsOf(eventsUID, string(uid)))
		}
	}

	return about
}

// detailsOf looks more closely at volumes that are waited for, and at other events, when that is due. What cannot be
// seen is left out: it would only say more.
func (m *maker) detailsOf(ctx context.Context, namespace string, w waitFor, events []fields.Set, volumes ...*cdiv1.DataVolume) details {
	known, due := m.progress.due(w, volumes)
	if !due {
		return known
	}

	d := details{still: known.still}

	for _, v := range volumes {
		claim, err := now(ctx, m.mirrorsOf(m.req.ProviderID, namespace).claims, m.cluster.Claims(), namespace, v.Name)
		if err == nil {
			d.claims = append(d.claims, *claim)
			// CDI fills another claim, which becomes this one at the end.
			events = append(events, fields.Set{eventsName: machine.PrimeOf(claim)}, warningsOf(eventsName, machine.ImporterOf(claim)))
		}

		// What keeps a claim without storage need not be a warning.
		events = append(events, fields.Set{eventsName: v.Name})
	}

	for _, selected := range events {
		some, err := m.cluster.Events().List(ctx, namespace, metav1.ListOptions{FieldSelector: selected.String(), Limit: mostEvents})
		if err != nil {
			continue
		}

		for _, e := range some {
			d.events = append(d.events, *e)
		}
	}

	m.progress.set(w, d)

	return d
}

// mostEvents bounds what is read of the events about one object.
const mostEvents = 100
