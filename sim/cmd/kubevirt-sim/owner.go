package main

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// ownerPath is below which the server has what Kubernetes has not: machines with how often they booted.
const ownerPath = "/sim/machines"

// The marks that omni-infra-provider-kubevirt puts on its machines.
const (
	markProvider = "omni-infra.dev/provider-id"
	markRequest  = "omni-infra.dev/request-id"
)

// handler serves the API server, and the cluster's owner.
func handler(c *kubevirt.Cluster, token string) http.Handler {
	owner := http.NewServeMux()
	owner.HandleFunc("GET "+ownerPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(c.Machines()) //nolint:errcheck // The client is gone.
	})
	owner.HandleFunc("DELETE "+ownerPath+"/{id}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, c.DeleteMachine(r.PathValue("id")))
	})
	owner.HandleFunc("PUT "+ownerPath+"/{id}/on", func(w http.ResponseWriter, r *http.Request) {
		answer(w, c.SwitchOn(r.PathValue("id")))
	})
	owner.HandleFunc("PUT "+ownerPath+"/{id}/off", func(w http.ResponseWriter, r *http.Request) {
		answer(w, c.SwitchOff(r.PathValue("id")))
	})

	all := http.NewServeMux()
	all.Handle("/", c.Server().Handler(c.Ledger().Session()))
	all.HandleFunc("/sim/", func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+token)) != 1 {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)

			return
		}

		owner.ServeHTTP(w, r)
	})

	return all
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
	}
}

// ownerClient calls the owner's side of a server.
type ownerClient struct {
	server *url.URL
	http   *http.Client
}

func newOwnerClient(kubeconfig string) (*ownerClient, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}

	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}

	server, err := url.Parse(config.Host)

	return &ownerClient{server: server, http: client}, err
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 16 << 20

func (c *ownerClient) do(ctx context.Context, method string, path ...string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.server.JoinPath(append([]string{ownerPath}, path...)...).String(), nil)
	if err != nil {
		return nil, err
	}

	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // Only read from.

	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))

	switch {
	case err != nil:
		return nil, err
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s", response.Status, bytes.TrimSpace(body))
	default:
		return body, nil
	}
}

// listed is a machine as a hook of omni-conformance prints it.
type listed struct {
	ID      string `json:"id"`
	Request string `json:"request"`
	UUID    string `json:"uuid"`
	Name    string `json:"name"`
	Power   string `json:"power"`
	Boots   int    `json:"boots"`
}

func (c *ownerClient) list(ctx context.Context, provider string, stdout io.Writer) error {
	body, err := c.do(ctx, http.MethodGet)
	if err != nil {
		return fmt.Errorf("list machines: %w", err)
	}

	var machines []ledger.Machine

	if err := json.Unmarshal(body, &machines); err != nil {
		return fmt.Errorf("list machines: %w", err)
	}

	out := json.NewEncoder(stdout)

	for _, m := range machines {
		if provider != "" && m.Tags[markProvider] != provider {
			continue
		}

		one := listed{ID: m.ID, Request: m.Tags[markRequest], UUID: m.UUID, Name: m.Name, Power: "off", Boots: m.Boots}
		if m.On {
			one.Power = "on"
		}

		if err := out.Encode(one); err != nil {
			return err
		}
	}

	return nil
}

func (c *ownerClient) remove(ctx context.Context, id string) error {
	if _, err := c.do(ctx, http.MethodDelete, id); err != nil {
		return fmt.Errorf("remove machine %q: %w", id, err)
	}

	return nil
}

func (c *ownerClient) power(ctx context.Context, id string, on bool) error {
	state := "off"
	if on {
		state = "on"
	}

	if _, err := c.do(ctx, http.MethodPut, id, state); err != nil {
		return fmt.Errorf("switch machine %q %s: %w", id, state, err)
	}

	return nil
}
