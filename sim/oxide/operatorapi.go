package oxide

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// operatorPath is where OperatorHandler has its calls, which are none of the API's.
const operatorPath = "/operator/machines"

// OperatorHandler serves the API as Handler does, and beside it the calls of the rack's operator in another process (Operator),
// which take the administrator's token.
func (r *Rack) OperatorHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", r.Handler())
	mux.HandleFunc("GET "+operatorPath, r.forOperator(func(*http.Request) (any, error) { return r.Machines(), nil }))
	mux.HandleFunc("DELETE "+operatorPath+"/{id}", r.forOperator(func(req *http.Request) (any, error) {
		return nil, r.DeleteMachine(req.PathValue("id"))
	}))
	mux.HandleFunc("PUT "+operatorPath+"/{id}/on", r.forOperator(func(req *http.Request) (any, error) {
		return nil, r.SwitchOn(req.PathValue("id"))
	}))
	mux.HandleFunc("PUT "+operatorPath+"/{id}/off", r.forOperator(func(req *http.Request) (any, error) {
		return nil, r.SwitchOff(req.PathValue("id"))
	}))

	return mux
}

func (r *Rack) forOperator(do func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") != "Bearer "+r.Token() {
			http.Error(w, "the administrator's token is needed", http.StatusUnauthorized)

			return
		}

		answer, err := do(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)

			return
		}

		_ = json.NewEncoder(w).Encode(answer) // Who does not listen any more does not need to know.
	}
}

// Operator is a rack in another process as its operator sees it, behind OperatorHandler at Host.
type Operator struct {
	// Host is the URL of the rack, Token the administrator's.
	Host, Token string
}

// Machines returns the instances of all projects, the oldest first.
func (o Operator) Machines(ctx context.Context) (all []ledger.Machine, err error) {
	return all, o.ask(ctx, http.MethodGet, operatorPath, &all)
}

// DeleteMachine takes an instance away, running or not. Its disks stay.
func (o Operator) DeleteMachine(ctx context.Context, id string) error {
	return o.ask(ctx, http.MethodDelete, operatorPath+"/"+id, nil)
}

// Power starts or stops an instance.
func (o Operator) Power(ctx context.Context, id string, on bool) error {
	state := "off"
	if on {
		state = "on"
	}

	return o.ask(ctx, http.MethodPut, operatorPath+"/"+id+"/"+state, nil)
}

// maxAnswer is how much of an answer is read.
const maxAnswer = 16 << 20

func (o Operator) ask(ctx context.Context, method, path string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(o.Host, "/")+path, nil)
	if err != nil {
		return err
	}

	req.Header.Set("Authorization", "Bearer "+o.Token)

	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // It was read.

	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))

	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("the rack answers %s: %w", resp.Status, errors.New(string(bytes.TrimSpace(body))))
	case answer == nil:
		return nil
	}

	return json.Unmarshal(body, answer)
}
