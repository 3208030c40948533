package bootasset_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func TestMissingImageNamesURLAndVersion(t *testing.T) {
	for _, code := range []int{http.StatusNotFound, http.StatusGone} {
		f := &factory{}
		resolver := f.resolver(t, nil)

		image, err := resolver.Resolve(t.Context(), request(nil), driver.ImageSpec{Platform: "nocloud"})
		require.NoError(t, err)

		f.answer = func(r *http.Request) *answer {
			if r.Method == http.MethodGet {
				return &answer{code, nil, "no such version\n"}
			}

			return nil
		}

		_, err = image.Open(t.Context())
		require.ErrorContains(t, err, "the image factory has no Talos v1.13.5 for nocloud-amd64")
		require.ErrorContains(t, err, "GET "+image.URL()+": "+fmt.Sprint(code))
		require.ErrorContains(t, err, "no such version")
		assert.Equal(t, driver.KindTerminal, driver.KindOf(err))

		// The factory may have lost its schematics: the next try tells it again.
		_, err = resolver.Resolve(t.Context(), request(nil), driver.ImageSpec{Platform: "nocloud"})
		require.NoError(t, err)
		assert.Len(t, f.posted(), 2)
	}
}

func TestFactorysRefusalsHaveTheirKind(t *testing.T) {
	tests := []struct {
		name   string
		code   int
		header http.Header
		kind   driver.Kind
		pause  time.Duration
	}{
		{"throttled for a while", 429, http.Header{"Retry-After": {"20"}}, driver.KindTransient, 20 * time.Second},
		{"throttled", 429, nil, driver.KindTransient, 0},
		{"in maintenance", 503, http.Header{"Retry-After": {"120"}}, driver.KindTransient, 2 * time.Minute},
		{"broken", 500, nil, driver.KindTransient, 0},
		{"credentials", 401, nil, driver.KindTransient, 0},
		{"unknown extension", 400, nil, driver.KindTerminal, 0},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &factory{image: disk()}
			image := f.resolve(t)
			f.answer = func(r *http.Request) *answer { return &answer{tt.code, tt.header, "why"} }

			_, err := image.Open(t.Context())
			require.ErrorContains(t, err, "why")
			assert.Equal(t, tt.kind, driver.KindOf(err))
			assert.Equal(t, tt.pause, driver.PauseOf(err))

			f.answer = nil

			got, err := read(t.Context(), image)
			require.NoError(t, err)
			assert.Equal(t, disk(), got)
		})
	}
}

func TestRetryAfterIsReadInBothForms(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

	for value, want := range map[string]time.Duration{
		"":                              0,
		"20":                            20 * time.Second,
		" 20 ":                          20 * time.Second,
		"-20":                           0,
		"soon":                          0,
		"1.5":                           0,
		"86400":                         time.Hour,
		"9223372036854775807":           time.Hour,
		"Tue, 01 Jan 2030 12:01:00 GMT": time.Minute,
		"Tue, 01 Jan 2030 11:59:00 GMT": 0,
		"Fri, 01 Jan 2100 00:00:00 GMT": time.Hour,
	} {
		assert.Equal(t, want, bootasset.RetryAfter(value, now), "%q", value)
	}
}

func FuzzRetryAfter(f *testing.F) {
	f.Add("20")
	f.Add("Tue, 01 Jan 2030 12:01:00 GMT")

	f.Fuzz(func(t *testing.T, value string) {
		got := bootasset.RetryAfter(value, time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC))
		require.GreaterOrEqual(t, got, time.Duration(0))
		require.LessOrEqual(t, got, time.Hour)
	})
}
