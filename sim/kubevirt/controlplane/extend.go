package controlplane

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"slices"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/books"
)

// The service that stands for virt-api, as KubeVirt's operator names it.
const (
	serviceNamespace = "kubevirt"
	serviceName      = "virt-api"
)

// Serve serves a handler over TLS on the loopback interface until Close, and returns its address, as "127.0.0.1:12345".
func (c *ControlPlane) Serve(ctx context.Context, handler http.Handler) (string, error) {
	var config net.ListenConfig

	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}

	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{Certificates: []tls.Certificate{c.keys.server}},
		ErrorLog: log.New(discard{}, "", 0), // The API server breaks off calls whose clients have gone.
	}
	c.servers = append(c.servers, server)

	go func() { _ = server.ServeTLS(listener, "", "") }() // It ends with Close.

	return listener.Addr().String(), nil
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// Authority returns the certificate that what Serve serves is trusted by, in PEM: a webhook's caBundle.
func (c *ControlPlane) Authority() []byte { return slices.Clone(c.keys.authority) }

// Apply makes or changes the objects of a YAML or JSON document each, as `kubectl apply --server-side` does.
func (c *ControlPlane) Apply(ctx context.Context, documents ...[]byte) error {
	client, err := dynamic.NewForConfig(c.admin)
	if err != nil {
		return err
	}

	for _, document := range documents {
		var u unstructured.Unstructured
		if err := yaml.Unmarshal(document, &u.Object); err != nil {
			return err
		}

		// Every kind that is applied here has its regular plural.
		resource, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())

		_, err := client.Resource(resource).Namespace(u.GetNamespace()).Apply(ctx, u.GetName(), &u,
			metav1.ApplyOptions{FieldManager: "test", Force: true})
		if err != nil {
			return fmt.Errorf("apply %s %q: %w", u.GetKind(), u.GetName(), err)
		}
	}

	return nil
}

// Define makes resource definitions, and waits until the API server serves what they define.
func (c *ControlPlane) Define(ctx context.Context, definitions []*apiextensions.CustomResourceDefinition) error {
	for _, definition := range definitions {
		text, err := json.Marshal(definition)
		if err != nil {
			return err
		}

		if err := c.Apply(ctx, text); err != nil {
			return err
		}
	}

	resource := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

	return c.await(ctx, resource, len(definitions), "Established")
}

// Aggregate makes the API server pass the calls of a version of an API group on to a handler, as it passes those of KubeVirt's
// subresources to virt-api, after it has found out who calls and whether they may. The resources are those of its discovery.
// k8s.io/apiserver/pkg/endpoints/request tells the handler of the user and of what the path means.
func (c *ControlPlane) Aggregate(ctx context.Context, group schema.GroupVersion, resources []metav1.APIResource, handler http.Handler) error {
	address, err := c.Serve(ctx, aggregated(group, resources, handler))
	if err != nil {
		return err
	}

	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}

	number := json.Number(port)

	documents := []map[string]any{
		{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": serviceNamespace}},
		{
			"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": serviceName, "namespace": serviceNamespace},
			// There are no endpoints, and nobody who would route to them.
			"spec": map[string]any{"type": "ExternalName", "externalName": "localhost", "ports": []any{map[string]any{"port": number}}},
		},
		{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": group.Version + "." + group.Group},
			"spec": map[string]any{
				"group": group.Group, "version": group.Version, "groupPriorityMinimum": 1000, "versionPriority": 15, "caBundle": c.Authority(),
				"service": map[string]any{"namespace": serviceNamespace, "name": serviceName, "port": number},
			},
		},
	}

	for _, document := range documents {
		text, err := json.Marshal(document)
		if err != nil {
			return err
		}

		if err := c.Apply(ctx, text); err != nil {
			return err
		}
	}

	resource := schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

	return c.await(ctx, resource, 0, "Available")
}

// aggregated is a handler as the API server's aggregator calls it.
func aggregated(group schema.GroupVersion, resources []metav1.APIResource, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, err := books.Paths.NewRequestInfo(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)

			return
		}

		if !info.IsResourceRequest {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(metav1.APIResourceList{ // Who has gone needs no answer.
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: group.String(), APIResources: resources,
			})

			return
		}

		ctx := request.WithRequestInfo(r.Context(), info)
		ctx = request.WithUser(ctx, &user.DefaultInfo{Name: r.Header.Get("X-Remote-User"), Groups: r.Header.Values("X-Remote-Group")})

		handler.ServeHTTP(w, r.WithContext(ctx))
	})
}

// await waits until at least so many objects are there and all of them have a condition.
func (c *ControlPlane) await(ctx context.Context, resource schema.GroupVersionResource, least int, condition string) error {
	client, err := dynamic.NewForConfig(c.admin)
	if err != nil {
		return err
	}

	for {
		all, err := client.Resource(resource).List(ctx, metav1.ListOptions{})
		if err != nil && !apierrors.IsServiceUnavailable(err) {
			return fmt.Errorf("list %s: %w", resource.Resource, err)
		}

		missing := ""

		if all != nil {
			for _, object := range all.Items {
				if !has(object, condition) {
					missing = object.GetName()
				}
			}

			if missing == "" && len(all.Items) >= least {
				return nil
			}
		}

		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), fmt.Errorf("%s %q does not become %s", resource.Resource, missing, condition))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func has(object unstructured.Unstructured, condition string) bool {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")

	return slices.ContainsFunc(conditions, func(c any) bool {
		fields, ok := c.(map[string]any)

		return ok && fields["type"] == condition && fields["status"] == "True"
	})
}
