package openapi_test

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/oxide/openapi"
)

// document is a small one of its own, with what the real one has and most validators lack: expressions that look around.
const document = `{"openapi": "3.0.3", "info": {"title": "t", "version": "1.0.0"}, "paths": {"/v1/things/{thing}": {"put": {
 "operationId": "thing_update",
 "parameters": [{"in": "path", "name": "thing", "required": true, "schema": {"$ref": "#/components/schemas/NameOrId"}}],
 "requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
 "responses": {"200": {"description": "ok", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
  "4XX": {"description": "no"}}}}},
"components": {"schemas": {
 "Thing": {"type": "object", "required": ["name"], "properties": {"name": {"$ref": "#/components/schemas/Name"}}},
 "Name": {"type": "string", "pattern": "^(?![0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$)^[a-z]([a-z0-9-]*[a-z0-9])?$"},
 "NameOrId": {"oneOf": [{"type": "string", "format": "uuid"}, {"$ref": "#/components/schemas/Name"}]}}}}`

type answers struct {
	status int
	body   string
}

func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
	}

	return &http.Response{
		StatusCode: a.status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader([]byte(a.body))),
	}, nil
}

func TestTrafficThatDoesNotFitIsReported(t *testing.T) {
	name := filepath.Join(t.TempDir(), "document.json")
	require.NoError(t, os.WriteFile(name, []byte(document), 0o600))

	d, err := openapi.Open(name)
	require.NoError(t, err)
	require.Equal(t, "1.0.0", d.Version())
	require.Equal(t, map[string]string{"PUT /v1/things/*": "thing_update"}, d.Operations())

	const id = "00000000-0000-4000-8000-000000000000"

	for rule, tt := range map[string]struct {
		path, body string
		answer     answers
		strict     bool
		want       string
	}{
		"good":                               {"/v1/things/a", `{"name": "b"}`, answers{200, `{"name": "b"}`}, true, ""},
		"by id":                              {"/v1/things/" + id, `{"name": "b"}`, answers{200, `{"name": "b"}`}, true, ""},
		"no such operation":                  {"/v1/thongs/a", `{"name": "b"}`, answers{200, `{"name": "b"}`}, false, "no such operation"},
		"a name that is an id":               {"/v1/things/a", `{"name": "` + id + `"}`, answers{200, `{"name": "b"}`}, false, "the request does not fit"},
		"a bad request that is refused":      {"/v1/things/a", `{"name": "-"}`, answers{400, `{}`}, false, ""},
		"a bad request of a program":         {"/v1/things/a", `{"name": "-"}`, answers{400, `{}`}, true, "the request does not fit"},
		"an answer without its field":        {"/v1/things/a", `{"name": "b"}`, answers{200, `{}`}, false, "the answer does not fit"},
		"a status that the document has not": {"/v1/things/a", `{"name": "b"}`, answers{201, `{"name": "b"}`}, false, "the answer does not fit"},
	} {
		t.Run(rule, func(t *testing.T) {
			var seen []error

			client := http.Client{Transport: d.Transport(tt.answer, tt.strict, func(err error) { seen = append(seen, err) })}

			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://rack"+tt.path, bytes.NewReader([]byte(tt.body)))
			require.NoError(t, err)
			req.Header.Set("Content-Type", "application/json")

			resp, err := client.Do(req)
			require.NoError(t, err)

			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, tt.answer.body, string(body), "the traffic stays as it is")

			if tt.want == "" {
				require.Empty(t, seen)

				return
			}

			require.Len(t, seen, 1)
			require.ErrorContains(t, seen[0], tt.want)
		})
	}
}

func TestDocumentThatIsNoneIsNamed(t *testing.T) {
	_, err := openapi.Open(filepath.Join(t.TempDir(), "none.json"))
	require.ErrorContains(t, err, "none.json")
}
