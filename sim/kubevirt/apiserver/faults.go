package apiserver

import (
	"net/http"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/books"
)

// Faults are the kinds of faults that the server has words for, besides those that the ledger plays by itself.
var Faults = books.Faults()

// answerFault answers a call as a real cluster does that a fault befalls.
func answerFault(w http.ResponseWriter, a books.Answer) {
	for k, v := range a.Header {
		w.Header()[k] = v
	}

	w.WriteHeader(a.Code)
	_, _ = w.Write(a.Body) // Who does not listen any more does not need to know.
}
