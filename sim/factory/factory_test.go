package factory_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/siderolabs/image-factory/pkg/client"
	"github.com/siderolabs/image-factory/pkg/schematic"
	"github.com/stretchr/testify/require"
	"github.com/ulikunitz/xz"

	"github.com/omni-infra/omni-infra-providers/sim/factory"
)

const vanilla = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"

func httpClient(f *factory.Factory) *http.Client {
	return &http.Client{Transport: factory.Transport{Handler: f.Handler()}}
}

// request sends a request and returns the answer with its body still to be read.
func request(ctx context.Context, t *testing.T, f *factory.Factory, method, path, body string) *http.Response {
	t.Helper()

	r, err := http.NewRequestWithContext(ctx, method, "http://factory.example"+path, strings.NewReader(body))
	require.NoError(t, err)

	response, err := httpClient(f).Do(r)
	require.NoError(t, err)

	return response
}

// answer is a response that was read to its end.
type answer struct {
	status int
	header http.Header
	length int64
	body   []byte
}

func get(t *testing.T, f *factory.Factory, method, path string) answer {
	t.Helper()

	return send(t, f, method, path, "")
}

func send(t *testing.T, f *factory.Factory, method, path, content string) answer {
	t.Helper()

	response := request(t.Context(), t, f, method, path, content)

	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())

	return answer{response.StatusCode, response.Header, response.ContentLength, body}
}

func TestTheRealFactorysClientWorks(t *testing.T) {
	f := &factory.Factory{}

	c, err := client.New("http://factory.example", client.WithClient(*httpClient(f)))
	require.NoError(t, err)

	wanted := schematic.Schematic{Customization: schematic.Customization{
		ExtraKernelArgs:  []string{"console=ttyS0"},
		SystemExtensions: schematic.SystemExtensions{OfficialExtensions: []string{"siderolabs/qemu-guest-agent"}},
	}}

	id, normalized, err := c.SchematicCreate(t.Context(), wanted)
	require.NoError(t, err)

	want, err := wanted.ID()
	require.NoError(t, err)
	require.Equal(t, want, id)
	require.Equal(t, &wanted, normalized)

	got, err := c.SchematicGet(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, &wanted, got)

	versions, err := c.Versions(t.Context())
	require.NoError(t, err)
	require.Equal(t, factory.DefaultVersions, versions)

	broken, err := c.BrokenVersions(t.Context())
	require.NoError(t, err)
	require.Empty(t, broken)

	_, err = c.SchematicGet(t.Context(), strings.Repeat("0", 64))
	require.True(t, client.IsHTTPErrorCode(err, http.StatusNotFound), "%v", err)
}

func TestSchematicWithUnknownKeyIsRefused(t *testing.T) {
	f := &factory.Factory{}

	got := send(t, f, http.MethodPost, "/schematics", "customisation: {}\n")
	require.Equal(t, http.StatusBadRequest, got.status)
	require.Contains(t, string(got.body), "customisation")
	require.Equal(t, 1, f.Counts().Schematics)
}

func TestWhatThereIsNoImageOfIsRefusedAsByTheRealFactory(t *testing.T) {
	f := &factory.Factory{}

	for path, want := range map[string]struct {
		status int
		text   string
	}{
		"/image/" + strings.Repeat("0", 64) + "/v1.13.5/nocloud-amd64.raw.xz": {404, `schematic ID "0000000000000000000000000000000000000000000000000000000000000000" not found`},
		"/image/" + vanilla + "/v1.99.0/nocloud-amd64.raw.xz":                 {404, "version v1.99.0 is not available"},
		"/image/" + vanilla + "/latest/nocloud-amd64.raw.xz":                  {500, "internal server error"},
		"/image/" + vanilla + "/v1.13.5/nocloud-riscv64.raw.xz":               {400, `error parsing profile from path: invalid architecture: "riscv64"`},
		"/image/" + vanilla + "/v1.13.5/nocloud.raw.xz":                       {400, `error parsing profile from path: invalid platform-arch: "nocloud"`},
		"/image/" + vanilla + "/v1.13.5/nocloud-amd64.vmdk":                   {400, `error parsing profile from path: invalid profile path: "nocloud-amd64.vmdk"`},
		"/pxe/" + vanilla: {404, "404 page not found"},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			got := get(t, f, method, path)
			require.Equal(t, want.status, got.status, path)

			if method == http.MethodGet {
				require.Equal(t, want.text, strings.TrimSpace(string(got.body)), path)
			}
		}
	}
}

func unpack(t *testing.T, format string, data []byte) []byte {
	t.Helper()

	var (
		reader io.Reader = bytes.NewReader(data)
		err    error
	)

	switch format {
	case "raw.gz":
		reader, err = gzip.NewReader(reader)
	case "raw.xz":
		reader, err = xz.NewReader(reader)
	case "raw.zst":
		reader, err = zstd.NewReader(reader)
	}

	require.NoError(t, err)

	disk, err := io.ReadAll(reader)
	require.NoError(t, err)

	return disk
}

