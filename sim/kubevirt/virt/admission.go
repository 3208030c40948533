package virt

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubevirt "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// Admission is what virt-api's webhooks decide. It reads instance types and preferences from the API server.
type Admission struct {
	types  catalogue
	config Configuration
}

// NewAdmission returns the admission for the API server of a client, and a configuration of KubeVirt.
func NewAdmission(client *kube.Client, config Configuration) (*Admission, error) {
	types, err := newCatalogue(client)

	return &Admission{types: types, config: config}, err
}

// The paths at which virt-api serves its webhooks here.
const (
	MutatePath   = "/kubevirt-mutate"
	ValidatePath = "/kubevirt-validate"
)

// Handler serves the webhooks for AdmissionReview requests, at MutatePath and ValidatePath.
func (a *Admission) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST "+MutatePath, kube.Webhook(a.Mutate))
	mux.Handle("POST "+ValidatePath, kube.Webhook(a.Validate))

	return mux
}

// Mutate sets defaults in machines and instances, whether created or updated. Other requests pass.
func (a *Admission) Mutate(ctx context.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	if r.SubResource != "" || r.Operation != admissionv1.Create && r.Operation != admissionv1.Update {
		return kube.Allow()
	}

	switch r.Resource.Resource {
	case kube.VirtualMachines.Resource:
		return a.mutateMachine(r)
	case kube.VirtualMachineInstances.Resource:
		return a.mutateInstance(r)
	default:
		return kube.Allow()
	}
}

func (a *Admission) mutateMachine(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	vm := &kubevirt.VirtualMachine{}
	if err := json.Unmarshal(r.Object.Raw, vm); err != nil {
		return kube.Error(err)
	}

	if vm.DeletionTimestamp != nil || vm.Spec.Template == nil {
		return kube.Allow()
	}

	if m := vm.Spec.Instancetype; m != nil && m.Kind == "" {
		m.Kind = kube.ClusterInstanceTypes.Kind
	}

	if m := vm.Spec.Preference; m != nil && m.Kind == "" {
		m.Kind = kube.ClusterPreferences.Kind
	}

	domain := &vm.Spec.Template.Spec.Domain

	if r.Operation == admissionv1.Create {
		if domain.Firmware == nil {
			domain.Firmware = &kubevirt.Firmware{}
		}

		if domain.Firmware.UUID == "" {
			domain.Firmware.UUID = types.UID(uuid.NewString())
		}

		if domain.Firmware.Serial == "" {
			domain.Firmware.Serial = uuid.NewString()
		}

		pciTopology(&vm.Spec.Template.ObjectMeta)
	}

	setArchitecture(&vm.Spec.Template.Spec)
	setMachine(&vm.Spec.Template.Spec)

	return kube.Patch(map[string]any{"/spec": vm.Spec})
}

// pciTopology is the annotation that says how machines made by this release number their devices.
func pciTopology(meta *metav1.ObjectMeta) {
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}

	if _, ok := meta.Annotations[kubevirt.PciTopologyVersionAnnotation]; !ok {
		meta.Annotations[kubevirt.PciTopologyVersionAnnotation] = kubevirt.PciTopologyVersionV3
	}
}

func (a *Admission) mutateInstance(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	vmi := &kubevirt.VirtualMachineInstance{}
	if err := json.Unmarshal(r.Object.Raw, vmi); err != nil {
		return kube.Error(err)
	}

	if r.Operation == admissionv1.Update {
		old := &kubevirt.VirtualMachineInstance{}
		if err := json.Unmarshal(r.OldObject.Raw, old); err != nil {
			return kube.Error(err)
		}

		if !kube.Own(r.UserInfo) && !equality.Semantic.DeepEqual(old.Status, vmi.Status) {
			return kube.Patch(map[string]any{"/status": old.Status})
		}

		return kube.Allow()
	}

	SetInstanceDefaults(vmi)
	pciTopology(&vmi.ObjectMeta)

	vmi.Finalizers = append(vmi.Finalizers, instanceFinalizer)
	vmi.Status.Phase = kubevirt.Pending
	vmi.Status.RuntimeUser = 107
	vmi.Status.PhaseTransitionTimestamps = append(vmi.Status.PhaseTransitionTimestamps, kubevirt.VirtualMachineInstancePhaseTransitionTimestamp{
		Phase: kubevirt.Pending, PhaseTransitionTimestamp: metav1.NewTime(time.Now()),
	})

	return kube.Patch(map[string]any{
		"/spec": vmi.Spec, "/status": vmi.Status, "/metadata/finalizers": vmi.Finalizers, "/metadata/annotations": vmi.Annotations,
	})
}

