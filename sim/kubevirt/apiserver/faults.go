package apiserver

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
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Faults are the kinds of faults that the server has words for, besides those that the ledger plays by itself.
var Faults = []ledger.FaultKind{
	ledger.NotFound, ledger.Conflict, ledger.Throttled, ledger.Unavailable, ledger.Full, ledger.Unauthorized, ledger.Echo,
}

// answerFault answers a call as a real cluster does that such a fault befalls.
func answerFault(w http.ResponseWriter, f *ledger.FaultError, info *request.RequestInfo, sent []byte) {
	of, name := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, nameIn(info, sent)

	switch f.Kind { //nolint:exhaustive // The others are played by the books, or become the last of these.
	case ledger.NotFound:
		// The definition has gone, or the aggregated API: it is not the object that is missing.
		http.Error(w, "404 page not found", http.StatusNotFound)
	case ledger.Conflict:
		writeStatus(w, apierrors.NewConflict(of, name, errors.New(
			"the object has been modified; please apply your changes to the latest version and try again")))
	case ledger.Throttled:
		// It is flow control that says so, in front of all that knows of a Status.
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(f.RetryAfter.Seconds()))))
		http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
	case ledger.Full:
		writeStatus(w, apierrors.NewForbidden(of, name, errors.New(
			"exceeded quota: machines, requested: limits.memory=2Gi, used: limits.memory=16Gi, limited: limits.memory=16Gi")))
	case ledger.Unauthorized:
		writeStatus(w, apierrors.NewUnauthorized("Unauthorized"))
	case ledger.Echo:
		writeStatus(w, apierrors.NewInternalError(fmt.Errorf("failed calling webhook %q: cannot process %s", "mutator.sim.example", sent)))
	default:
		writeStatus(w, apierrors.NewServiceUnavailable("etcdserver: leader changed"))
	}
}

// nameIn returns the name of the object that a request is about, which is in the body of a create.
func nameIn(info *request.RequestInfo, sent []byte) string {
	if info.Name != "" || info.Verb != "create" {
		return info.Name
	}

	var u unstructured.Unstructured
	if json.Unmarshal(sent, &u.Object) != nil {
		return ""
	}

	return u.GetName()
}

func writeStatus(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status) // Who does not listen any more does not need to know.
}
