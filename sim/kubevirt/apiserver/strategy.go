package apiserver

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	core "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// strategy is what the server does to objects of a built-in kind on their way in. Validation is that of the metadata, and of what
// cannot be changed; what else the real server checks of pods, services and the rest is not modelled.
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

// generations says whether the kind counts changes of its spec.
func (s strategy) generations() bool { return s.kind == "Pod" }

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

	if o, ok := object.(*core.Namespace); ok && s.subresource != "finalize" {
		o.Spec.Finalizers = old.(*core.Namespace).Spec.Finalizers
	}
}

// Validate implements rest.RESTCreateStrategy.
func (s strategy) Validate(_ context.Context, object runtime.Object) field.ErrorList {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return field.ErrorList{field.InternalError(field.NewPath("metadata"), err)}
	}

	errs := validation.ValidateObjectMetaAccessor(accessor, !s.cluster, s.nameRule(), field.NewPath("metadata"))

	switch o := object.(type) {
	case *core.Secret:
		errs = append(errs, validateData(o.Data)...)
	case *core.ConfigMap:
		errs = append(errs, validateData(o.Data)...)
		errs = append(errs, validateData(o.BinaryData)...)
	case *core.PersistentVolumeClaim:
		errs = append(errs, validateClaim(o)...)
	case *core.Pod:
		errs = append(errs, validatePod(o)...)
	case *storagev1.StorageClass:
		if o.Provisioner == "" {
			errs = append(errs, field.Required(field.NewPath("provisioner"), ""))
		}
	}

	return errs
}

// nameRule returns how names of the kind have to look.
func (s strategy) nameRule() validation.ValidateNameFunc {
	switch s.kind {
	case "Namespace", "Service":
		return validation.NameIsDNSLabel
	case "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding":
		return func(name string, prefix bool) []string { return nil }
	default:
		return validation.NameIsDNSSubdomain
	}
}

func validateData[V string | []byte](data map[string]V) (errs field.ErrorList) {
	total, path := 0, field.NewPath("data")

	for k, v := range data {
		for _, problem := range utilvalidation.IsConfigMapKey(k) {
			errs = append(errs, field.Invalid(path.Key(k), k, problem))
		}

		total += len(v)
	}

	if total > core.MaxSecretSize {
		errs = append(errs, field.TooLong(path, "", core.MaxSecretSize))
	}

	return errs
}

func validateClaim(c *core.PersistentVolumeClaim) (errs field.ErrorList) {
	spec := field.NewPath("spec")

	if len(c.Spec.AccessModes) == 0 {
		errs = append(errs, field.Required(spec.Child("accessModes"), "at least 1 access mode is required"))
	}

	if _, ok := c.Spec.Resources.Requests[core.ResourceStorage]; !ok {
		errs = append(errs, field.Required(spec.Child("resources").Key(string(core.ResourceStorage)), ""))
	}

	return errs
}

func validatePod(p *core.Pod) (errs field.ErrorList) {
	if len(p.Spec.Containers) == 0 {
		errs = append(errs, field.Required(field.NewPath("spec", "containers"), ""))
	}

	return errs
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s strategy) ValidateUpdate(ctx context.Context, object, old runtime.Object) field.ErrorList {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return field.ErrorList{field.InternalError(field.NewPath("metadata"), err)}
	}

	before, err := meta.Accessor(old)
	if err != nil {
		return field.ErrorList{field.InternalError(field.NewPath("metadata"), err)}
	}

	errs := validation.ValidateObjectMetaAccessorUpdate(accessor, before, field.NewPath("metadata"))
	if s.subresource != "" {
		return errs
	}

	switch o := object.(type) {
	case *core.Secret:
		was := old.(*core.Secret)

		if o.Type != was.Type {
			errs = append(errs, validation.ValidateImmutableField(o.Type, was.Type, field.NewPath("type"))...)
		}

		if was.Immutable != nil && *was.Immutable && !apiequality.Semantic.DeepEqual(o.Data, was.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), "field is immutable when `immutable` is set"))
		}
	case *core.PersistentVolumeClaim:
		errs = append(errs, validateClaimUpdate(o, old.(*core.PersistentVolumeClaim))...)
	case *storagev1.StorageClass:
		was := old.(*storagev1.StorageClass)
		errs = append(errs, validation.ValidateImmutableField(o.Provisioner, was.Provisioner, field.NewPath("provisioner"))...)
	default:
		errs = append(errs, s.Validate(ctx, object)...)
	}

	return errs
}

// validateClaimUpdate lets a claim be bound to a volume, and grow then; all else stays. The text of a real server has a diff behind it.
func validateClaimUpdate(now, was *core.PersistentVolumeClaim) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	rest := now.Spec.DeepCopy()

	if was.Spec.VolumeName == "" {
		rest.VolumeName = ""
	}

	if was.Status.Phase == core.ClaimBound {
		rest.Resources.Requests = was.Spec.Resources.Requests
	}

	if !apiequality.Semantic.DeepEqual(*rest, was.Spec) {
		errs = append(errs, field.Forbidden(spec, "spec is immutable after creation except resources.requests and "+
			"volumeAttributesClassName for bound claims"))
	}

	size, before := now.Spec.Resources.Requests[core.ResourceStorage], was.Spec.Resources.Requests[core.ResourceStorage]
	if size.Cmp(before) < 0 {
		errs = append(errs, field.Forbidden(spec.Child("resources", "requests", "storage"), "field can not be less than status.capacity"))
	}

	return errs
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