// Validate refuses machines and instances that KubeVirt does not take. Other requests pass.
func (a *Admission) Validate(ctx context.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	if r.SubResource != "" || r.Operation != admissionv1.Create && r.Operation != admissionv1.Update {
		return kube.Allow()
	}

	switch r.Resource.Resource {
	case kube.VirtualMachines.Resource:
		return a.validateMachine(ctx, r)
	case kube.VirtualMachineInstances.Resource:
		return a.validateInstance(r)
	default:
		return kube.Allow()
	}
}

func (a *Admission) validateMachine(ctx context.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	vm := &kubevirt.VirtualMachine{}
	if err := json.Unmarshal(r.Object.Raw, vm); err != nil {
		return kube.Error(err)
	}

	if vm.DeletionTimestamp != nil {
		return kube.Allow()
	}

	if vm.Namespace == "" {
		vm.Namespace = r.Namespace
	}

	if vm.Spec.Template == nil {
		return kube.Refuse([]metav1.StatusCause{{
			Type: metav1.CauseTypeFieldValueRequired, Message: "missing virtual machine template.", Field: "spec.template",
		}})
	}

	expanded := vm.DeepCopy()
	if causes := a.types.apply(ctx, expanded); len(causes) > 0 {
		return kube.Refuse(causes)
	}

	setSpec(&expanded.Spec.Template.Spec)

	root := field.NewPath("spec")

	causes := append(validateMachineSpec(root, &expanded.Spec), a.config.validate(root.Child("template", "spec"), &expanded.Spec.Template.Spec)...)
	if len(causes) > 0 {
		return kube.Refuse(causes)
	}

	for i, t := range vm.Spec.DataVolumeTemplates {
		if t.Namespace != "" && t.Namespace != vm.Namespace {
			return kube.Refuse([]metav1.StatusCause{{
				Type:    metav1.CauseTypeFieldValueInvalid,
				Message: fmt.Sprintf("Embedded DataVolume namespace %s differs from VM namespace %s", t.Namespace, vm.Namespace),
				Field:   field.NewPath("spec", "dataVolumeTemplates").Index(i).String(),
			}})
		}
	}

	if vm.Spec.Running != nil {
		return kube.Allow("spec.running is deprecated, please use spec.runStrategy instead.")
	}

	return kube.Allow()
}

func (a *Admission) validateInstance(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	vmi := &kubevirt.VirtualMachineInstance{}
	if err := json.Unmarshal(r.Object.Raw, vmi); err != nil {
		return kube.Error(err)
	}

	if r.Operation == admissionv1.Create {
		spec := field.NewPath("spec")
		causes := append(validateInstanceSpec(spec, &vmi.Spec), a.config.validate(spec, &vmi.Spec)...)

		if memory := vmi.Spec.Domain.Memory; vmi.Spec.Domain.Resources.Requests.Memory().Value() == 0 &&
			(memory == nil || memory.Guest == nil && memory.Hugepages == nil) {
			causes = append(causes, metav1.StatusCause{
				Type: metav1.CauseTypeFieldValueRequired,
				Message: "no memory requested, at least one of 'spec.domain.memory.guest', 'spec.domain.memory.hugepages.pageSize' or " +
					"'spec.domain.resources.requests.memory' must be set",
			})
		}

		if len(causes) > 0 {
			return kube.Refuse(causes)
		}

		return kube.Allow()
	}

	old := &kubevirt.VirtualMachineInstance{}
	if err := json.Unmarshal(r.OldObject.Raw, old); err != nil {
		return kube.Error(err)
	}

	if !kube.Own(r.UserInfo) && !equality.Semantic.DeepEqual(old.Spec, vmi.Spec) {
		return kube.Refuse([]metav1.StatusCause{{
			Type: metav1.CauseTypeFieldValueNotSupported, Message: "update of VMI object is restricted",
		}})
	}

	return kube.Allow()
}
