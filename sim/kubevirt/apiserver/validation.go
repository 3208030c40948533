package apiserver

import (
	"context"
	"maps"
	"slices"

	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	scheduling "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate implements rest.RESTCreateStrategy. What is checked is the metadata, keys and sizes, and what a kind cannot do without; what
// else the real server checks of pods, services and the rest is not modelled.
func (s strategy) Validate(_ context.Context, object runtime.Object) field.ErrorList {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return field.ErrorList{field.InternalError(field.NewPath("metadata"), err)}
	}

	errs := validation.ValidateObjectMetaAccessor(accessor, !s.cluster, s.nameRule(), field.NewPath("metadata"))

	switch o := object.(type) {
	case *core.Secret:
		errs = append(errs, validateSecret(o)...)
	case *core.ConfigMap:
		errs = append(errs, validateConfigMap(o)...)
	case *core.PersistentVolumeClaim:
		errs = append(errs, validateClaim(o)...)
	case *core.Pod:
		errs = append(errs, validatePod(o)...)
	case *storagev1.StorageClass:
		if o.Provisioner == "" {
			errs = append(errs, field.Required(field.NewPath("provisioner"), ""))
		}
	case *rbac.RoleBinding:
		errs = append(errs, validateBinding(o.RoleRef, o.Subjects, "Role", "ClusterRole")...)
	case *rbac.ClusterRoleBinding:
		errs = append(errs, validateBinding(o.RoleRef, o.Subjects, "ClusterRole")...)
	}

	return errs
}

// nameRule returns how names of the kind have to look.
func (s strategy) nameRule() validation.ValidateNameFunc {
	switch s.kind {
	case "Namespace", "Service":
		return validation.NameIsDNSLabel
	case "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding":
		return path.ValidatePathSegmentName
	default:
		return validation.NameIsDNSSubdomain
	}
}

// validateKeys checks the keys of data, and returns how many bytes it has.
func validateKeys[V string | []byte](at *field.Path, data map[string]V) (size int, errs field.ErrorList) {
	for _, k := range slices.Sorted(maps.Keys(data)) {
		for _, problem := range utilvalidation.IsConfigMapKey(k) {
			errs = append(errs, field.Invalid(at.Key(k), k, problem))
		}

		size += len(data[k])
	}

	return size, errs
}

func validateSecret(s *core.Secret) field.ErrorList {
	data := field.NewPath("data")

	size, errs := validateKeys(data, s.Data)
	if size > core.MaxSecretSize {
		errs = append(errs, field.TooLong(data, "", core.MaxSecretSize))
	}

	return errs
}

func validateConfigMap(c *core.ConfigMap) field.ErrorList {
	data := field.NewPath("data")
	size, errs := validateKeys(data, c.Data)

	for _, k := range slices.Sorted(maps.Keys(c.Data)) {
		if _, ok := c.BinaryData[k]; ok {
			errs = append(errs, field.Invalid(data.Key(k), k, "duplicate of key present in binaryData"))
		}
	}

	more, bad := validateKeys(field.NewPath("binaryData"), c.BinaryData)
	errs = append(errs, bad...)

	if size+more > core.MaxSecretSize {
		errs = append(errs, field.TooLong(field.NewPath(""), "", core.MaxSecretSize))
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
	spec := field.NewPath("spec")

	if len(p.Spec.Containers) == 0 {
		errs = append(errs, field.Required(spec.Child("containers"), ""))
	}

	errs = append(errs, validateImages(spec.Child("containers"), p.Spec.Containers)...)

	return append(errs, validateImages(spec.Child("initContainers"), p.Spec.InitContainers)...)
}

func validateImages(at *field.Path, containers []core.Container) (errs field.ErrorList) {
	for i, c := range containers {
		if c.Image == "" {
			errs = append(errs, field.Required(at.Index(i).Child("image"), ""))
		}
	}

	return errs
}

func validateBinding(role rbac.RoleRef, subjects []rbac.Subject, kinds ...string) (errs field.ErrorList) {
	ref := field.NewPath("roleRef")

	if role.APIGroup != rbac.GroupName {
		errs = append(errs, field.NotSupported(ref.Child("apiGroup"), role.APIGroup, []string{rbac.GroupName}))
	}

	if !slices.Contains(kinds, role.Kind) {
		errs = append(errs, field.NotSupported(ref.Child("kind"), role.Kind, kinds))
	}

	if role.Name == "" {
		errs = append(errs, field.Required(ref.Child("name"), ""))
	}

	for _, problem := range path.IsValidPathSegmentName(role.Name) {
		errs = append(errs, field.Invalid(ref.Child("name"), role.Name, problem))
	}

	known := []string{rbac.ServiceAccountKind, rbac.UserKind, rbac.GroupKind}

	for i, subject := range subjects {
		at := field.NewPath("subjects").Index(i)

		if subject.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}

		if !slices.Contains(known, subject.Kind) {
			errs = append(errs, field.NotSupported(at.Child("kind"), subject.Kind, known))
		}
	}

	return errs
}

// ValidateUpdate implements rest.RESTUpdateStrategy. What is new is checked as if it were created, and against what must not change.
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

	valid, changed := s.Validate(ctx, object), validateChange(object, old)

	if s.kind == "Secret" || s.kind == "ConfigMap" { // The real server tells of their changes first.
		return slices.Concat(errs, changed, valid)
	}

	return slices.Concat(errs, valid, changed)
}

