package kubevirt

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/warning"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// addHooks lets the simulated API server ask the admission in the way in which a real one asks webhooks.
func (c *Controllers) addHooks(s *apiserver.Server) {
	both := []apiserver.Operation{apiserver.Create, apiserver.Update}

	s.AddHook(apiserver.Hook{
		Name: "virtualmachines-mutator.kubevirt.io", Resource: kube.VirtualMachines.GroupVersion().WithResource(kube.VirtualMachines.Resource).GroupResource(),
		Operations: both, Mutate: mutate(c.admission.Mutate),
	})
	s.AddHook(apiserver.Hook{
		Name: "virtualmachine-validator.kubevirt.io", Resource: kube.VirtualMachines.GroupVersion().WithResource(kube.VirtualMachines.Resource).GroupResource(),
		Operations: both, Validate: validate(c.admission.Validate),
	})
	s.AddHook(apiserver.Hook{
		Name:     "virtualmachineinstances-mutator.kubevirt.io",
		Resource: kube.VirtualMachineInstances.GroupVersion().WithResource(kube.VirtualMachineInstances.Resource).GroupResource(), Operations: both,
		Mutate: mutate(c.admission.Mutate),
	})
	s.AddHook(apiserver.Hook{
		Name:     "virtualmachineinstances-create-validator.kubevirt.io",
		Resource: kube.VirtualMachineInstances.GroupVersion().WithResource(kube.VirtualMachineInstances.Resource).GroupResource(), Operations: both,
		Validate: validate(c.admission.Validate),
	})
	s.AddHook(apiserver.Hook{
		Name: "datavolume-validate.cdi.kubevirt.io", Resource: kube.DataVolumes.GroupVersion().WithResource(kube.DataVolumes.Resource).GroupResource(),
		Operations: both, Validate: validate(c.dataAdmission.Validate),
	})
}

// request turns what the server asks into what it would send to a webhook.
func request(r *apiserver.Review) (*admissionv1.AdmissionRequest, error) {
	asked := &admissionv1.AdmissionRequest{
		Resource:    metav1.GroupVersionResource{Group: r.Resource.Group, Version: r.Resource.Version, Resource: r.Resource.Resource},
		SubResource: r.Subresource, Namespace: r.Namespace, Name: r.Name, Operation: admissionv1.Operation(r.Operation), DryRun: &r.DryRun,
		UserInfo: authenticationv1.UserInfo{Username: r.User.GetName(), Groups: r.User.GetGroups()},
	}

	for _, part := range []struct {
		from *unstructured.Unstructured
		to   *runtime.RawExtension
	}{{r.Object, &asked.Object}, {r.Old, &asked.OldObject}} {
		if part.from == nil {
			continue
		}

		raw, err := json.Marshal(part.from)
		if err != nil {
			return nil, fmt.Errorf("encode %s for its webhook: %w", r.Resource.Resource, err)
		}

		part.to.Raw = raw
	}

	return asked, nil
}

func ask(ctx context.Context, r *apiserver.Review, admit kube.Admit) (*admissionv1.AdmissionResponse, error) {
	asked, err := request(r)
	if err != nil {
		return nil, err
	}

	response := admit(ctx, asked)

	// The real server forwards the warnings of a refusal too.
	for _, text := range response.Warnings {
		warning.AddWarning(ctx, "", text)
	}

	switch {
	case response.Allowed:
		return response, nil
	case response.Result == nil:
		return nil, apiserver.Refuse(http.StatusForbidden, metav1.StatusReasonForbidden, "")
	default:
		return nil, &apiserver.Refusal{Status: *response.Result}
	}
}

func validate(admit kube.Admit) func(context.Context, *apiserver.Review) error {
	return func(ctx context.Context, r *apiserver.Review) error {
		_, err := ask(ctx, r, admit)

		return err
	}
}

func mutate(admit kube.Admit) func(context.Context, *apiserver.Review) error {
	return func(ctx context.Context, r *apiserver.Review) error {
		response, err := ask(ctx, r, admit)
		if err != nil || len(response.Patch) == 0 {
			return err
		}

		var operations []struct {
			Path  string `json:"path"`
			Value any    `json:"value"`
		}

		if err := json.Unmarshal(response.Patch, &operations); err != nil {
			return fmt.Errorf("decode patch of a webhook: %w", err)
		}

		for _, o := range operations {
			if err := unstructured.SetNestedField(r.Object.Object, integers(o.Value), strings.Split(strings.TrimPrefix(o.Path, "/"), "/")...); err != nil {
				return fmt.Errorf("apply patch of a webhook: %w", err)
			}
		}

		return nil
	}
}

// integers makes the whole numbers of a decoded document integers, as the API machinery has them.
func integers(value any) any {
	switch v := value.(type) {
	case float64:
		if n := int64(v); float64(n) == v {
			return n
		}
	case map[string]any:
		for key := range v {
			v[key] = integers(v[key])
		}
	case []any:
		for i := range v {
			v[i] = integers(v[i])
		}
	}

	return value
}
