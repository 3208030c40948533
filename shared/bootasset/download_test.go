package bootasset_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// disk is what the files in testdata unpack to: blocks of 512 bytes, each mostly zero.
func disk() []byte {
	var d []byte

	for i := range 96 {
		block := make([]byte, 512)
		copy(block, bytes.Repeat([]byte{byte(i)}, 97))
		d = append(d, block...)
	}

	return d
}

// read opens an image and reads it to the end, whatever comes of it.
func read(ctx context.Context, image driver.Image) ([]byte, error) {
	r, err := image.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer r.Close()

	return io.ReadAll(r)
}

func TestSlowDownloadOfManyMinutesSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &factory{image: make([]byte, 300<<10)}
		f.body = func(r *http.Request, body io.Reader) io.Reader {
			return pause{Reader: io.LimitReader(&slices{body}, 300<<10), ctx: r.Context(), delay: 10 * time.Second}
		}

		image, err := f.resolver(t, func(c *bootasset.Config) { c.HTTP.Timeout = time.Second }).
			Resolve(t.Context(), request(nil), driver.ImageSpec{Platform: "nocloud"})
		require.NoError(t, err)

		started := time.Now()

		got, err := read(t.Context(), image)
		require.NoError(t, err)
		assert.Len(t, got, 300<<10)
		assert.Greater(t, time.Since(started), 45*time.Minute)
		assert.Len(t, f.images(), 1)
	})
}

// slices gives out a kibibyte at a time.
type slices struct{ io.Reader }

func (s *slices) Read(p []byte) (int, error) { return s.Reader.Read(p[:min(len(p), 1<<10)]) }

func TestStalledDownloadIsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &factory{image: disk(), etag: `"a"`}
		f.body = func(r *http.Request, body io.Reader) io.Reader {
			if r.Header.Get("Range") == "" {
				return io.MultiReader(io.LimitReader(body, 10000), stall(r))
			}

			return body
		}

		started := time.Now()

		got, err := read(t.Context(), f.resolve(t))
		require.NoError(t, err)
		assert.Equal(t, disk(), got)
		assert.InDelta(t, time.Minute+time.Second, time.Since(started), float64(time.Second))

		require.Len(t, f.images(), 2)
		assert.Equal(t, "bytes=10000-", f.images()[1].Header.Get("Range"))
		assert.Equal(t, `"a"`, f.images()[1].Header.Get("If-Range"))
		assert.Equal(t, "identity", f.images()[1].Header.Get("Accept-Encoding"))
	})
}

func TestCutDownloadIsResumedAsOftenAsItGetsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		image := bytes.Repeat([]byte("0123456789abcdef"), 20<<16)
		f := &factory{image: image}
		f.body = func(_ *http.Request, body io.Reader) io.Reader {
			return io.MultiReader(io.LimitReader(body, 1<<20+1), failing{errors.New("connection reset")})
		}

		got, err := read(t.Context(), f.resolve(t))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(image, got))
		assert.Len(t, f.images(), 20)
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestDownloadThatGetsNowhereEnds(t *testing.T) {
	tests := map[string]struct {
		want string
		body func(*http.Request, io.Reader) io.Reader
	}{
		"stalls": {"no data for 1m0s", func(r *http.Request, body io.Reader) io.Reader {
			return io.MultiReader(io.LimitReader(body, 100), stall(r))
		}},
		"is cut": {"unexpected EOF", func(_ *http.Request, body io.Reader) io.Reader { return io.LimitReader(body, 100) }},
		"breaks": {"connection reset", func(*http.Request, io.Reader) io.Reader { return failing{errors.New("connection reset")} }},
	}

	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &factory{image: disk(), body: tt.body}
				started := time.Now()

				_, err := read(t.Context(), f.resolve(t))
				require.ErrorContains(t, err, tt.want)
				assert.Equal(t, driver.KindTransient, driver.KindOf(err))
				assert.Len(t, f.images(), 6)
				assert.Less(t, time.Since(started), 8*time.Minute)
			})
		})
	}
}

func TestResumedDownloadNeverMixesTwoFiles(t *testing.T) {
	cutFirst := func(r *http.Request, body io.Reader) io.Reader {
		if r.Header.Get("Range") == "" {
			return io.LimitReader(body, 100)
		}

		return body
	}

	tests := map[string]struct {
		change func(*factory) func(*http.Request) *answer
		want   string
	}{
		"another version": {want: "its file has changed", change: func(f *factory) func(*http.Request) *answer {
			return func(r *http.Request) *answer {
				if r.Header.Get("Range") != "" {
					f.etag = `"b"`
				}

				return nil
			}
		}},
		"another length": {want: `resumed with the range "bytes 100-49150/49151"`, change: func(f *factory) func(*http.Request) *answer {
			return func(r *http.Request) *answer {
				if r.Header.Get("Range") != "" {
					f.image = f.image[:len(f.image)-1]
				}

				return nil
			}
		}},
		"server without ranges": {want: "cannot resume at byte 100", change: func(*factory) func(*http.Request) *answer {
			return func(r *http.Request) *answer {
				r.Header.Del("Range")

				return nil
			}
		}},
		"range refused": {want: "cannot resume at byte 100", change: func(*factory) func(*http.Request) *answer {
			return func(r *http.Request) *answer {
				if r.Header.Get("Range") != "" {
					return &answer{http.StatusRequestedRangeNotSatisfiable, nil, ""}
				}

				return nil
			}
		}},
	}

	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &factory{image: disk(), etag: `"a"`, body: cutFirst}
				image := f.resolve(t)
				f.answer = tt.change(f)

				_, err := read(t.Context(), image)
				require.ErrorContains(t, err, tt.want)
				assert.Equal(t, driver.KindTransient, driver.KindOf(err))
				assert.Len(t, f.images(), 2)
			})
		})
	}
}

