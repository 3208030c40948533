package apiserver

import (
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/books"
)

// chain is what a request passes through, from the outside: who is it, may it, and the handler of what it asks for.
func (s *Server) chain() http.Handler {
	h := http.Handler(http.HandlerFunc(s.dispatch))
	h = filters.WithAuthorization(h, s.rules, codecs)
	h = impersonation.WithImpersonation(h, s.rules, codecs)
	h = filters.WithAuthentication(h, authenticator.RequestFunc(s.authenticate), filters.Unauthorized(codecs), nil, nil)
	h = filters.WithWarningRecorder(h)
	h = filters.WithAuditInit(h)
	h = filters.WithRequestReceivedTimestamp(h)

	return filters.WithRequestInfo(h, books.Paths)
}

// authenticate implements authenticator.Request. Who shows no token is anonymous.
func (s *Server) authenticate(r *http.Request) (*authenticator.Response, bool, error) {
	header := r.Header.Get("Authorization")
	r.Header.Del("Authorization")

	if header == "" {
		return &authenticator.Response{User: &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}}, true, nil
	}

	info, ok := s.users.byHeader(header)
	if !ok {
		return nil, false, nil
	}

	return &authenticator.Response{User: info}, true, nil
}

func (s *Server) dispatch(w http.ResponseWriter, r *http.Request) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok {
		http.Error(w, "no request info", http.StatusInternalServerError)

		return
	}

	if s.unreachable(w, info) {
		return
	}

	if !info.IsResourceRequest {
		s.discovery(w, r)

		return
	}

	version := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	if g := s.extra(version); g != nil {
		g.handler.ServeHTTP(w, r)

		return
	}

	found := s.resource(version.WithResource(info.Resource))
	if found == nil {
		refuse(w, r, version, http.StatusNotFound)

		return
	}

	if code := found.misplaced(info); code != 0 {
		refuse(w, r, version, code)

		return
	}

	h, err := found.handler(info, s.hooks, s.quotas)

	switch {
	case err != nil && ownVersion(version):
		refuse(w, r, version, http.StatusMethodNotAllowed)
	case err != nil:
		responsewriters.ErrorNegotiated(err, codecs, version, w, r)
	case h == nil:
		responsewriters.ErrorNegotiated(apierrors.NewNotFound(version.WithResource(info.Resource).GroupResource(), info.Name), codecs, version, w, r)
	default:
		h.ServeHTTP(w, r)
	}
}

// ownVersion says whether the real server has the version by itself, and not by a definition.
func ownVersion(version schema.GroupVersion) bool {
	return slices.ContainsFunc(builtins, func(b builtin) bool { return b.version == version })
}

// refuse answers where there is no handler: for its own groups the real server does so with a Status, for all others with a text.
func refuse(w http.ResponseWriter, r *http.Request, version schema.GroupVersion, code int) {
	if !ownVersion(version) {
		http.NotFound(w, r)

		return
	}

	responsewriters.ErrorNegotiated(apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", "", 0, false),
		codecs, schema.GroupVersion{}, w, r)
}
