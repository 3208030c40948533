package apiserver

import (
	"context"
	"errors"
	"fmt"
	"sync"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	webhook "k8s.io/apiserver/pkg/admission/plugin/webhook/errors"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Operation is what a request does to an object.
type Operation = admission.Operation

// Operations that hooks are asked about.
const (
	Create = admission.Create
	Update = admission.Update
	Delete = admission.Delete
)

// Review is what a hook is asked about: a change that is about to be made, by an apply and in a dry run too.
type Review struct {
	Operation   Operation
	Resource    schema.GroupVersionResource
	Subresource string
	// Namespace and Name are those of the request; the name is empty where the server still has to generate one.
	Namespace, Name string
	// Object is what is to be stored, nil for Delete. A mutating hook changes it in place; a validating one must not.
	Object *unstructured.Unstructured
	// Old is what is stored, nil for Create. It must not be changed.
	Old    *unstructured.Unstructured
	DryRun bool
	User   user.Info
}

// Hook is a webhook of the cluster. It is called from the goroutines of requests, several at a time, and with no lock of the server held:
// it may call the server. What package k8s.io/apiserver/pkg/warning is told with the context of the call goes to the client.
type Hook struct {
	// Name is the one in the texts of refusals ("virtualmachine-validator.kubevirt.io").
	Name string
	// Resource is the group and the plural of what it is asked about ("kubevirt.io", "virtualmachines"), in any version.
	Resource schema.GroupResource
	// Subresource is "" for the object itself, or "status".
	Subresource string
	// Operations are those that it is asked about.
	Operations []Operation
	// Mutate changes the object, or refuses; nil does neither. It comes before validation by the schema.
	Mutate func(ctx context.Context, r *Review) error
	// Validate refuses; nil does not. It comes after all mutation.
	Validate func(ctx context.Context, r *Review) error
}

// Refusal is a hook's no, in the form that the webhook protocol gives it. Another error of a hook is answered as 500 Internal Server Error,
// as for a webhook that failed.
type Refusal struct{ metav1.Status }

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

// Refuse returns a Refusal with an HTTP status and a message, and with causes if there are any.
func Refuse(code int32, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) error {
	status := metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}
	if len(causes) > 0 {
		status.Details = &metav1.StatusDetails{Causes: causes}
	}

	return &Refusal{Status: status}
}

// AddHook adds a webhook behind those that are there.
func (s *Server) AddHook(h Hook) {
	s.hooks.mu.Lock()
	defer s.hooks.mu.Unlock()

	s.hooks.all = append(s.hooks.all, h)
}

// hooks is the server's admission control but for quotas: the life of namespaces, and the hooks of others.
type hooks struct {
	server *Server

	mu  sync.RWMutex
	all []Hook
}

var (
	_ admission.MutationInterface   = (*hooks)(nil)
	_ admission.ValidationInterface = (*hooks)(nil)
)

// Handles implements admission.Interface.
func (h *hooks) Handles(operation admission.Operation) bool { return operation != admission.Connect }

// Admit implements admission.MutationInterface.
func (h *hooks) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if err := h.namespaceAlive(a); err != nil {
		return err
	}

	for _, hook := range h.matching(a) {
		if hook.Mutate == nil {
			continue
		}

		r, err := newReview(a)
		if err != nil {
			return err
		}

		if err := hook.Mutate(ctx, r); err != nil {
			return refused(hook.Name, err)
		}

		if r.Object == nil {
			continue
		}

		if err := writeBack(r.Object, a.GetObject()); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("webhook %q: %w", hook.Name, err))
		}
	}

	return nil
}

// Validate implements admission.ValidationInterface.
func (h *hooks) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	for _, hook := range h.matching(a) {
		if hook.Validate == nil {
			continue
		}

		r, err := newReview(a)
		if err != nil {
			return err
		}

		if err := hook.Validate(ctx, r); err != nil {
			return refused(hook.Name, err)
		}
	}

	return nil
}

func (h *hooks) matching(a admission.Attributes) (matching []Hook) {
	h.mu.RLock()
	defer h.mu.RUnlock()

	for _, hook := range h.all {
		if hook.Resource != a.GetResource().GroupResource() || hook.Subresource != a.GetSubresource() {
			continue
		}

		for _, o := range hook.Operations {
			if o == a.GetOperation() {
				matching = append(matching, hook)

				break
			}
		}
	}

	return matching
}

func refused(name string, err error) error {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return webhook.ToStatusErr(name, r.DeepCopy())
	}

	return apierrors.NewInternalError(fmt.Errorf("failed calling webhook %q: %w", name, err))
}

func newReview(a admission.Attributes) (*Review, error) {
	r := &Review{
		Operation: a.GetOperation(), Resource: a.GetResource(), Subresource: a.GetSubresource(), Namespace: a.GetNamespace(),
		Name: a.GetName(), DryRun: a.IsDryRun(), User: a.GetUserInfo(),
	}

	var err error

	if r.Object, err = asUnstructured(a.GetObject()); err != nil {
		return nil, err
	}

	r.Old, err = asUnstructured(a.GetOldObject())

	return r, err
}

// asUnstructured returns a copy, nil of nil.
func asUnstructured(o runtime.Object) (*unstructured.Unstructured, error) {
	switch o := o.(type) {
	case nil:
		return nil, nil //nolint:nilnil // see above
	case *unstructured.Unstructured:
		return o.DeepCopy(), nil
	}

	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}

	u := &unstructured.Unstructured{Object: content}

	if kinds, _, err := scheme.ObjectKinds(o); err == nil {
		u.SetGroupVersionKind(kinds[0])
	}

	return u, nil
}

// writeBack makes the object that is to be stored what the hook made of it.
func writeBack(changed *unstructured.Unstructured, object runtime.Object) error {
	if u, ok := object.(*unstructured.Unstructured); ok {
		u.Object = changed.Object

		return nil
	}

	if err := runtime.SetZeroValue(object); err != nil {
		return err
	}

	return runtime.DefaultUnstructuredConverter.FromUnstructured(changed.Object, object)
}

// namespaceAlive refuses what is created in a namespace that is not there, or that goes.
func (h *hooks) namespaceAlive(a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetNamespace() == "" || a.GetKind().Kind == "Namespace" {
		return nil
	}

	n, err := h.server.namespace(a.GetNamespace())

	switch {
	case err != nil:
		return err
	case n.Status.Phase != core.NamespaceTerminating:
		return nil
	}

	forbidden := apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(),
		fmt.Errorf("unable to create new content in namespace %s because it is being terminated", a.GetNamespace()))
	forbidden.ErrStatus.Details.Causes = append(forbidden.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: core.NamespaceTerminatingCause, Message: fmt.Sprintf("namespace %s is being terminated", a.GetNamespace()), Field: "metadata.namespace",
	})

	return forbidden
}
