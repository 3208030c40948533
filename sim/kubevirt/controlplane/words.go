package controlplane

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// inWords is what an API server answers when a fault befalls a call.
func inWords(req *http.Request, c call, fault *ledger.FaultError, body []byte) *http.Response {
	resource := schema.GroupResource{Group: c.info.APIGroup, Resource: c.info.Resource}

	switch fault.Kind { //nolint:exhaustive // The others are played by the books, or become the last of these.
	case ledger.NotFound:
		return notServed(req)
	case ledger.Conflict:
		return answer(req, 0, apierrors.NewConflict(resource, c.info.Name,
			errors.New("the object has been modified; please apply your changes to the latest version and try again")).Status())
	case ledger.Throttled:
		pause := int(math.Ceil(fault.RetryAfter.Seconds()))

		return answer(req, pause, apierrors.NewTooManyRequests("The server has received too many requests and has asked us to try again later", pause).Status())
	case ledger.Full:
		return answer(req, 0, apierrors.NewForbidden(resource, c.info.Name,
			errors.New("exceeded quota: machines, requested: limits.memory=2Gi, used: limits.memory=16Gi, limited: limits.memory=16Gi")).Status())
	case ledger.Unauthorized:
		return answer(req, 0, apierrors.NewUnauthorized("Unauthorized").Status())
	case ledger.Echo:
		return answer(req, 0, apierrors.NewInternalError(fmt.Errorf("cannot process %s %s %s", req.Method, req.URL, body)).Status())
	default:
		return answer(req, 0, apierrors.NewServiceUnavailable("etcdserver: leader changed").Status())
	}
}

// notServed is the answer for a resource whose definition, or whose API service, has gone: not a Status but a text.
func notServed(req *http.Request) *http.Response {
	return reply(req, http.StatusNotFound, "text/plain; charset=utf-8", []byte("404 page not found\n"))
}

func answer(req *http.Request, pause int, status metav1.Status) *http.Response {
	status.Kind, status.APIVersion = "Status", "v1"

	text, err := json.Marshal(status)
	if err != nil {
		panic(err) // It is strings and numbers.
	}

	resp := reply(req, int(status.Code), "application/json", text)
	if pause > 0 {
		resp.Header.Set("Retry-After", strconv.Itoa(pause))
	}

	return resp
}

func reply(req *http.Request, code int, contentType string, text []byte) *http.Response {
	return &http.Response{
		Status: fmt.Sprintf("%d %s", code, http.StatusText(code)), StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(bytes.NewReader(text)), ContentLength: int64(len(text)), Request: req,
	}
}