func TestEveryFormatOfAFakeImageHoldsTheDiskThatWasAskedFor(t *testing.T) {
	f := &factory.Factory{Images: factory.Fake{Size: 100_000}}

	for _, format := range factory.Formats {
		for _, name := range []string{"nocloud-amd64", "metal-arm64-secureboot", "digital-ocean-amd64"} {
			path := "/image/" + vanilla + "/1.13.5/" + name + "." + format

			head := get(t, f, http.MethodHead, path)
			require.Equal(t, http.StatusOK, head.status, path)
			require.Empty(t, head.body)

			got := get(t, f, http.MethodGet, path)
			require.Equal(t, http.StatusOK, got.status, path)
			require.Equal(t, int64(len(got.body)), got.length)
			require.Equal(t, int64(len(got.body)), head.length)
			require.Contains(t, got.header.Get("Content-Disposition"), name+"."+format)

			disk := unpack(t, format, got.body)
			platform, arch, _ := strings.Cut(strings.TrimSuffix(strings.Replace(name, "digital-ocean", "digital_ocean", 1), "-secureboot"), "-")
			label := []byte(factory.FakeLabel(factory.Image{
				ID: vanilla, Version: "v1.13.5", Arch: arch, Platform: strings.Replace(platform, "_", "-", 1),
				SecureBoot: strings.HasSuffix(name, "-secureboot"),
			}))

			if format == "qcow2" {
				require.True(t, bytes.HasPrefix(disk, []byte("QFI\xfb")))
				require.True(t, bytes.Contains(disk, label))
			} else {
				require.Len(t, disk, 100_352, "rounded up to whole sectors")
				require.True(t, bytes.HasPrefix(disk, label), path)
			}

			require.Equal(t, 1, f.Counts().Images[path], "HEAD does not count")
		}
	}
}

const image = "/image/" + vanilla + "/v1.13.5/nocloud-amd64.raw"

func TestFaultsHappenAsOftenAsTheySayAndNoMore(t *testing.T) {
	f := &factory.Factory{}
	f.SetFaults(factory.Faults{ImageErrors: 2, Throttled: 1, RetryAfter: 1500 * time.Millisecond})

	var statuses []int

	for range 4 {
		got := get(t, f, http.MethodGet, image)
		statuses = append(statuses, got.status)

		if got.status == http.StatusTooManyRequests {
			require.Equal(t, "2", got.header.Get("Retry-After"))
		}
	}

	require.Equal(t, []int{500, 500, 429, 200}, statuses)
	require.Equal(t, 4, f.Counts().Images[image])

	f.SetFaults(factory.Faults{SchematicErrors: 1})

	c, err := client.New("http://factory.example", client.WithClient(*httpClient(f)))
	require.NoError(t, err)

	_, _, err = c.SchematicCreate(t.Context(), schematic.Schematic{})
	require.True(t, client.IsHTTPErrorCode(err, http.StatusInternalServerError), "%v", err)

	_, _, err = c.SchematicCreate(t.Context(), schematic.Schematic{})
	require.NoError(t, err)
}

func TestSlowImageTakesItsTimeAndComesWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &factory.Factory{Images: factory.Fake{Size: 300 << 16}}
		f.SetFaults(factory.Faults{BytesPerSecond: 1 << 16})

		began := time.Now()
		require.Len(t, get(t, f, http.MethodGet, image).body, 300<<16)
		require.Equal(t, 5*time.Minute, time.Since(began).Round(time.Second))
	})
}

func TestStalledImageStopsInTheMiddleUntilTheClientGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &factory.Factory{}
		f.SetFaults(factory.Faults{Stall: 1})

		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()

		began := time.Now()
		response := request(ctx, t, f, http.MethodGet, image, "")

		body, err := io.ReadAll(response.Body)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Len(t, body, 1<<19)
		require.Equal(t, time.Hour, time.Since(began))
		require.NoError(t, response.Body.Close())

		require.Len(t, get(t, f, http.MethodGet, image).body, 1<<20)
	})
}

func TestCutImageEndsEarlyWithAnError(t *testing.T) {
	f := &factory.Factory{}
	f.SetFaults(factory.Faults{Cut: 1})

	response := request(t.Context(), t, f, http.MethodGet, image, "")
	require.Equal(t, int64(1<<20), response.ContentLength)

	body, err := io.ReadAll(response.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Len(t, body, 1<<19)
	require.NoError(t, response.Body.Close())
}

func TestClosingTheBodyEndsTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &factory.Factory{}
		f.SetFaults(factory.Faults{Stall: 1})

		response := request(context.WithoutCancel(t.Context()), t, f, http.MethodGet, image, "")
		_, err := io.CopyN(io.Discard, response.Body, 1<<19)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		// The bubble ends only once the handler's goroutine has.
	})
}

type brokenSource struct{ err error }

func (s brokenSource) Open(context.Context, factory.Image) (factory.File, error) { return nil, s.err }

func TestSourceThatFailsIsNotTheClientsBusiness(t *testing.T) {
	got := get(t, &factory.Factory{Images: brokenSource{errors.New("disk /dev/x is full")}}, http.MethodGet, image)
	require.Equal(t, http.StatusInternalServerError, got.status)
	require.NotContains(t, string(got.body), "/dev/x")

	got = get(t, &factory.Factory{Images: brokenSource{factory.ErrNoImage}}, http.MethodGet, image)
	require.Equal(t, http.StatusNotFound, got.status)
}

func FuzzImagePaths(f *testing.F) {
	f.Add("v1.13.5", "nocloud-amd64-secureboot.raw.xz")
	f.Add("1.13.5", "digital-ocean-arm64.qcow2")

	server := &factory.Factory{Images: factory.Fake{Size: 512}}

	f.Fuzz(func(t *testing.T, version, name string) {
		if strings.ContainsAny(version+name, "/?#%") || !printable(version) || !printable(name) || slices.Contains([]string{"", ".", ".."}, version) || slices.Contains([]string{"", ".", ".."}, name) {
			return
		}

		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://f/image/"+vanilla+"/"+version+"/"+name, nil)
		if err != nil {
			return
		}

		response, err := httpClient(server).Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())

		if response.StatusCode == http.StatusOK {
			require.Regexp(t, `-(amd64|arm64)(-secureboot)?\.(raw|raw\.gz|raw\.xz|raw\.zst|qcow2|iso)$`, name)
		}
	})
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}
