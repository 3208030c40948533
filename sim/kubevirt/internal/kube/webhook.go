package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Admit decides on one request.
type Admit func(ctx context.Context, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse

// maxReview bounds what a webhook reads.
const maxReview = 8 << 20

// Webhook serves an admission webhook of the version admission.k8s.io/v1.
func Webhook(admit Admit) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReview))

		var review admissionv1.AdmissionReview
		if err == nil {
			err = json.Unmarshal(body, &review)
		}

		if err == nil && review.Request == nil {
			err = fmt.Errorf("the review has no request")
		}

		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)

			return
		}

		response := admit(r.Context(), review.Request)
		response.UID = review.Request.UID
		review.Request, review.Response = nil, response

		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(review) //nolint:errcheck // The client is gone.
	})
}

// Allow lets a request in, with warnings for its user.
func Allow(warnings ...string) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true, Warnings: warnings}
}

// Error refuses a request that cannot be decided on.
func Error(err error) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: err.Error(), Code: http.StatusBadRequest}}
}

// maxCauses is how many causes KubeVirt tells at once.
const maxCauses = 10

// Refuse refuses a request for its causes, as KubeVirt and CDI word it.
func Refuse(causes []metav1.StatusCause) *admissionv1.AdmissionResponse {
	shown := causes[:min(len(causes), maxCauses)]
	texts := make([]string, len(shown))

	for i, c := range shown {
		texts[i] = c.Message
	}

	message := strings.Join(texts, ", ")
	if more := len(causes) - len(shown); more > 0 {
		message = fmt.Sprintf("%s, and %v more validation errors", message, more)
	}

	return &admissionv1.AdmissionResponse{Result: &metav1.Status{
		Status: metav1.StatusFailure, Message: message, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
		Details: &metav1.StatusDetails{Causes: shown},
	}}
}

// Patch lets a request in with its object replaced in those parts.
func Patch(parts map[string]any) *admissionv1.AdmissionResponse {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}

	operations := []operation{}
	for path, value := range parts {
		operations = append(operations, operation{"add", path, value})
	}

	slices.SortFunc(operations, func(a, b operation) int { return strings.Compare(a.Path, b.Path) })

	patch, err := json.Marshal(operations)
	if err != nil {
		return Error(err)
	}

	return &admissionv1.AdmissionResponse{Allowed: true, Patch: patch, PatchType: new(admissionv1.PatchTypeJSONPatch)}
}

// Own says whether a user is a component of KubeVirt or CDI, or the cluster's own administrator.
func Own(user authenticationv1.UserInfo) bool {
	return strings.HasPrefix(user.Username, "system:serviceaccount:kubevirt:") || strings.HasPrefix(user.Username, "system:serviceaccount:cdi:") ||
		slices.Contains(user.Groups, "system:masters")
}
