package cdi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	cdi "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// Admission is what CDI's webhooks decide of DataVolumes. It reads claims from the API server.
type Admission struct {
	claims kube.Resource[corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaim]
}

// NewAdmission returns the admission for the API server of a client.
func NewAdmission(client *kube.Client) (*Admission, error) {
	claims, err := kube.Of[corev1.PersistentVolumeClaim](client, kube.Claims)

	return &Admission{claims: claims}, err
}

// ValidatePath is where Handler serves.
const ValidatePath = "/datavolume-validate"

// Handler serves the webhook for AdmissionReview requests, at ValidatePath.
func (a *Admission) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST "+ValidatePath, kube.Webhook(a.Validate))

	return mux
}

// Validate refuses DataVolumes that CDI does not take. Other requests pass.
func (a *Admission) Validate(ctx context.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	if r.SubResource != "" || r.Resource.Resource != kube.DataVolumes.Resource {
		return kube.Allow()
	}

	dv := &cdi.DataVolume{}
	if err := json.Unmarshal(r.Object.Raw, dv); err != nil {
		return kube.Error(err)
	}

	switch r.Operation {
	case admissionv1.Update:
		old := &cdi.DataVolume{}
		if err := json.Unmarshal(r.OldObject.Raw, old); err != nil {
			return kube.Error(err)
		}

		if !equality.Semantic.DeepEqual(dv.Spec, old.Spec) {
			return refuse(metav1.CauseTypeFieldValueDuplicate, field.NewPath("DataVolume", "Spec"), "Cannot update DataVolume Spec")
		}

		return kube.Allow()
	case admissionv1.Create:
	default:
		return kube.Allow()
	}

	if len(dv.Name) > validation.DNS1123SubdomainMaxLength {
		return refuse(metav1.CauseTypeFieldValueInvalid, nil, fmt.Sprintf("Name cannot be longer than %d characters", validation.DNS1123SubdomainMaxLength))
	}

	if response := a.checkClaim(ctx, r.Namespace, dv); response != nil {
		return response
	}

	if at, message := check(&dv.Spec); message != "" {
		return refuse(metav1.CauseTypeFieldValueInvalid, at, message)
	}

	return kube.Allow()
}

func refuse(kind metav1.CauseType, at *field.Path, message string) *admissionv1.AdmissionResponse {
	return kube.Refuse([]metav1.StatusCause{{Type: kind, Message: message, Field: at.String()}})
}

// checkClaim refuses a DataVolume whose claim is there and belongs to nobody, or to something else.
func (a *Admission) checkClaim(ctx context.Context, namespace string, dv *cdi.DataVolume) *admissionv1.AdmissionResponse {
	pvc, err := a.claims.Get(ctx, namespace, dv.Name)

	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return kube.Error(err)
	case hasData(dv, pvc):
		return nil
	}

	if owner := metav1.GetControllerOf(pvc); owner != nil && owner.Kind == kube.DataVolumes.Kind {
		return nil
	}

	return refuse(metav1.CauseTypeFieldValueDuplicate, field.NewPath("DataVolume", "Name"),
		fmt.Sprintf("Destination PVC %s/%s already exists", namespace, dv.Name))
}

// check says what is wrong with a specification, in CDI's words.
func check(spec *cdi.DataVolumeSpec) (at *field.Path, message string) {
	root := field.NewPath("spec")

	switch {
	case spec.PVC == nil && spec.Storage == nil:
		return root.Child("PVC"), "Missing Data volume PVC"
	case spec.PVC != nil && spec.Storage != nil:
		return root.Child("PVC", "Storage"), "Duplicate storage definition, both target storage and target pvc defined"
	}

	if at, message := checkSize(root, spec); message != "" {
		return at, message
	}

	if at, message := checkModes(root, spec); message != "" {
		return at, message
	}

	if external(spec) {
		if spec.Source != nil || spec.SourceRef != nil {
			return root.Child("source"), "External population is incompatible with Source and SourceRef"
		}

		return nil, ""
	}

	if (spec.Source == nil) == (spec.SourceRef == nil) {
		return root.Child("source"), "Data volume should have either Source or SourceRef, or be externally populated"
	}

	if spec.SourceRef != nil {
		return checkRef(root, spec.SourceRef)
	}

	return checkSource(root, spec)
}

func external(spec *cdi.DataVolumeSpec) bool {
	if spec.PVC != nil {
		return spec.PVC.DataSource != nil || spec.PVC.DataSourceRef != nil
	}

	return spec.Storage.DataSource != nil || spec.Storage.DataSourceRef != nil
}

