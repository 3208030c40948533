package apiserver

import (
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// extraGroup is a version of an API group that somebody else serves.
type extraGroup struct {
	resources []metav1.APIResource
	handler   http.Handler
	// cut is since when nobody serves it, zero for not.
	cut time.Time
}

// Serve adds a version of an API group that handler serves, as an aggregated API server does (subresources.kubevirt.io/v1). The
// resources are those of its discovery. The handler is called after authentication and authorization, in place of the server for all
// paths below a resource; k8s.io/apiserver/pkg/endpoints/request tells it of the user and of what the path means.
func (s *Server) Serve(version schema.GroupVersion, resources []metav1.APIResource, handler http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.groups[version] = &extraGroup{resources: resources, handler: handler}
}

func (s *Server) extra(version schema.GroupVersion) *extraGroup {
	s.mu.RLock()
	defer s.mu.RUnlock()

	return s.groups[version]
}
