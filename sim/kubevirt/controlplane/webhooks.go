package controlplane

import (
	"context"
	"encoding/json"
	"net/http"

	registration "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Webhook is a webhook of the cluster that is asked about changes.
type Webhook struct {
	// Name is the one in the texts of refusals ("virtualmachine-validator.kubevirt.io"): three labels at least.
	Name string
	// Path is where its handler takes AdmissionReviews.
	Path string
	// Mutating says that it may change the object; others only refuse.
	Mutating bool
	// Resource is what it is asked about, in any version; one of a subresource is like "virtualmachines/status".
	Resource schema.GroupResource
	// Operations are those that it is asked about.
	Operations []registration.OperationType
}

// AddWebhooks makes the API server ask a handler about changes. name is that of the configurations, one for each handler. A webhook that
// does not answer is a refusal.
func (c *ControlPlane) AddWebhooks(ctx context.Context, name string, handler http.Handler, webhooks ...Webhook) error {
	address, err := c.Serve(ctx, handler)
	if err != nil {
		return err
	}

	mutating := &registration.MutatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}
	validating := &registration.ValidatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}

	for _, w := range webhooks {
		url := "https://" + address + w.Path
		client := registration.WebhookClientConfig{URL: &url, CABundle: c.Authority()}
		rules := []registration.RuleWithOperations{{Operations: w.Operations, Rule: registration.Rule{
			APIGroups: []string{w.Resource.Group}, APIVersions: []string{"*"}, Resources: []string{w.Resource.Resource},
		}}}

		if w.Mutating {
			mutating.Webhooks = append(mutating.Webhooks, registration.MutatingWebhook{
				Name: w.Name, ClientConfig: client, Rules: rules, SideEffects: new(registration.SideEffectClassNone),
				AdmissionReviewVersions: []string{"v1"}, FailurePolicy: new(registration.Fail),
			})
		} else {
			validating.Webhooks = append(validating.Webhooks, registration.ValidatingWebhook{
				Name: w.Name, ClientConfig: client, Rules: rules, SideEffects: new(registration.SideEffectClassNone),
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
