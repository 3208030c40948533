// Package bootasset finds, fetches and decodes the Talos boot image that a machine request asks for. It speaks to a Talos image
// factory, directly or through Omni. The runner gives a Resolver to package lifecycle; drivers see only driver.Image.
package bootasset

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// DefaultFactory is the public image factory.
const DefaultFactory = "https://factory.talos.dev"

// Config says where images come from. The zero value of each field is its default.
type Config struct {
	// Factory is the base URL of the image factory, DefaultFactory by default. It appears in status texts and, through
	// driver.Image.URL, in cloud objects, so it takes no user or password: HTTP has to bring those.
	Factory string
	// Schematics makes schematics, by default at Factory itself.
	Schematics Schematics
	// HTTP makes the requests to the factory. By default that is a client that takes proxies from the environment and the
	// system's certificates. Its Timeout is not used: it would end every slow download.
	HTTP *http.Client
	// RawExtension is the form in which raw images are fetched: "raw.xz" by default, or "raw.zst", "raw.gz", "raw".
	RawExtension string
	// HeaderTimeout bounds the wait for the answer to a request. A factory builds an image that it is asked for the first time
	// before it answers, so the default is 15 minutes.
	HeaderTimeout time.Duration
	// IdleTimeout bounds the wait for more data of an image, a minute by default. There is no limit on the whole download.
	IdleTimeout time.Duration
	// Retries is how often a download that was cut is resumed without a mebibyte of progress in between, 5 by default.
	Retries int
}

// Resolver implements lifecycle.Images. It may be used from several goroutines.
type Resolver struct {
	factory      *url.URL
	schematics   *schematicCache
	rawExtension string
	source       source
}

// New makes a Resolver, or says which field of the config cannot work.
func New(config Config) (*Resolver, error) {
	if config.Factory == "" {
		config.Factory = DefaultFactory
	}

	factory, err := parseFactory(config.Factory)
	if err != nil {
		return nil, err
	}

	if config.RawExtension == "" {
		config.RawExtension = "raw.xz"
	}

	if format, decoder, _ := strings.Cut(config.RawExtension, "."); format != "raw" || decoders[decoder] == nil {
		return nil, fmt.Errorf("raw extension %q: want raw.xz, raw.zst, raw.gz or raw", config.RawExtension)
	}

	client := withoutTimeout(config.HTTP)

	if config.Schematics == nil {
		config.Schematics = &FactorySchematics{factory: factory, http: client}
	}

	return &Resolver{
		factory:      factory,
		schematics:   newSchematicCache(config.Schematics),
		rawExtension: config.RawExtension,
		source: source{
			http:          client,
			headerTimeout: withDefault(config.HeaderTimeout, 15*time.Minute),
			idleTimeout:   withDefault(config.IdleTimeout, time.Minute),
			retries:       withDefault(config.Retries, 5),
		},
	}, nil
}

// Resolve returns the image that spec and the request describe together, after making sure that the factory knows its
// schematic. It downloads nothing. A request or spec that no factory could serve is a Terminal error that names the field.
func (r *Resolver) Resolve(ctx context.Context, request *infra.MachineRequest, spec driver.ImageSpec) (driver.Image, error) {
	version, err := NormalizeVersion(request.TypedSpec().Value.GetTalosVersion())
	if err != nil {
		return nil, err
	}

	if spec, err = complete(spec); err != nil {
		return nil, err
	}

	raw, err := schematicFor(request.TypedSpec().Value, spec)
	if err != nil {
		return nil, err
	}

	id, err := r.schematics.ensure(ctx, raw)
	if err != nil {
		return nil, fmt.Errorf("make the image's schematic: %w", err)
	}

	extension := spec.Format
	if extension == "raw" {
		extension = r.rawExtension
	}

	return &image{
		spec:      spec,
		version:   version,
		schematic: id,
		factory:   r.factory,
		extension: extension,
		source:    r.source,
		forget:    func() { r.schematics.forget(raw) },
	}, nil
}

// parseFactory checks a base URL. Its errors do not repeat the URL's password.
func parseFactory(base string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(base, "/"))

	switch {
	case err != nil:
		return nil, fmt.Errorf("parse the image factory's URL: %w", withoutURL(err))
	case u.User != nil:
		return nil, fmt.Errorf("image factory URL %q: user and password cannot be part of it, it is shown to others", u.Redacted())
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("image factory URL %q: want https://HOST or https://HOST/PATH", u.Redacted())
	default:
		return u, nil
	}
}

func withoutTimeout(client *http.Client) *http.Client {
	if client == nil {
		return &http.Client{}
	}

	c := *client
	c.Timeout = 0

	return &c
}

func withDefault[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}

	return value
}
