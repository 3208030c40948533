package bootasset_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

func TestEveryPackingUnpacksToTheSameDisk(t *testing.T) {
	for _, extension := range []string{"raw.xz", "raw.zst", "raw.gz"} {
		t.Run(extension, func(t *testing.T) {
			packed, err := os.ReadFile("testdata/disk." + extension)
			require.NoError(t, err)

			open := func(data []byte) ([]byte, error) {
				f := &factory{image: data}

				image, err := f.resolver(t, func(c *bootasset.Config) { c.RawExtension = extension }).
					Resolve(t.Context(), request(nil), driver.ImageSpec{Platform: "nocloud"})
				require.NoError(t, err)

				return read(t.Context(), image)
			}

			got, err := open(packed)
			require.NoError(t, err)
			assert.Equal(t, disk(), got)

			for _, cut := range []int{0, 1, 11, 20, 136, 138, len(packed) / 2, len(packed) - 1} {
				_, err = open(packed[:cut])
				require.ErrorContains(t, err, "boot image "+base+"/image/", "cut to %d bytes", cut)
			}

			damaged := bytes.Clone(packed)
			damaged[len(damaged)/2] ^= 0xff

			_, err = open(damaged)
			require.Error(t, err)

			_, err = open([]byte("<html>please log in to the network</html>"))
			require.ErrorContains(t, err, "boot image "+base+"/image/")
			assert.Equal(t, driver.KindTransient, driver.KindOf(err))
		})
	}
}

func TestXZThatWouldFillTheMemoryIsRefused(t *testing.T) {
	packed, err := os.ReadFile("testdata/disk.raw.xz")
	require.NoError(t, err)

	// The block header has its size, flags, two sizes of one and two bytes, and the filter's id, length and dictionary.
	at := bytes.Index(packed, []byte{0x21, 0x01}) + 2
	packed[at] = 40

	f := &factory{image: packed}
	image, err := f.resolver(t, func(c *bootasset.Config) { c.RawExtension = "raw.xz" }).
		Resolve(t.Context(), request(nil), driver.ImageSpec{Platform: "nocloud"})
	require.NoError(t, err)

	_, err = image.Open(t.Context())
	require.ErrorContains(t, err, "needs a dictionary of 4095 MiB to unpack: at most 64 MiB are given")
	assert.Equal(t, driver.KindTerminal, driver.KindOf(err))
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
		{"throttled for a while", 429, http.Header{"Retry-After": {"20"}}, driver.KindThrottled, 20 * time.Second},
		{"throttled", 429, nil, driver.KindThrottled, 0},
		{"in maintenance", 503, http.Header{"Retry-After": {"120"}}, driver.KindThrottled, 2 * time.Minute},
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

func TestResumingHonoursRetryAfter(t *testing.T) {
	for _, tt := range []struct {
		after string
		kind  driver.Kind
	}{{"30", driver.KindTransient}, {"600", driver.KindThrottled}} {
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

			if tt.kind == driver.KindThrottled {
				// Too long to keep the cloud's side of the import waiting.
				assert.Equal(t, driver.KindThrottled, driver.KindOf(err))
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

// FuzzXZ feeds hostile files to the decoder of boot images.
func FuzzXZ(f *testing.F) {
	packed, err := os.ReadFile("testdata/disk.raw.xz")
	require.NoError(f, err)
	f.Add(packed)
	f.Add(packed[:30])

	f.Fuzz(func(t *testing.T, data []byte) {
		image, err := (&factory{image: data}).resolver(t, func(c *bootasset.Config) {
			c.RawExtension = "raw.xz"
			c.Schematics = fixed(plainSchematic)
		}).Resolve(t.Context(), request(nil), driver.ImageSpec{Platform: "nocloud"})
		require.NoError(t, err)

		r, err := image.Open(t.Context())
		if err != nil {
			return
		}
		defer r.Close()

		_, err = io.Copy(io.Discard, io.LimitReader(r, 1<<20))
		if err == nil {
			require.True(t, bytes.HasPrefix(data, []byte("\xfd7zXZ\x00")))
		}
	})
}
