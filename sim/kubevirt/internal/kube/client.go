package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// Kind is a kind of objects with its place in the API.
type Kind struct {
	schema.GroupVersionKind
	// Resource is the plural in the path.
	Resource string
	// Cluster says that the objects have no namespace.
	Cluster bool
}

// Object is a pointer to an API object of type T.
type Object[T any] interface {
	*T
	metav1.Object
	SetGroupVersionKind(schema.GroupVersionKind)
}

// Client sends requests to an API server. It is safe for concurrent use.
type Client struct {
	config *rest.Config
	http   *http.Client
}

// codecs read the errors of an API server.
var codecs = sync.OnceValue(func() serializer.CodecFactory {
	known := runtime.NewScheme()
	metav1.AddToGroupVersion(known, schema.GroupVersion{Version: "v1"})

	return serializer.NewCodecFactory(known)
})

// NewClient returns a client. It does not throttle itself.
func NewClient(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.RateLimiter = -1, nil

	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client of the API server: %w", err)
	}

	return &Client{config: config, http: client}, nil
}

func (c *Client) rest(gv schema.GroupVersion) (*rest.RESTClient, error) {
	config := rest.CopyConfig(c.config)
	config.GroupVersion, config.NegotiatedSerializer = &gv, codecs().WithoutConversion()
	config.APIPath = "/apis"

	if gv.Group == "" {
		config.APIPath = "/api"
	}

	return rest.RESTClientForConfigAndClient(config, c.http)
}

// Resource is the objects of one kind at an API server.
type Resource[T any, P Object[T]] struct {
	kind Kind
	rest *rest.RESTClient
}

// Of returns the objects of a kind.
func Of[T any, P Object[T]](c *Client, kind Kind) (Resource[T, P], error) {
	client, err := c.rest(kind.GroupVersion())
	if err != nil {
		return Resource[T, P]{}, fmt.Errorf("make client of %s: %w", kind.Resource, err)
	}

	return Resource[T, P]{kind: kind, rest: client}, nil
}

// Kind returns the kind.
func (r Resource[T, P]) Kind() Kind { return r.kind }

func (r Resource[T, P]) at(request *rest.Request, namespace, name string) *rest.Request {
	request = request.Resource(r.kind.Resource)
	if !r.kind.Cluster {
		request = request.Namespace(namespace)
	}

	if name != "" {
		request = request.Name(name)
	}

	return request
}

func (r Resource[T, P]) do(ctx context.Context, request *rest.Request) (P, error) {
	result := request.Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}

	raw, err := result.Raw()
	if err != nil {
		return nil, err
	}

	return r.decode(raw)
}

func (r Resource[T, P]) decode(raw []byte) (P, error) {
	object := P(new(T))
	if err := json.Unmarshal(raw, object); err != nil {
		return nil, fmt.Errorf("decode %s: %w", r.kind.Kind, err)
	}

	object.SetGroupVersionKind(r.kind.GroupVersionKind)

	return object, nil
}

// Get returns an object as the server has it now.
func (r Resource[T, P]) Get(ctx context.Context, namespace, name string) (P, error) {
	return r.do(ctx, r.at(r.rest.Get(), namespace, name))
}

// Create makes an object.
func (r Resource[T, P]) Create(ctx context.Context, object P) (P, error) {
	body, err := r.body(object)
	if err != nil {
		return nil, err
	}

	return r.do(ctx, r.at(r.rest.Post(), object.GetNamespace(), "").Body(body).SetHeader("Content-Type", runtime.ContentTypeJSON))
}

// Update replaces an object, or with the name of a subresource that part of it.
func (r Resource[T, P]) Update(ctx context.Context, object P, subresource ...string) (P, error) {
	body, err := r.body(object)
	if err != nil {
		return nil, err
	}

	request := r.at(r.rest.Put(), object.GetNamespace(), object.GetName()).SubResource(subresource...)

	return r.do(ctx, request.Body(body).SetHeader("Content-Type", runtime.ContentTypeJSON))
}

// Patch changes an object, or with the name of a subresource that part of it.
func (r Resource[T, P]) Patch(ctx context.Context, namespace, name string, kind types.PatchType, patch []byte, subresource ...string) (P, error) {
	return r.do(ctx, r.at(r.rest.Patch(kind), namespace, name).SubResource(subresource...).Body(patch))
}

// Delete asks for the deletion of the object with that UID. An object of that name with another UID is a conflict.
func (r Resource[T, P]) Delete(ctx context.Context, object metav1.Object, policy metav1.DeletionPropagation) error {
	uid := object.GetUID()
	options := metav1.DeleteOptions{
		TypeMeta:          metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions:     &metav1.Preconditions{UID: &uid},
		PropagationPolicy: &policy,
	}

	body, err := json.Marshal(options)
	if err != nil {
		return err
	}

	request := r.at(r.rest.Delete(), object.GetNamespace(), object.GetName())

	return request.Body(body).SetHeader("Content-Type", runtime.ContentTypeJSON).Do(ctx).Error()
}

// body writes an object with its kind, which the server wants to read.
func (r Resource[T, P]) body(object P) ([]byte, error) {
	object.SetGroupVersionKind(r.kind.GroupVersionKind)

	body, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", r.kind.Kind, err)
	}

	return body, nil
}

// list returns all objects of all namespaces, and the version of that list.
func (r Resource[T, P]) list(ctx context.Context) ([]P, string, error) {
	result := r.rest.Get().Resource(r.kind.Resource).Do(ctx)
	if err := result.Error(); err != nil {
		return nil, "", err
	}

	raw, err := result.Raw()
	if err != nil {
		return nil, "", err
	}

	var list struct {
		metav1.ListMeta `json:"metadata"`
		Items           []T `json:"items"`
	}

	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, "", fmt.Errorf("decode list of %s: %w", r.kind.Resource, err)
	}

	objects := make([]P, len(list.Items))

	for i := range list.Items {
		objects[i] = &list.Items[i]
		objects[i].SetGroupVersionKind(r.kind.GroupVersionKind)
	}

	return objects, list.ResourceVersion, nil
}

// watchSeconds is how long a watch may last: a week, so that one at rest costs nothing.
const watchSeconds = "604800"

// watch returns the events after a version. It ends with ctx, or when the body is closed. It asks for no bookmarks, which would come every
// minute; after a long quiet time it lists again instead.
func (r Resource[T, P]) watch(ctx context.Context, version string) (io.ReadCloser, error) {
	return r.rest.Get().Resource(r.kind.Resource).Param("watch", "true").Param("resourceVersion", version).
		Param("timeoutSeconds", watchSeconds).Stream(ctx)
}
