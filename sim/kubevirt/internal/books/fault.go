package books

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Faults are the kinds of faults that there are words for, besides those that the ledger plays by itself.
func Faults() []ledger.FaultKind {
	return []ledger.FaultKind{
		ledger.NotFound, ledger.Conflict, ledger.Throttled, ledger.Unavailable, ledger.Full, ledger.Unauthorized, ledger.Echo,
	}
}

// Answer is what an API server answers.
type Answer struct {
	Code   int
	Header http.Header
	Body   []byte
}

// AnswerTo returns what a call that such a fault befalls is answered. sent is the request's body.
func (c Call) AnswerTo(f *ledger.FaultError, sent []byte) Answer {
	resource, name := schema.GroupResource{Group: c.info.APIGroup, Resource: c.info.Resource}, c.name(sent)

	switch f.Kind { //nolint:exhaustive // The others are played by the books, or become the last of these.
	case ledger.NotFound:
		// The definition has gone, or the aggregated API: it is not the object that is missing.
		return text(http.StatusNotFound, "404 page not found")
	case ledger.Conflict:
		return status(apierrors.NewConflict(resource, name, errors.New(
			"the object has been modified; please apply your changes to the latest version and try again")))
	case ledger.Throttled:
		// It is flow control that says so, in front of all that knows of a Status.
		a := text(http.StatusTooManyRequests, "Too many requests, please try again later.")
		a.Header.Set("Retry-After", strconv.Itoa(int(math.Ceil(f.RetryAfter.Seconds()))))

		return a
	case ledger.Full:
		return status(apierrors.NewForbidden(resource, name, errors.New(
			"exceeded quota: machines, requested: limits.memory=2Gi, used: limits.memory=16Gi, limited: limits.memory=16Gi")))
	case ledger.Unauthorized:
		return status(apierrors.NewUnauthorized("Unauthorized"))
	case ledger.Echo:
		return status(apierrors.NewInternalError(fmt.Errorf("failed calling webhook %q: cannot process %s", "mutator.sim.example", sent)))
	default:
		return status(apierrors.NewServiceUnavailable("etcdserver: leader changed"))
	}
}

// name returns the name of the object that a call is about, which is in the body of a create.
func (c Call) name(sent []byte) string {
	if c.info.Name != "" || c.info.Verb != "create" {
		return c.info.Name
	}

	var u unstructured.Unstructured
	if json.Unmarshal(sent, &u.Object) != nil {
		return ""
	}

	return u.GetName()
}

// text is an answer in the words of Go's own server.
func text(code int, line string) Answer {
	return Answer{
		Code: code, Body: []byte(line + "\n"),
		Header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}, "X-Content-Type-Options": {"nosniff"}},
	}
}

func status(err *apierrors.StatusError) Answer {
	s := err.Status()
	s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}

	body, marshalErr := json.Marshal(s)
	if marshalErr != nil {
		panic(marshalErr) // It is strings and numbers.
	}

	return Answer{Code: int(s.Code), Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
}
