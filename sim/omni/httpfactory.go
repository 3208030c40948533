package omni

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

const (
	// factoryTimeout bounds one call of an image factory, and factoryLimit what it may answer.
	factoryTimeout = 30 * time.Second
	factoryLimit   = 1 << 20
)

// HTTPFactory is a Factory that is reached over HTTP by the API of Talos' image factory.
type HTTPFactory struct {
	// URL is where the factory is, without a path.
	URL *url.URL
	// Client makes the calls; nil means http.DefaultClient.
	Client *http.Client
}

// EnsureSchematic stores a schematic in the factory and returns the id that the factory gave it.
func (f *HTTPFactory) EnsureSchematic(ctx context.Context, raw []byte) (id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, factoryTimeout)
	defer cancel()

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.URL.JoinPath("schematics").String(), bytes.NewReader(raw))
	if err != nil {
		return "", fmt.Errorf("store schematic: %w", err)
	}

	client := f.Client
	if client == nil {
		client = http.DefaultClient
	}

	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("store schematic: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read

	body, err := io.ReadAll(io.LimitReader(resp.Body, factoryLimit))
	if err != nil {
		return "", fmt.Errorf("store schematic: %w", err)
	}

	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("store schematic: image factory answered %s: %s", resp.Status, bytes.TrimSpace(body))
	}

	var stored struct {
		ID string `json:"id"`
	}

	if err = json.Unmarshal(body, &stored); err != nil || stored.ID == "" {
		return "", fmt.Errorf("store schematic: image factory answered without an id: %s", bytes.TrimSpace(body))
	}

	return stored.ID, nil
}