// validateChange refuses what an update of the object itself may not change.
func validateChange(object, old runtime.Object) (errs field.ErrorList) {
	same := func(name string, now, was any) {
		errs = append(errs, validation.ValidateImmutableField(now, was, field.NewPath(name))...)
	}
	frozen := func(name string, now, was any) {
		if !apiequality.Semantic.DeepEqual(now, was) {
			errs = append(errs, field.Forbidden(field.NewPath(name), "field is immutable when `immutable` is set"))
		}
	}
	isTrue := func(flag *bool) bool { return flag != nil && *flag }

	switch o := object.(type) {
	case *core.Secret:
		was := old.(*core.Secret)
		same("type", o.Type, was.Type)

		if isTrue(was.Immutable) {
			frozen("immutable", isTrue(o.Immutable), true)
			frozen("data", o.Data, was.Data)
		}
	case *core.ConfigMap:
		if was := old.(*core.ConfigMap); isTrue(was.Immutable) {
			frozen("immutable", isTrue(o.Immutable), true)
			frozen("data", o.Data, was.Data)
			frozen("binaryData", o.BinaryData, was.BinaryData)
		}
	case *core.PersistentVolumeClaim:
		errs = validateClaimChange(o, old.(*core.PersistentVolumeClaim))
	case *core.Pod:
		errs = validatePodChange(o, old.(*core.Pod))
	case *storagev1.StorageClass:
		was := old.(*storagev1.StorageClass)
		same("parameters", o.Parameters, was.Parameters)
		same("provisioner", o.Provisioner, was.Provisioner)
		same("reclaimPolicy", o.ReclaimPolicy, was.ReclaimPolicy)
		same("volumeBindingMode", o.VolumeBindingMode, was.VolumeBindingMode)
	case *scheduling.PriorityClass:
		was := old.(*scheduling.PriorityClass)
		if o.Value != was.Value {
			errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
		}

		same("preemptionPolicy", o.PreemptionPolicy, was.PreemptionPolicy)
	case *rbac.RoleBinding:
		errs = validateRoleChange(o.RoleRef, old.(*rbac.RoleBinding).RoleRef)
	case *rbac.ClusterRoleBinding:
		errs = validateRoleChange(o.RoleRef, old.(*rbac.ClusterRoleBinding).RoleRef)
	}

	return errs
}

// validateClaimChange lets a claim be bound to a volume, and grow then; all else stays. The text of a real server has a diff behind it.
func validateClaimChange(now, was *core.PersistentVolumeClaim) (errs field.ErrorList) {
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

// validatePodChange lets a pod get other images, a deadline or an earlier one, more tolerations and fewer gates; all else stays. The
// text of a real server has a diff behind it.
func validatePodChange(now, was *core.Pod) (errs field.ErrorList) {
	spec, rest := field.NewPath("spec"), now.Spec.DeepCopy()

	for _, part := range []struct {
		name     string
		now, was []core.Container
	}{{"containers", rest.Containers, was.Spec.Containers}, {"initContainers", rest.InitContainers, was.Spec.InitContainers}} {
		if len(part.now) != len(part.was) {
			return append(errs, field.Forbidden(spec.Child(part.name), "pod updates may not add or remove containers"))
		}

		errs = append(errs, validateImages(spec.Child(part.name), part.now)...) // The real server says it twice.

		for i := range part.now {
			part.now[i].Image = part.was[i].Image
		}
	}

	deadline, before := now.Spec.ActiveDeadlineSeconds, was.Spec.ActiveDeadlineSeconds

	switch at := spec.Child("activeDeadlineSeconds"); {
	case deadline != nil && before != nil && *deadline > *before:
		return append(errs, field.Invalid(at, *deadline, "must be less than or equal to previous value"))
	case deadline == nil && before != nil:
		errs = append(errs, field.Invalid(at, deadline, "must not update from a positive integer to nil value"))
	}

	rest.ActiveDeadlineSeconds = before

	if isSubset(was.Spec.Tolerations, rest.Tolerations) {
		rest.Tolerations = was.Spec.Tolerations
	}

	if isSubset(rest.SchedulingGates, was.Spec.SchedulingGates) {
		rest.SchedulingGates = was.Spec.SchedulingGates
	}

	if !apiequality.Semantic.DeepEqual(*rest, was.Spec) {
		errs = append(errs, field.Forbidden(spec, "pod updates may not change fields other than `spec.containers[*].image`,"+
			"`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"+
			"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"))
	}

	return errs
}

// isSubset says whether all has each element of some.
func isSubset[T any](some, all []T) bool {
	return !slices.ContainsFunc(some, func(one T) bool {
		return !slices.ContainsFunc(all, func(other T) bool { return apiequality.Semantic.DeepEqual(one, other) })
	})
}

// validateRoleChange shows a role with the names of its fields inside of the real server, as that does.
func validateRoleChange(now, was rbac.RoleRef) field.ErrorList {
	if now == was {
		return nil
	}

	shown := struct{ APIGroup, Kind, Name string }{now.APIGroup, now.Kind, now.Name}

	return field.ErrorList{field.Invalid(field.NewPath("roleRef"), shown, "cannot change roleRef")}
}
