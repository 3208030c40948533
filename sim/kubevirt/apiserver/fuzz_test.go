package apiserver_test

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/definitions"
)

// ownFaults are what a real server says with 500 and more, and takes the client's faults for its own: the golden file has them.
var ownFaults = []string{
	"resourceVersion should not be set on objects to be created", "failed to create typed patch object", "strconv.ParseUint: parsing",
	"Timeout: Too large resource version",
}

// ask sends what came from anywhere. The answer may be a no, but never the server's own fault, nor its end.
func ask(t *testing.T, s *apiserver.Server, method, path, media string, body []byte) {
	t.Helper()

	r, err := http.NewRequestWithContext(t.Context(), method, "https://kubernetes.sim"+path, bytes.NewReader(body))
	if err != nil {
		t.Skip("no request")
	}

	r.Header.Set("Authorization", "Bearer "+s.Admin().BearerToken)
	r.Header.Set("Content-Type", media)

	answer, err := s.Transport(nil).RoundTrip(r)
	require.NoError(t, err)

	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())

	if !slices.ContainsFunc(ownFaults, func(fault string) bool { return strings.Contains(string(text), fault) }) {
		require.Less(t, answer.StatusCode, http.StatusInternalServerError, "%s %s: %s", method, path, text)
	}
}

func fuzzed(f *testing.F) *apiserver.Server {
	f.Helper()

	all, err := definitions.All()
	require.NoError(f, err)

	s, err := apiserver.New(apiserver.Options{Definitions: all})
	require.NoError(f, err)
	f.Cleanup(s.Close)

	return s
}

func FuzzList(f *testing.F) {
	f.Add("a=b,c in (d,e)", "metadata.name=a", "nonsense", "1", "7", "Exact")
	f.Add("!a", "metadata.name!=a", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MTAxLCJzdGFydCI6ImRlZmF1bHQvYVx1MDAwMCJ9", "2", "", "")
	f.Add("a notin (", "a", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiLi4vLi4vIn0", "-1", "x", "NotOlderThan")

	s := fuzzed(f)

	f.Fuzz(func(t *testing.T, label, field, token, limit, version, match string) {
		query := url.Values{}

		for k, v := range map[string]string{
			"labelSelector": label, "fieldSelector": field, "continue": token, "limit": limit, "resourceVersion": version,
			"resourceVersionMatch": match,
		} {
			if v != "" {
				query.Set(k, v)
			}
		}

		ask(t, s, http.MethodGet, "/apis/kubevirt.io/v1/namespaces/default/virtualmachines?"+query.Encode(), "application/json", nil)
		ask(t, s, http.MethodGet, "/api/v1/pods?"+query.Encode(), "application/json", nil)
	})
}

func FuzzPatch(f *testing.F) {
	for _, s := range fidelity {
		if s.method == http.MethodPatch {
			f.Add(s.media, []byte(s.body))
		}
	}

	s := fuzzed(f)

	f.Fuzz(func(t *testing.T, media string, body []byte) {
		c := vms(t, s.Admin())
		_, _ = c.Create(t.Context(), machine("a"), metav1.CreateOptions{}) // It is there from the second time on.

		ask(t, s, http.MethodPatch, "/apis/kubevirt.io/v1/namespaces/default/virtualmachines/a?fieldManager=fuzz", media, body)
		ask(t, s, http.MethodPatch, "/api/v1/namespaces/default/configmaps/a?fieldManager=fuzz&force=true", media, body)
	})
}

func FuzzCreate(f *testing.F) {
	for _, s := range fidelity {
		if s.method == http.MethodPost {
			f.Add(s.path, []byte(s.body))
		}
	}

	s := fuzzed(f)

	f.Fuzz(func(t *testing.T, path string, body []byte) {
		where, err := url.ParseRequestURI(path)
		if err != nil || where.Host != "" {
			t.Skip("no path")
		}

		ask(t, s, http.MethodPost, where.RequestURI(), "application/json", body)
	})
}
