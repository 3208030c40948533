// Package openapi holds the traffic of tests against the OpenAPI document of Oxide's API. The document is not ours to publish: the
// environment variable OXIDE_OPENAPI has its path (sim/oxide/README.md says where it comes from).
package openapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/dlclark/regexp2"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// Env names the environment variable with the path of the document.
const Env = "OXIDE_OPENAPI"

// Document is an OpenAPI document that traffic is held against. Its methods may be called from several goroutines.
type Document struct {
	doc   *openapi3.T
	paths []path
}

type path struct {
	template string
	segments []string
	item     *openapi3.PathItem
}

// FromEnv reads the document that OXIDE_OPENAPI names, once in a process. It is nil without an error if the variable is not set.
var FromEnv = sync.OnceValues(func() (*Document, error) {
	name := os.Getenv(Env)
	if name == "" {
		return nil, nil //nolint:nilnil // There is none, as the contract says.
	}

	return Open(name)
})

// formats defines those of the document that the validator does not have by itself; it does not check formats that it does not know.
var formats = sync.OnceFunc(func() {
	openapi3.DefineStringFormatValidator("uuid", openapi3.NewRegexpFormatValidator(openapi3.FormatOfStringForUUIDOfRFC4122))
	openapi3.DefineIPv4Format()
	openapi3.DefineIPv6Format()
})

// Open reads a document from a file.
func Open(name string) (*Document, error) {
	formats()

	doc, err := openapi3.NewLoader().LoadFromFile(name)
	if err != nil {
		return nil, fmt.Errorf("read OpenAPI document %q: %w", name, err)
	}

	if err := doc.Validate(context.Background(), openapi3.SetRegexCompiler(compile)); err != nil {
		return nil, fmt.Errorf("check OpenAPI document %q: %w", name, err)
	}

	d := &Document{doc: doc}

	for template, item := range doc.Paths.Map() {
		d.paths = append(d.paths, path{template, strings.Split(template, "/"), item})
	}

	return d, nil
}

// Version is the version of the API that the document describes.
func (d *Document) Version() string { return d.doc.Info.Version }

// pattern is an expression of ECMAScript, with what Go's own expressions lack.
type pattern struct{ *regexp2.Regexp }

func (p pattern) MatchString(text string) bool {
	ok, err := p.Regexp.MatchString(text)

	return ok && err == nil
}

var patterns sync.Map // expression => pattern

func compile(expression string) (openapi3.RegexMatcher, error) {
	if known, ok := patterns.Load(expression); ok {
		return known.(pattern), nil //nolint:forcetypeassert // Nothing else is stored.
	}

	compiled, err := regexp2.Compile(expression, regexp2.None)
	if err != nil {
		return nil, err
	}

	patterns.Store(expression, pattern{compiled})

	return pattern{compiled}, nil
}

// Transport returns a RoundTripper that holds each request and its answer against the document, and tells report what does not fit.
// The traffic itself stays as it is. A request that the document refuses is reported when it is answered as if it were a good one, or always if
// strict: the requests of a program are never bad, those of a test are on purpose.
func (d *Document) Transport(next http.RoundTripper, strict bool, report func(error)) http.RoundTripper {
	return &transport{d, next, strict, report}
}

type transport struct {
	*Document
	next   http.RoundTripper
	strict bool
	report func(error)
}

// RoundTrip passes a request on.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := read(req.Body)
	if err != nil {
		return nil, err
	}

	sent := req.Clone(req.Context())
	if req.Body != nil {
		sent.Body = io.NopCloser(bytes.NewReader(body))
	}

	resp, err := t.next.RoundTrip(sent)
	if err != nil {
		return nil, err
	}

	answer, err := read(resp.Body)
	if err != nil {
		return nil, err
	}

	resp.Body = io.NopCloser(bytes.NewReader(answer))

	if err := t.check(req, body, resp, answer); err != nil {
		t.report(fmt.Errorf("%s %s is answered %d: %w", req.Method, req.URL.Path, resp.StatusCode, err))
	}

	return resp, nil
}

func read(body io.ReadCloser) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	defer body.Close() //nolint:errcheck // It was read.

	return io.ReadAll(body)
}

func (t *transport) check(req *http.Request, body []byte, resp *http.Response, answer []byte) error {
	route, params, err := t.route(req)
	if err != nil {
		return err
	}

	checked := req.Clone(context.Background())
	checked.Body = io.NopCloser(bytes.NewReader(body))

	// The client says that its body is JSON when it has none, too.
	if len(body) == 0 {
		checked.Body = nil
		checked.Header.Del("Content-Type")
	}

	options := &openapi3filter.Options{
		RegexCompiler: compile, IncludeResponseStatus: true, SkipSettingDefaults: true,
		AuthenticationFunc: openapi3filter.NoopAuthenticationFunc,
	}
	in := &openapi3filter.RequestValidationInput{Request: checked, PathParams: params, Route: route, Options: options}

	if err := openapi3filter.ValidateRequest(context.Background(), in); err != nil && (t.strict || resp.StatusCode < http.StatusBadRequest) {
		return fmt.Errorf("the request does not fit: %w", err)
	}

	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: resp.StatusCode, Header: resp.Header, Options: options,
	}

	if err := openapi3filter.ValidateResponse(context.Background(), out.SetBodyBytes(answer)); err != nil {
		return fmt.Errorf("the answer does not fit: %w", err)
	}

	return nil
}

// errNoOperation says that the API has no such operation.
var errNoOperation = errors.New("the document has no such operation")

func (d *Document) route(req *http.Request) (*routers.Route, map[string]string, error) {
	segments := strings.Split(req.URL.Path, "/")

	for _, p := range d.paths {
		params, ok := p.match(segments)
		if !ok {
			continue
		}

		if operation := p.item.GetOperation(req.Method); operation != nil {
			return &routers.Route{Spec: d.doc, Path: p.template, PathItem: p.item, Method: req.Method, Operation: operation}, params, nil
		}
	}

	return nil, nil, errNoOperation
}

func (p path) match(segments []string) (params map[string]string, ok bool) {
	if len(segments) != len(p.segments) {
		return nil, false
	}

	params = map[string]string{}

	for i, s := range p.segments {
		if strings.HasPrefix(s, "{") {
			params[strings.Trim(s, "{}")] = segments[i]
		} else if s != segments[i] {
			return nil, false
		}
	}

	return params, true
}

// Operations are the ids of all operations by method and path, with a star for each part of a path that varies ("GET /v1/disks/*").
func (d *Document) Operations() map[string]string {
	all := map[string]string{}

	for _, p := range d.paths {
		var b strings.Builder

		for _, s := range p.segments[1:] {
			if strings.HasPrefix(s, "{") {
				s = "*"
			}

			b.WriteString("/" + s)
		}

		for method, operation := range p.item.Operations() {
			all[method+" "+b.String()] = operation.OperationID
		}
	}

	return all
}