func checkSize(root *field.Path, spec *cdi.DataVolumeSpec) (*field.Path, string) {
	var requests corev1.ResourceList

	name := "PVC"
	if spec.PVC != nil {
		requests = spec.PVC.Resources.Requests
	} else {
		name, requests = "Storage", spec.Storage.Resources.Requests
	}

	clone := spec.Source != nil && (spec.Source.PVC != nil || spec.Source.Snapshot != nil) || spec.SourceRef != nil
	size, ok := requests[corev1.ResourceStorage]

	switch {
	case !ok && spec.Storage != nil && clone:
		return nil, ""
	case !ok:
		return root.Child(name, "resources", "requests"), name + " size is missing"
	case size.Sign() <= 0:
		return root.Child(name, "resources", "requests", "size"), name + " size can't be equal or less than zero"
	case size.Value() < align:
		return root.Child(name, "resources", "requests", "size"), name + " size should be at least 1MiB"
	default:
		return nil, ""
	}
}

func checkModes(root *field.Path, spec *cdi.DataVolumeSpec) (*field.Path, string) {
	at := root.Child("PVC", "accessModes")
	known := []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod}

	var modes []corev1.PersistentVolumeAccessMode

	if spec.PVC != nil {
		modes = spec.PVC.AccessModes

		switch {
		case len(modes) == 0:
			return at, "Required value: at least 1 access mode is required"
		case len(modes) > 1:
			return at, "PVC multiple accessModes"
		}
	} else {
		modes = spec.Storage.AccessModes
	}

	for _, mode := range modes {
		if !slices.Contains(known, mode) {
			return at, fmt.Sprintf(`Unsupported value: "%s": supported values: "ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"`, modes[0])
		}
	}

	return nil, ""
}

func checkRef(root *field.Path, ref *cdi.DataVolumeSourceRef) (*field.Path, string) {
	at := root.Child("SourceRef")

	switch {
	case ref.Kind == "":
		return at.Child("Kind"), "Missing sourceRef kind"
	case ref.Kind != cdi.DataVolumeDataSource:
		return at.Child("Kind"), fmt.Sprintf("Unsupported sourceRef kind %s, currently only %s is supported", ref.Kind, cdi.DataVolumeDataSource)
	case ref.Name == "":
		return at.Child("Name"), "Missing sourceRef name"
	default:
		return nil, ""
	}
}

func checkSource(root *field.Path, spec *cdi.DataVolumeSpec) (*field.Path, string) {
	at, source := root.Child("source"), spec.Source
	v, n := reflect.ValueOf(source).Elem(), 0

	for i := range v.NumField() {
		if !v.Field(i).IsNil() {
			n++
		}
	}

	switch {
	case n == 0:
		return at, "Missing Data volume source"
	case n > 1:
		return at, "Multiple Data volume sources"
	}

	if t := spec.ContentType; t != "" && t != cdi.DataVolumeKubeVirt && t != cdi.DataVolumeArchive {
		return root.Child("contentType"), fmt.Sprintf("ContentType not one of: %s, %s", cdi.DataVolumeKubeVirt, cdi.DataVolumeArchive)
	}

	switch {
	case source.HTTP != nil:
		if message := checkURL(source.HTTP.URL); message != "" {
			return at, at.String() + " " + message
		}
	case source.Blank != nil && spec.ContentType == cdi.DataVolumeArchive:
		return root.Child("contentType"), "SourceType cannot be blank and the contentType be archive"
	case source.PVC != nil && (source.PVC.Namespace == "" || source.PVC.Name == ""):
		return at.Child("PVC"), at.Child("PVC").String() + " source PVC is not valid"
	case source.Snapshot != nil && (source.Snapshot.Namespace == "" || source.Snapshot.Name == ""):
		return at.Child("Snapshot"), at.Child("Snapshot").String() + " source snapshot is not valid"
	case source.Registry != nil && (source.Registry.URL == nil) == (source.Registry.ImageStream == nil):
		return at.Child("Registry"), "Source registry should have either URL or ImageStream"
	}

	return nil, ""
}

func checkURL(text string) string {
	switch u, err := url.ParseRequestURI(text); {
	case text == "":
		return "source URL is empty"
	case err != nil:
		return "Invalid source URL: " + text
	case u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "gs":
		return "Invalid source URL scheme: " + text
	default:
		return ""
	}
}
