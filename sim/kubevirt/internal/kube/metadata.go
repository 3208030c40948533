package kube

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Metadata is a mirror for those who look at the metadata of objects only, whatever their kind. Objects that it returns are shared.
type Metadata interface {
	// Synced is Mirror.Synced.
	Synced(ctx context.Context) bool
	// OnMetadata calls f with each object that has come, has changed or has gone, in its last state. It is called before Run.
	OnMetadata(f func(metav1.Object))
	// MetadataOf returns the object, nil if there is none.
	MetadataOf(namespace, name string) metav1.Object
	// AllMetadata returns all objects in the order of their names.
	AllMetadata() []metav1.Object
}

// OnMetadata implements Metadata.
func (m *Mirror[T, P]) OnMetadata(f func(metav1.Object)) { m.OnChange(func(o P) { f(o) }) }

// MetadataOf implements Metadata.
func (m *Mirror[T, P]) MetadataOf(namespace, name string) metav1.Object {
	if o := m.Get(namespace, name); o != nil {
		return o
	}

	return nil
}

// AllMetadata implements Metadata.
func (m *Mirror[T, P]) AllMetadata() []metav1.Object {
	objects := m.List()
	all := make([]metav1.Object, len(objects))

	for i, o := range objects {
		all[i] = o
	}

	return all
}
