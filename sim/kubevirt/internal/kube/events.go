package kube

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// Recorder writes Events of one component. What happens again is counted in one Event, similar ones are combined, and there are only so
// many about an object, as the recorders of all controllers have it. Events that the server refuses are lost, as anywhere in Kubernetes.
type Recorder struct {
	events    Resource[corev1.Event, *corev1.Event]
	known     *record.EventCorrelator
	component string
	count     atomic.Uint64
}

// NewRecorder returns a recorder for a component.
func NewRecorder(c *Client, component string) (*Recorder, error) {
	events, err := Of[corev1.Event](c, Events)

	return &Recorder{events: events, component: component, known: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{})}, err
}

// Event says what happened to an object: kind is Normal or Warning.
func (r *Recorder) Event(ctx context.Context, about metav1.Object, of Kind, kind, reason, message string) {
	now := metav1.NewTime(time.Now())
	namespace := about.GetNamespace()

	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}

	told, err := r.known.EventCorrelate(&corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("%s.%s.%x", about.GetName(), r.component, r.count.Add(1)<<20|uint64(now.UnixNano())&0xfffff),
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: of.GroupVersion().String(), Kind: of.Kind, Namespace: about.GetNamespace(), Name: about.GetName(),
			UID: about.GetUID(), ResourceVersion: about.GetResourceVersion(),
		},
		Reason: reason, Message: message, Type: kind, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: r.component},
	})
	if err != nil || told.Skip {
		return
	}

	if written, err := r.write(ctx, told); err == nil {
		r.known.UpdateState(written)
	}
}

// write counts a known event on, or makes a new one: of one that is known too, if that has expired.
func (r *Recorder) write(ctx context.Context, told *record.EventCorrelateResult) (*corev1.Event, error) {
	event := told.Event

	if event.Count > 1 {
		written, err := r.events.Patch(ctx, event.Namespace, event.Name, types.StrategicMergePatchType, told.Patch)
		if !apierrors.IsNotFound(err) {
			return written, err
		}
	}

	event.ResourceVersion = ""

	return r.events.Create(ctx, event)
}
