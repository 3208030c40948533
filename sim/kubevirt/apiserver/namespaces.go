package apiserver

import (
	"context"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

var namespaceResource = core.SchemeGroupVersion.WithResource("namespaces")

// createNamespace makes one that is there from the start.
func (s *Server) createNamespace(name string) error {
	n := &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	ctx := request.WithNamespace(context.Background(), metav1.NamespaceNone)

	_, err := s.resource(namespaceResource).main.(rest.Creater).Create(ctx, n, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})

	return err
}

func (s *Server) namespace(name string) (*core.Namespace, error) {
	ctx := request.WithNamespace(context.Background(), metav1.NamespaceNone)

	got, err := s.resource(namespaceResource).main.(rest.Getter).Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}

	n, ok := got.(*core.Namespace)
	if !ok {
		return nil, apierrors.NewNotFound(namespaceResource.GroupResource(), name)
	}

	return n, nil
}
