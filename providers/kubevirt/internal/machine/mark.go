package machine

import (
	"maps"
	"regexp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// FieldManager names the provider to the API server as the one who has set a field.
const FieldManager = "omni-infra-provider-kubevirt"

// The ownership mark is made of these labels and annotations. Machines that exist carry them: they never change.
//
// Labels are there to find objects by, and hold a hash in the place of an id that is no value of a label; the annotations say the
// ids themselves. An object is ours when both are there and agree, and its name is one that the ids give: labels and annotations are
// copied with an object, by KubeVirt's own clones above all, but a copy has another name.
const (
	markPrefix = "omni-infra.dev/"

	// LabelProvider and LabelRequest are on all that belongs to a machine, also on its instance and pod, and LabelSet on those of a
	// request set.
	LabelProvider = markPrefix + "provider"
	LabelRequest  = markPrefix + "request"
	LabelSet      = markPrefix + "set"
	// LabelImage is on all that belongs to an image, with the image's name.
	LabelImage = markPrefix + "image"
	// labelManagedBy is Kubernetes' own for the program that an object belongs to.
	labelManagedBy = "app.kubernetes.io/managed-by"

	// AnnotationProvider and AnnotationRequest are the ids, AnnotationSet that of the request set, AnnotationVersion is the
	// version of the provider that made the object.
	AnnotationProvider = markPrefix + "provider-id"
	AnnotationRequest  = markPrefix + "request-id"
	AnnotationSet      = markPrefix + "request-set"
	AnnotationVersion  = markPrefix + "provider-version"
	// AnnotationImageKey says what an image holds, AnnotationLastUsed when a machine was last made from it.
	AnnotationImageKey = markPrefix + "image-key"
	AnnotationLastUsed = markPrefix + "last-used"
	// AnnotationRunStrategy is the run strategy of the class, to which a machine that was switched off goes back.
	AnnotationRunStrategy = markPrefix + "run-strategy"
)

var labelValue = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// hashed begins the values of labels that are no ids themselves. An id that begins so is hashed as well, so that no id is the hash
// of another.
const hashed = "sha256."

var hashedValue = regexp.MustCompile(`^sha256\.`)

// LabelValue is the value that a label has for an id.
func LabelValue(id string) string {
	if labelValue.MatchString(id) && !hashedValue.MatchString(id) {
		return id
	}

	return hashed + hash("label", id)
}

// Mark is the ownership mark of a machine's object.
type Mark struct {
	driver.Ref
	// Set is the MachineRequestSet, empty for a request without a set.
	Set string
	// Version is that of the provider that made the object.
	Version string
}

// Labels are the mark's labels.
func (m Mark) Labels() map[string]string {
	out := map[string]string{
		LabelProvider: LabelValue(m.ProviderID), LabelRequest: LabelValue(m.RequestID), labelManagedBy: FieldManager,
	}

	if m.Set != "" {
		out[LabelSet] = LabelValue(m.Set)
	}

	return out
}

// Annotations are the mark's annotations.
func (m Mark) Annotations() map[string]string {
	out := map[string]string{AnnotationProvider: m.ProviderID, AnnotationRequest: m.RequestID, AnnotationVersion: m.Version}

	if m.Set != "" {
		out[AnnotationSet] = m.Set
	}

	return out
}

// MarkOf reads the mark of an object. It is not ok for one without a mark, and for one that has it of another object. An object whose
// mark tells the provider but no request, as somebody has changed it, has an empty RequestID.
func MarkOf(o metav1.Object) (Mark, bool) {
	has, says := o.GetLabels(), o.GetAnnotations()

	m := Mark{
		Ref:     driver.Ref{ProviderID: says[AnnotationProvider], RequestID: says[AnnotationRequest]},
		Set:     says[AnnotationSet],
		Version: says[AnnotationVersion],
	}

	if m.ProviderID == "" || has[LabelProvider] != LabelValue(m.ProviderID) || has[LabelImage] != "" {
		return Mark{}, false
	}

	if m.RequestID == "" || has[LabelRequest] != LabelValue(m.RequestID) {
		m.RequestID, m.Set = "", ""

		return m, true
	}

	return m, NamesOf(m.Ref).has(o.GetName())
}

// Owns says whether an object belongs to the request's machine.
func Owns(ref driver.Ref, o metav1.Object) bool {
	m, ok := MarkOf(o)

	return ok && m.Ref == ref && ref.RequestID != ""
}

// SelectorOf finds all objects of the request's machine.
func SelectorOf(ref driver.Ref) labels.Selector {
	return labels.SelectorFromSet(labels.Set{LabelProvider: LabelValue(ref.ProviderID), LabelRequest: LabelValue(ref.RequestID)})
}

// merged are the pairs of all maps, of which the first that has a key decides.
func merged(all ...map[string]string) map[string]string {
	out := map[string]string{}

	for _, m := range slices.Backward(all) {
		maps.Copy(out, m)
	}

	return out
}
