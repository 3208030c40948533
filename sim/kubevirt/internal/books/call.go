// Package books says how the calls to a Kubernetes API are named in a ledger, and what an API server answers when a fault befalls them
// there: the same words before a simulated server and before a real one.
package books

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Paths knows what a path of the API is about.
var Paths = &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// Call is what a request asks for.
type Call struct {
	// Op is its verb, as access rules have it, and the resource with its subresource: "create virtualmachines",
	// "update virtualmachines/restart", "get /version". An apply is a patch.
	Op string
	// Object is what it is about: "default/vm-1", or the namespace alone where the path has no name.
	Object string

	info *request.RequestInfo
}

// CallOf returns what a request asks for.
func CallOf(r *http.Request) (Call, error) {
	info, err := Paths.NewRequestInfo(r)
	if err != nil {
		return Call{}, err
	}

	c := Call{Op: info.Verb + " " + info.Resource, info: info}

	switch {
	case !info.IsResourceRequest:
		c.Op = info.Verb + " " + info.Path

		return c, nil
	case info.Resource == "namespaces":
		// Its own name is that of the namespace it is in, too.
		c.Object = info.Name
	default:
		c.Object = strings.Trim(info.Namespace+"/"+info.Name, "/")
	}

	if info.Subresource != "" {
		c.Op += "/" + info.Subresource
	}

	return c, nil
}

// Watches reports whether the call is a watch: in the books its answer is that it has begun.
func (c Call) Watches() bool { return c.info.Verb == "watch" }

// Scan looks for secrets in what is sent, except into a Secret: that is the place for what nobody else may see.
func (c Call) Scan(l *ledger.Ledger, sent []byte) {
	if c.info.Resource != "secrets" {
		l.Scan(c.Op+" "+c.Object, string(sent))
	}
}
