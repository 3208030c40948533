package bootasset_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

const base = "https://factory.example.org"

// factory is an image factory behind http.RoundTripper. It serves image for every path below /image/.
type factory struct {
	image []byte
	etag  string
	// answer, when set and not nil for a request, is what is sent instead.
	answer func(*http.Request) *answer
	// body, when set, wraps what is sent.
	body func(*http.Request, io.Reader) io.Reader
	// unsized leaves out Content-Length.
	unsized bool

	mu         sync.Mutex
	requests   []*http.Request
	schematics []string
}

func (f *factory) RoundTrip(r *http.Request) (*http.Response, error) {
	var sent []byte
	if r.Body != nil {
		sent, _ = io.ReadAll(r.Body)
	}

	f.mu.Lock()
	f.requests = append(f.requests, r)

	if r.Method == http.MethodPost {
		f.schematics = append(f.schematics, string(sent))
	}
	f.mu.Unlock()

	if f.answer != nil {
		if a := f.answer(r); a != nil {
			return a.response(r), nil
		}
	}

	if r.Method == http.MethodPost && r.URL.Path == "/schematics" {
		id := sha256.Sum256(sent)

		return answer{http.StatusCreated, nil, fmt.Sprintf(`{"id":%q}`, hex.EncodeToString(id[:]))}.response(r), nil
	}

	if !strings.HasPrefix(r.URL.Path, "/image/") {
		return answer{http.StatusNotFound, nil, "not found"}.response(r), nil
	}

	return f.serve(r), nil
}

func (f *factory) serve(r *http.Request) *http.Response {
	header := http.Header{}
	if f.etag != "" {
		header.Set("ETag", f.etag)
	}

	code, start := http.StatusOK, 0

	if given := r.Header.Get("Range"); given != "" && (r.Header.Get("If-Range") == "" || r.Header.Get("If-Range") == f.etag) {
		code = http.StatusPartialContent
		start, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(given, "bytes="), "-"))
		header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, len(f.image)-1, len(f.image)))
	}

	var body io.Reader = bytes.NewReader(f.image[start:])
	if f.body != nil {
		body = f.body(r, body)
	}

	response := answer{code, header, ""}.response(r)
	response.Body = io.NopCloser(body)
	response.ContentLength = int64(len(f.image) - start)

	if f.unsized {
		response.ContentLength = -1
	}

	return response
}

func (f *factory) images() []*http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()

	var images []*http.Request

	for _, r := range f.requests {
		if strings.HasPrefix(r.URL.Path, "/image/") {
			images = append(images, r)
		}
	}

	return images
}

func (f *factory) posted() []string {
	f.mu.Lock()
	defer f.mu.Unlock()

	return f.schematics
}

// resolver uses the factory's images without packing.
func (f *factory) resolver(t *testing.T, change func(*bootasset.Config)) *bootasset.Resolver {
	t.Helper()

	config := bootasset.Config{Factory: base, HTTP: &http.Client{Transport: f}, RawExtension: "raw"}
	if change != nil {
		change(&config)
	}

	resolver, err := bootasset.New(config)
	require.NoError(t, err)

	return resolver
}

// resolve returns an image of the factory.
func (f *factory) resolve(t *testing.T) driver.Image {
	t.Helper()

	image, err := f.resolver(t, nil).Resolve(t.Context(), request(nil), driver.ImageSpec{Platform: "nocloud"})
	require.NoError(t, err)

	return image
}

// answer is what the factory says to a request.
type answer struct {
	code   int
	header http.Header
	body   string
}

func (a answer) response(r *http.Request) *http.Response {
	header := a.header
	if header == nil {
		header = http.Header{}
	}

	return &http.Response{
		Request: r, StatusCode: a.code, Status: fmt.Sprintf("%d %s", a.code, http.StatusText(a.code)),
		Header: header, Body: io.NopCloser(strings.NewReader(a.body)), ContentLength: int64(len(a.body)),
	}
}

func request(change func(*specs.MachineRequestSpec)) *infra.MachineRequest {
	r := infra.NewMachineRequest("talos-default-7xk2p")
	r.TypedSpec().Value.TalosVersion = "1.13.5"

	if change != nil {
		change(r.TypedSpec().Value)
	}

	return r
}

// pause delays each read and gives up with the request.
type pause struct {
	io.Reader

	ctx   context.Context
	delay time.Duration
}

func (p pause) Read(b []byte) (int, error) {
	select {
	case <-p.ctx.Done():
		return 0, p.ctx.Err()
	case <-time.After(p.delay):
		return p.Reader.Read(b)
	}
}

// stall sends nothing more and gives up with the request.
func stall(r *http.Request) io.Reader {
	return pause{Reader: strings.NewReader(""), ctx: r.Context(), delay: 1000 * time.Hour}
}
