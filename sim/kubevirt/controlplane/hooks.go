package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"

	admission "k8s.io/api/admission/v1"
	registration "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
)

// AddHooks makes the API server ask hooks about changes, over its webhooks' own protocol, in that order.
func (c *ControlPlane) AddHooks(ctx context.Context, hooks ...apiserver.Hook) error {
	var (
		mux      = http.NewServeMux()
		mutating = &registration.MutatingWebhookConfiguration{
			TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingWebhookConfiguration"},
			ObjectMeta: metav1.ObjectMeta{Name: "hooks"},
		}
		validating = &registration.ValidatingWebhookConfiguration{
			TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingWebhookConfiguration"},
			ObjectMeta: metav1.ObjectMeta{Name: "hooks"},
		}
	)

	address, err := c.Serve(ctx, mux)
	if err != nil {
		return err
	}

	for i, hook := range hooks {
		at := func(kind string) (path string, config registration.WebhookClientConfig) {
			path = fmt.Sprintf("/%s/%d", kind, i)
			url := "https://" + address + path

			return path, registration.WebhookClientConfig{URL: &url, CABundle: c.Authority()}
		}

		if hook.Mutate != nil {
			path, config := at("mutate")
			mux.HandleFunc(path, review(hook.Mutate))
			mutating.Webhooks = append(mutating.Webhooks, registration.MutatingWebhook{
				Name: hook.Name, ClientConfig: config, Rules: rulesOf(hook), SideEffects: new(registration.SideEffectClassNone),
				AdmissionReviewVersions: []string{"v1"}, FailurePolicy: new(registration.Fail),
			})
		}

		if hook.Validate != nil {
			path, config := at("validate")
			mux.HandleFunc(path, review(hook.Validate))
			validating.Webhooks = append(validating.Webhooks, registration.ValidatingWebhook{
				Name: hook.Name, ClientConfig: config, Rules: rulesOf(hook), SideEffects: new(registration.SideEffectClassNone),
				AdmissionReviewVersions: []string{"v1"}, FailurePolicy: new(registration.Fail),
			})
		}
	}

	for _, configuration := range []any{mutating, validating} {
		text, err := json.Marshal(configuration)
		if err != nil {
			return err
		}

		if err := c.Apply(ctx, text); err != nil {
			return err
		}
	}

	return nil
}

func rulesOf(hook apiserver.Hook) []registration.RuleWithOperations {
	resource := hook.Resource.Resource
	if hook.Subresource != "" {
		resource += "/" + hook.Subresource
	}

	rule := registration.RuleWithOperations{Rule: registration.Rule{
		APIGroups: []string{hook.Resource.Group}, APIVersions: []string{"*"}, Resources: []string{resource},
	}}

	for _, operation := range hook.Operations {
		rule.Operations = append(rule.Operations, registration.OperationType(operation))
	}

	return []registration.RuleWithOperations{rule}
}

// review answers the API server's question with what a hook says.
func review(hook func(context.Context, *apiserver.Review) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var asked admission.AdmissionReview

		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Request == nil {
			http.Error(w, "want an AdmissionReview with a request", http.StatusBadRequest)

			return
		}

		answer, err := judge(r.Context(), asked.Request, hook)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)

			return
		}

		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(admission.AdmissionReview{TypeMeta: asked.TypeMeta, Response: answer}) // Who has gone needs no answer.
	}
}

func judge(ctx context.Context, asked *admission.AdmissionRequest, hook func(context.Context, *apiserver.Review) error) (*admission.AdmissionResponse, error) {
	about := &apiserver.Review{
		Operation: apiserver.Operation(asked.Operation), Resource: schema.GroupVersionResource(asked.Resource), Subresource: asked.SubResource,
		Namespace: asked.Namespace, Name: asked.Name, DryRun: asked.DryRun != nil && *asked.DryRun,
		User: &user.DefaultInfo{Name: asked.UserInfo.Username, UID: asked.UserInfo.UID, Groups: asked.UserInfo.Groups},
	}

	var err error

	if about.Object, err = decode(asked.Object); err != nil {
		return nil, err
	}

	if about.Old, err = decode(asked.OldObject); err != nil {
		return nil, err
	}

	err = hook(ctx, about)

	if refusal, ok := errors.AsType[*apiserver.Refusal](err); ok {
		return &admission.AdmissionResponse{UID: asked.UID, Result: &refusal.Status}, nil
	}

	if err != nil {
		return nil, err
	}

	answer := &admission.AdmissionResponse{UID: asked.UID, Allowed: true}

	before, err := decode(asked.Object)
	if err != nil || before == nil {
		return answer, err
	}

	if changes := patch(before.Object, about.Object.Object); len(changes) > 0 {
		answer.PatchType = new(admission.PatchTypeJSONPatch)

		if answer.Patch, err = json.Marshal(changes); err != nil {
			return nil, err
		}
	}

	return answer, nil
}

func decode(object runtime.RawExtension) (*unstructured.Unstructured, error) {
	if len(object.Raw) == 0 || string(object.Raw) == "null" {
		return nil, nil //nolint:nilnil // There is none.
	}

	u := &unstructured.Unstructured{}

	return u, u.UnmarshalJSON(object.Raw)
}

// patch makes a JSON patch (RFC 6902) of whole fields at the top of an object.
func patch(before, after map[string]any) (changes []map[string]any) {
	for _, field := range slices.Sorted(maps.Keys(after)) {
		if !reflect.DeepEqual(before[field], after[field]) {
			changes = append(changes, map[string]any{"op": "add", "path": "/" + field, "value": after[field]})
		}
	}

	for _, field := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[field]; !ok {
			changes = append(changes, map[string]any{"op": "remove", "path": "/" + field})
		}
	}

	return changes
}
