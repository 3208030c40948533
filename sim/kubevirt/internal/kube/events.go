package kube

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Recorder writes Events of one component. Events that the server refuses are lost, as anywhere in Kubernetes.
type Recorder struct {
	events    Resource[corev1.Event, *corev1.Event]
	component string
	count     atomic.Uint64
}

// NewRecorder returns a recorder for a component.
func NewRecorder(c *Client, component string) (*Recorder, error) {
	events, err := Of[corev1.Event](c, Events)

	return &Recorder{events: events, component: component}, err
}

// Event says what happened to an object: kind is Normal or Warning.
func (r *Recorder) Event(ctx context.Context, about metav1.Object, of Kind, kind, reason, message string) {
	now := metav1.NewTime(time.Now())
	namespace := about.GetNamespace()

	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}

	_, _ = r.events.Create(ctx, &corev1.Event{
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
}
