package provider

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// seen is what the watches show of all that carries the provider's mark. It is filled while Watch runs, and kept from one Watch to the
// next, which resumes where the last one ended.
//
// What is absent from it may be taken as absent for List: the library takes a machine for vanished only after two looks that missed it, and
// after Find, which always asks the API server, has missed it too. What is present may have gone since: so what is about to be changed or
// deleted is named by its UID, which the API server compares.
type seen struct {
	mu sync.Mutex
	// provider is whose mark it is.
	provider   string
	namespaces map[string]*mirrors
}

// mirrors are those of one namespace.
type mirrors struct {
	vms       *cluster.Mirror[*kubevirtv1.VirtualMachine]
	instances *cluster.Mirror[*kubevirtv1.VirtualMachineInstance]
	volumes   *cluster.Mirror[*cdiv1.DataVolume]
	claims    *cluster.Mirror[*corev1.PersistentVolumeClaim]
	secrets   *cluster.Mirror[*corev1.Secret]
}

// selectorOf finds all objects of the provider, images too.
func selectorOf(providerID string) string {
	return labels.Set{machine.LabelProvider: machine.LabelValue(providerID)}.String()
}

// of returns the provider's mirrors of a namespace, nil when nothing watches for that provider.
func (s *seen) of(providerID, namespace string) *mirrors {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.provider != providerID {
		return nil
	}

	return s.namespaces[namespace]
}

// begin returns the mirrors to be kept up to date for a provider.
func (s *seen) begin(d *Driver, providerID string) map[string]*mirrors {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.provider == providerID && s.namespaces != nil {
		return s.namespaces
	}

	s.provider, s.namespaces = providerID, map[string]*mirrors{}

	for _, namespace := range d.config.Operator.Namespaces {
		selector := selectorOf(providerID)
		s.namespaces[namespace] = &mirrors{
			vms:       d.cluster.VirtualMachines().Mirror(namespace, selector, cluster.ShortWatch, nil),
			instances: d.cluster.Instances().Mirror(namespace, selector, cluster.LongWatch, nil),
			volumes:   d.cluster.DataVolumes().Mirror(namespace, selector, cluster.LongWatch, nil),
			claims:    d.cluster.Claims().Mirror(namespace, selector, cluster.LongWatch, nil),
			// What machines are told at their boot is not kept in memory.
			secrets: d.cluster.Secrets().Mirror(namespace, selector, cluster.LongWatch, func(s *corev1.Secret) { s.Data, s.StringData = nil, nil }),
		}
	}

	return s.namespaces
}

// live reports whether all watches are open.
func (s *seen) live() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, m := range s.namespaces {
		_, vms := m.vms.All()
		_, instances := m.instances.All()
		_, volumes := m.volumes.All()
		_, claims := m.claims.All()
		_, secrets := m.secrets.All()

		if !vms || !instances || !volumes || !claims || !secrets {
			return false
		}
	}

	return len(s.namespaces) > 0
}

// Watch keeps the mirrors up to date and passes on what happens to machines, until ctx ends or one of the watches breaks. What broke one
// is no less true of the others: none is relied on then.
func (d *Driver) Watch(whole context.Context, providerID string, changed func(driver.Ref)) error {
	ctx, cancel := context.WithCancelCause(whole)
	defer cancel(nil)

	var wg sync.WaitGroup

	all := d.seen.begin(d, providerID)

	for _, m := range all {
		for _, run := range []func() error{
			func() error { return m.vms.Run(ctx, tell[*kubevirtv1.VirtualMachine](changed, false)) },
			func() error { return m.instances.Run(ctx, tell[*kubevirtv1.VirtualMachineInstance](changed, false)) },
			// Their progress is no news of the machine; their end may be.
			func() error { return m.volumes.Run(ctx, tell[*cdiv1.DataVolume](changed, true)) },
			func() error { return m.claims.Run(ctx, tell[*corev1.PersistentVolumeClaim](changed, true)) },
			func() error { return m.secrets.Run(ctx, tell[*corev1.Secret](changed, true)) },
		} {
			wg.Go(func() { cancel(run()) })
		}
	}

	wg.Wait()

	if whole.Err() == nil {
		for _, m := range all {
			m.close()
		}
	}

	return context.Cause(ctx)
}

func (m *mirrors) close() {
	m.vms.Close()
	m.instances.Close()
	m.volumes.Close()
	m.claims.Close()
	m.secrets.Close()
}

// tell passes on whose object has changed, or only has gone.
func tell[T metav1.Object](changed func(driver.Ref), endOnly bool) func(T, bool) {
	return func(o T, gone bool) {
		if mark, ok := machine.MarkOf(o); ok && (gone || !endOnly) {
			changed(mark.Ref)
		}
	}
}

// all returns the objects of a kind in a namespace that carry the provider's mark: what a mirror shows while its watch is open, else
// what the API server says. m is nil when nothing watches.
func all[T metav1.Object](ctx context.Context, m *cluster.Mirror[T], kind cluster.Kind[T], namespace, providerID string) ([]T, error) {
	if m != nil {
		if objects, live := m.All(); live {
			return objects, nil
		}
	}

	return kind.List(ctx, namespace, metav1.ListOptions{LabelSelector: selectorOf(providerID)})
}

// now returns an object of ours as a mirror shows it, else as the API server does.
func now[T metav1.Object](ctx context.Context, m *cluster.Mirror[T], kind cluster.Kind[T], namespace, name string) (T, error) {
	if m != nil {
		if o, ok := m.Get(name); ok {
			return o, nil
		}
	}

	return kind.Get(ctx, namespace, name)
}

// absent reports whether a watch that is open shows no object of that name. One that was just made may be missing.
func absent[T metav1.Object](m *cluster.Mirror[T], name string) bool {
	if m == nil {
		return false
	}

	if _, live := m.All(); !live {
		return false
	}

	_, ok := m.Get(name)

	return !ok
}

// mirrorsOf is of with mirrors that are nil when nothing watches.
func (d *Driver) mirrorsOf(providerID, namespace string) mirrors {
	if m := d.seen.of(providerID, namespace); m != nil {
		return *m
	}

	return mirrors{}
}
