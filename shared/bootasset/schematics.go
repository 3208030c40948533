package bootasset

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"sync"
	"time"

	"github.com/siderolabs/omni/client/api/omni/management"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Schematics makes schematics known to an image factory.
type Schematics interface {
	// EnsureSchematic returns the id of the schematic whose YAML is raw, after the factory has it. It may be called again.
	EnsureSchematic(ctx context.Context, raw []byte) (id string, err error)
}

// SchematicCreator is what OmniSchematics needs of the Omni client's Management.
type SchematicCreator interface {
	CreateSchematicFromRaw(ctx context.Context, schematic []byte) (*management.CreateSchematicResponse, error)
}

// OmniSchematics makes schematics through Omni, at the factory that Omni itself uses. Omni has the call since version 1.9.
type OmniSchematics struct {
	Management SchematicCreator
}

// EnsureSchematic implements Schematics.
func (o OmniSchematics) EnsureSchematic(ctx context.Context, raw []byte) (string, error) {
	response, err := o.Management.CreateSchematicFromRaw(ctx, raw)
	if err == nil {
		return response.GetSchematicId(), nil
	}

	err = fmt.Errorf("create schematic through Omni: %w", err)

	switch status.Code(err) {
	case codes.InvalidArgument:
		return "", driver.Terminal(err)
	case codes.Unimplemented:
		return "", fmt.Errorf("%w; Omni before 1.9 cannot do this, set an image factory of your own", err)
	default:
		return "", err
	}
}

// FactorySchematics makes schematics at an image factory, without Omni.
type FactorySchematics struct {
	factory *url.URL
	http    *http.Client
}

// NewFactorySchematics takes the factory's base URL and the client for it; nil is a client with Go's defaults.
func NewFactorySchematics(factory string, client *http.Client) (*FactorySchematics, error) {
	u, err := parseFactory(factory)
	if err != nil {
		return nil, err
	}

	return &FactorySchematics{factory: u, http: withoutTimeout(client)}, nil
}

// EnsureSchematic implements Schematics.
func (f *FactorySchematics) EnsureSchematic(ctx context.Context, raw []byte) (string, error) {
	target := f.factory.JoinPath("schematics").String()

	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(raw))
	if err != nil {
		return "", fmt.Errorf("create schematic: %w", withoutURL(err))
	}

	request.Header.Set("Content-Type", "application/yaml")

	response, err := f.http.Do(request)
	if err != nil {
		return "", fmt.Errorf("create schematic: POST %s: %w", target, withoutURL(err))
	}
	defer response.Body.Close()

	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("create schematic: %w", statusError(response, target))
	}

	var answer struct {
		ID string `json:"id"`
	}

	if err = json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&answer); err != nil {
		return "", fmt.Errorf("create schematic: read the answer of POST %s: %w", target, err)
	}

	return answer.ID, nil
}

const (
	// schematicTimeout bounds one call, whoever waits for it.
	schematicTimeout = time.Minute
	// maxSchematics bounds the cache; there are only as many as there are kinds of image.
	maxSchematics = 1024
)

// A schematic's id is the SHA-256 of its canonical form. It becomes part of URLs and names.
var schematicID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// schematicCache asks for each schematic once, whatever the number of requests that wait for it. It remembers no failure.
type schematicCache struct {
	schematics Schematics
	flight     singleflight.Group

	mu  sync.Mutex
	ids map[[sha256.Size]byte]string
}

func newSchematicCache(schematics Schematics) *schematicCache {
	return &schematicCache{schematics: schematics, ids: map[[sha256.Size]byte]string{}}
}

func (c *schematicCache) ensure(ctx context.Context, raw []byte) (string, error) {
	key := sha256.Sum256(raw)

	c.mu.Lock()
	id, ok := c.ids[key]
	c.mu.Unlock()

	if ok {
		return id, nil
	}

	// The call belongs to all who wait for it, so it goes on when the first of them gives up.
	result := c.flight.DoChan(string(key[:]), func() (any, error) {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), schematicTimeout,
			fmt.Errorf("no answer within %s", schematicTimeout))
		defer cancel()

		id, err := c.schematics.EnsureSchematic(ctx, raw)
		if err != nil {
			return "", err
		}

		if !schematicID.MatchString(id) {
			return "", fmt.Errorf("the image factory answered with the schematic id %.80q: want 64 hexadecimal digits", id)
		}

		c.remember(key, id)

		return id, nil
	})

	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case r := <-result:
		if r.Err != nil {
			return "", r.Err
		}

		return r.Val.(string), nil
	}
}

func (c *schematicCache) remember(key [sha256.Size]byte, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if len(c.ids) >= maxSchematics {
		clear(c.ids)
	}

	c.ids[key] = id
}

func (c *schematicCache) forget(raw []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.ids, sha256.Sum256(raw))
}
