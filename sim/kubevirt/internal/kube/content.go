package kube

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
)

// Content is what namespaces have in them, of every kind that the server shows.
type Content struct {
	known   *discovery.DiscoveryClient
	objects metadata.Interface
}

// NewContent returns the content of the namespaces of a client's server.
func NewContent(c *Client) (content *Content, err error) {
	content = &Content{}

	if content.known, err = discovery.NewDiscoveryClientForConfigAndClient(c.config, c.http); err != nil {
		return nil, fmt.Errorf("make client of discovery: %w", err)
	}

	if content.objects, err = metadata.NewForConfigAndClient(metadata.ConfigFor(c.config), c.http); err != nil {
		return nil, fmt.Errorf("make client of metadata: %w", err)
	}

	return content, nil
}

// cleared are the verbs of what can be deleted as a whole. Others are no objects: reviews and subresources.
var cleared = discovery.SupportsAllVerbs{Verbs: []string{"list", "deletecollection"}}

// Clear asks for the deletion of all that a namespace has in it, and returns the kinds of which something is still there: finalizers or
// a time to end may keep it. With an error there may be more.
func (c *Content) Clear(ctx context.Context, namespace string) (left []schema.GroupVersionResource, err error) {
	// A group whose server is away says nothing of the others.
	lists, failed := c.known.ServerPreferredNamespacedResources()

	kinds, err := discovery.GroupVersionResources(discovery.FilteredBy(cleared, lists))
	if err != nil {
		return nil, fmt.Errorf("read discovery: %w", err)
	}

	for kind := range kinds {
		remains, err := c.clear(ctx, kind, namespace)

		switch {
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("delete %s of namespace %q: %w", kind.Resource, namespace, err))
		case remains:
			left = append(left, kind)
		}
	}

	return left, failed
}

func (c *Content) clear(ctx context.Context, kind schema.GroupVersionResource, namespace string) (remains bool, err error) {
	objects := c.objects.Resource(kind).Namespace(namespace)
	one := metav1.ListOptions{Limit: 1}

	list, err := objects.List(ctx, one)
	if apierrors.IsNotFound(err) { // The kind has gone.
		return false, nil
	}

	if err != nil || len(list.Items) == 0 {
		return false, err
	}

	policy := metav1.DeletePropagationBackground

	err = objects.DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &policy}, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return false, err
	}

	if list, err = objects.List(ctx, one); err != nil {
		return false, err
	}

	return len(list.Items) > 0, nil
}
