package apiserver

import (
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// noticed is how long the aggregator takes to see that a service is not there.
const noticed = 30 * time.Second

// Cut takes away who serves a version of an API group that Serve added, until restore is called. The aggregator answers in his place,
// with texts that are no Status.
func (s *Server) Cut(version schema.GroupVersion) (restore func()) {
	set := func(since time.Time) {
		s.mu.Lock()
		defer s.mu.Unlock()

		s.groups[version].cut = since
	}

	set(time.Now())

	return func() { set(time.Time{}) }
}

// unreachable answers a request for a version that nobody serves for now.
func (s *Server) unreachable(w http.ResponseWriter, info *request.RequestInfo) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()

	for version, group := range s.groups {
		if group.cut.IsZero() || info.Path != "/apis/"+version.String() && !strings.HasPrefix(info.Path, "/apis/"+version.String()+"/") {
			continue
		}

		text := "service unavailable"
		if time.Since(group.cut) < noticed {
			text = "error trying to reach service: dial tcp 10.96.0.17:443: connect: connection refused"
		}

		http.Error(w, text, http.StatusServiceUnavailable)

		return true
	}

	return false
}
