package mvcc

import (
	"bytes"
	"io"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// memo keeps what a value was read as, for all who read it after. Its methods may be called from several goroutines.
type memo struct {
	mu   sync.Mutex
	read map[*Storage]*shared
}

// of returns the object that decode makes of the value for a storage.
func (m *memo) of(s *Storage, decode func() (runtime.Object, error)) (*shared, error) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if known := m.read[s]; known != nil {
		return known, nil
	}

	object, err := decode()
	if err != nil {
		return nil, err
	}

	if m.read == nil {
		m.read = map[*Storage]*shared{}
	}

	m.read[s] = &shared{object: object}

	return m.read[s], nil
}

// forget gives the memory back. The value is read anew when somebody asks again.
func (m *memo) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.read = nil
}

// shared is an object that several readers have at once. It keeps the texts that it was written as, as the objects in the cache of the
// real server's watches do. Whoever wants to change it takes a copy.
type shared struct {
	object runtime.Object

	mu    sync.Mutex
	texts map[runtime.Identifier]text
}

type text struct {
	raw []byte
	err error
}

var _ runtime.CacheableObject = (*shared)(nil)

// CacheEncode implements runtime.CacheableObject.
func (o *shared) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	t := o.text(id, encode)
	if t.err != nil {
		return t.err
	}

	_, err := w.Write(t.raw)

	return err
}

func (o *shared) text(id runtime.Identifier, encode func(runtime.Object, io.Writer) error) text {
	o.mu.Lock()
	defer o.mu.Unlock()

	t, ok := o.texts[id]
	if !ok {
		var buffer bytes.Buffer

		// Encoders give an object its kind while they write it, so they get a copy.
		err := encode(o.GetObject(), &buffer)
		t = text{raw: buffer.Bytes(), err: err}

		if o.texts == nil {
			o.texts = map[runtime.Identifier]text{}
		}

		o.texts[id] = t
	}

	return t
}

// GetObject implements runtime.CacheableObject. It returns a copy.
func (o *shared) GetObject() runtime.Object { return o.object.DeepCopyObject() }

// GetObjectKind implements runtime.Object.
func (o *shared) GetObjectKind() schema.ObjectKind { return o.object.GetObjectKind() }

// DeepCopyObject implements runtime.Object.
func (o *shared) DeepCopyObject() runtime.Object { return &shared{object: o.GetObject()} }

// copyTo fills out, which is of the object's type.
func (o *shared) copyTo(out runtime.Object) {
	if u, ok := out.(runtime.Unstructured); ok {
		u.SetUnstructuredContent(o.GetObject().(runtime.Unstructured).UnstructuredContent())

		return
	}

	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(o.GetObject()).Elem())
}
