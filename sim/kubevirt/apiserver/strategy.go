package apiserver

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	core "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// strategy is what the server does to objects of a built-in kind on their way in.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	builtin
	// subresource is what it stands before: status, finalize, or the object itself if it is empty.
	subresource string
}

var (
	_ rest.RESTCreateStrategy         = strategy{}
	_ rest.RESTUpdateStrategy         = strategy{}
	_ rest.RESTGracefulDeleteStrategy = strategy{}
	_ rest.ResetFieldsStrategy        = strategy{}
)

// NamespaceScoped implements rest.RESTCreateStrategy.
func (s strategy) NamespaceScoped() bool { return !s.cluster }

// AllowCreateOnUpdate implements rest.RESTUpdateStrategy. Leases and events are created by an update, as in the real server.
func (s strategy) AllowCreateOnUpdate() bool { return s.kind == "Lease" || s.kind == "Event" }

// AllowUnconditionalUpdate implements rest.RESTUpdateStrategy.
func (s strategy) AllowUnconditionalUpdate() bool { return !s.conditionalUpdates }

// Canonicalize implements rest.RESTCreateStrategy.
func (s strategy) Canonicalize(runtime.Object) {}

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (s strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (s strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (s strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	path := "status"

	switch {
	case !s.status:
		return nil
	case s.subresource == "status":
		path = "spec"
	}

	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(s.version.String()): fieldpath.NewSet(fieldpath.MakePathOrDie(path)),
	}
}

// part returns a field of the object's struct ("Status").
func part(object runtime.Object, name string) reflect.Value {
	return reflect.ValueOf(object).Elem().FieldByName(name)
}

// PrepareForCreate implements rest.RESTCreateStrategy.
func (s strategy) PrepareForCreate(_ context.Context, object runtime.Object) {
	if s.status {
		part(object, "Status").SetZero()
	}

	if accessor, err := meta.Accessor(object); err == nil && s.generations() {
		accessor.SetGeneration(1)
	}

	switch o := object.(type) {
	case *core.Namespace:
		o.Status.Phase = core.NamespaceActive

		o.Spec.Finalizers = []core.FinalizerName{core.FinalizerKubernetes}
		if o.Labels == nil {
			o.Labels = map[string]string{}
		}

		o.Labels[core.LabelMetadataName] = o.Name
	case *core.PersistentVolumeClaim:
		o.Status.Phase = core.ClaimPending
		// An admission plugin of the real server adds it, and a controller takes it away.
		if !slices.Contains(o.Finalizers, claimProtection) {
			o.Finalizers = append(o.Finalizers, claimProtection)
		}
	case *core.PersistentVolume:
		o.Status.Phase = core.VolumePending
	case *core.Pod:
		o.Status.Phase = core.PodPending
		o.Status.QOSClass = core.PodQOSBestEffort
	}
}

// claimProtection keeps a claim that is deleted as long as a pod uses it.
const claimProtection = "kubernetes.io/pvc-protection"

// generations says whether the kind has a generation. Only that of pods grows.
func (s strategy) generations() bool { return s.kind == "Pod" || s.kind == "PriorityClass" }

func moveStringData(s *core.Secret) {
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = map[string][]byte{}
	}

	for k, v := range s.StringData {
		s.Data[k] = []byte(v)
	}

	s.StringData = nil
}

// PrepareForUpdate implements rest.RESTUpdateStrategy.
func (s strategy) PrepareForUpdate(_ context.Context, object, old runtime.Object) {
	kept := "Status"
	if s.subresource == "status" {
		kept = "Spec"
	}

	if s.status && part(object, kept).IsValid() {
		part(object, kept).Set(part(old, kept))
	}

	switch o := object.(type) {
	case *core.Namespace:
		if s.subresource != "finalize" {
			o.Spec.Finalizers = old.(*core.Namespace).Spec.Finalizers
		}
	case *core.Pod:
		was := old.(*core.Pod)
		o.Generation = was.Generation

		if !apiequality.Semantic.DeepEqual(o.Spec, was.Spec) {
			o.Generation++
		}
	}
}

// CheckGracefulDelete implements rest.RESTGracefulDeleteStrategy: pods that run somewhere get time to end.
func (s strategy) CheckGracefulDelete(_ context.Context, object runtime.Object, options *metav1.DeleteOptions) bool {
	p, ok := object.(*core.Pod)
	if !ok {
		return false
	}

	period := int64(0)

	switch {
	case options.GracePeriodSeconds != nil:
		period = *options.GracePeriodSeconds
	case p.Spec.TerminationGracePeriodSeconds != nil:
		period = *p.Spec.TerminationGracePeriodSeconds
	}

	if p.Spec.NodeName == "" || p.Status.Phase == core.PodFailed || p.Status.Phase == core.PodSucceeded {
		period = 0
	}

	options.GracePeriodSeconds = &period

	return true
}

// attributes returns what selectors see of an object.
func (s strategy) attributes(object runtime.Object) (labels.Set, fields.Set, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, nil, fmt.Errorf("read metadata of %s: %w", s.kind, err)
	}

	set := fields.Set{"metadata.name": accessor.GetName()}
	if !s.cluster {
		set["metadata.namespace"] = accessor.GetNamespace()
	}

	if more := fieldLabels[s.kind]; more != nil {
		for k, v := range more(object) {
			set[k] = v
		}
	}

	return accessor.GetLabels(), set, nil
}

var _ storage.AttrFunc = strategy{}.attributes