func TestLengthIsChecked(t *testing.T) {
	f := &factory{image: disk()}
	f.body = func(_ *http.Request, body io.Reader) io.Reader {
		return io.MultiReader(body, strings.NewReader("more"))
	}

	_, err := read(t.Context(), f.resolve(t))
	require.ErrorContains(t, err, "the server had announced 49152")

	f = &factory{image: disk(), unsized: true}

	got, err := read(t.Context(), f.resolve(t))
	require.NoError(t, err)
	assert.Equal(t, disk(), got)
}

func TestProgressNeverFallsAndEndsAtTheTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		packed, err := os.ReadFile("testdata/disk.raw.xz")
		require.NoError(t, err)

		f := &factory{image: packed}
		f.body = func(_ *http.Request, body io.Reader) io.Reader { return io.LimitReader(body, 300) }

		image, err := f.resolver(t, func(c *bootasset.Config) { c.RawExtension = "raw.xz" }).
			Resolve(t.Context(), request(nil), driver.ImageSpec{Platform: "nocloud"})
		require.NoError(t, err)

		opened, err := image.Open(t.Context())
		require.NoError(t, err)
		defer opened.Close()

		r, ok := opened.(*bootasset.Reader)
		require.True(t, ok)

		last := int64(0)

		for err == nil {
			_, err = r.Read(make([]byte, 700))
			fetched, total := r.Progress()
			assert.Equal(t, int64(len(packed)), total)
			assert.GreaterOrEqual(t, fetched, last)
			last = fetched
		}

		require.ErrorIs(t, err, io.EOF)
		assert.Equal(t, int64(len(packed)), last)
	})
}

func TestResumingHonoursRetryAfter(t *testing.T) {
	for _, tt := range []struct {
		after string
		ends  bool
	}{{"30", false}, {"600", true}} {
		synctest.Test(t, func(t *testing.T) {
			var resumed []time.Duration

			f := &factory{image: disk()}
			f.body = func(r *http.Request, body io.Reader) io.Reader {
				if r.Header.Get("Range") == "" {
					return io.LimitReader(body, 100)
				}

				return body
			}
			image := f.resolve(t)
			started := time.Now()
			f.answer = func(r *http.Request) *answer {
				if r.Header.Get("Range") == "" {
					return nil
				}

				resumed = append(resumed, time.Since(started))

				if len(resumed) > 1 {
					return nil
				}

				return &answer{http.StatusTooManyRequests, http.Header{"Retry-After": {tt.after}}, ""}
			}

			_, err := read(t.Context(), image)

			if tt.ends {
				// Too long to keep the cloud's side of the import waiting.
				assert.Equal(t, driver.KindTransient, driver.KindOf(err), "the cloud itself is not throttled")
				assert.Equal(t, 10*time.Minute, driver.PauseOf(err))
				assert.Len(t, resumed, 1)

				return
			}

			require.NoError(t, err)
			require.Len(t, resumed, 2)
			assert.GreaterOrEqual(t, resumed[1]-resumed[0], 30*time.Second)
		})
	}
}

func TestFactoryThatDoesNotAnswerIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &factory{image: disk()}
		image := f.resolve(t)
		f.answer = func(r *http.Request) *answer {
			<-r.Context().Done()

			return &answer{http.StatusGatewayTimeout, nil, ""}
		}

		started := time.Now()

		_, err := image.Open(t.Context())
		require.ErrorContains(t, err, "no answer within 15m0s")
		assert.Equal(t, 15*time.Minute, time.Since(started))
	})
}

func TestShutdownEndsADownloadAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &factory{image: disk()}
		f.body = func(r *http.Request, body io.Reader) io.Reader {
			return io.MultiReader(io.LimitReader(body, 100), stall(r))
		}

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)

		started := time.Now()

		_, err := read(ctx, f.resolve(t))
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 10*time.Second, time.Since(started))
		assert.Len(t, f.images(), 1)
	})
}

func TestSignedURLAfterARedirectIsNotShown(t *testing.T) {
	f := &factory{}
	image := f.resolve(t)

	f.answer = func(r *http.Request) *answer {
		return &answer{http.StatusFound, http.Header{"Location": {"https://storage.example.org/blob?signature=geheim"}}, ""}
	}

	_, err := image.Open(t.Context())
	require.ErrorContains(t, err, "stopped after 10 redirects")
	assert.NotContains(t, err.Error(), "geheim")
}
