package bootasset

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/blang/semver/v4"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// NormalizeVersion returns a Talos version in the form "v1.13.5", with or without the "v" given. Anything else is a Terminal
// error.
func NormalizeVersion(version string) (string, error) {
	parsed, err := semver.ParseTolerant(version)
	if err != nil || len(parsed.Build) > 0 {
		return "", driver.Terminalf("talos version %q is not valid: want a version like v1.13.5", version)
	}

	return "v" + parsed.String(), nil
}

var platform = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// complete checks a spec and fills in its defaults.
func complete(spec driver.ImageSpec) (driver.ImageSpec, error) {
	spec.Arch = withDefault(spec.Arch, driver.AMD64)
	spec.Format = withDefault(spec.Format, "raw")

	switch {
	case !platform.MatchString(spec.Platform):
		return spec, driver.Terminalf("image platform %q is not valid: want Talos' name of the cloud, like nocloud", spec.Platform)
	case spec.Arch != driver.AMD64 && spec.Arch != driver.ARM64:
		return spec, driver.Terminalf("image architecture %q is not valid: want %s or %s", spec.Arch, driver.AMD64, driver.ARM64)
	case !slices.Contains([]string{"raw", "qcow2"}, spec.Format):
		return spec, driver.Terminalf("image format %q is not valid: want raw or qcow2", spec.Format)
	default:
		return spec, nil
	}
}

// image implements driver.Image.
type image struct {
	spec      driver.ImageSpec
	version   string
	schematic string
	factory   *url.URL
	extension string
	source    source
	forget    func()
}

// flavour is the file's name without extension, as the factory spells it.
func (i *image) flavour() string {
	name := i.spec.Platform + "-" + string(i.spec.Arch)
	if i.spec.SecureBoot {
		name += "-secureboot"
	}

	return name
}

// Key has the factory in it as well, as a short digest: two factories may build the same schematic from different sources.
func (i *image) Key() string {
	factory := sha256.Sum256([]byte(i.factory.String()))

	return fmt.Sprintf("talos-%s-%s-%s-%x.%s", i.version, i.flavour(), i.schematic, factory[:4], i.spec.Format)
}

func (i *image) URL() string {
	return i.factory.JoinPath("image", i.schematic, i.version, i.flavour()+"."+i.extension).String()
}

// String names the image in messages.
func (i *image) String() string { return i.URL() }

// Open returns a *Reader.
func (i *image) Open(ctx context.Context) (io.ReadCloser, error) {
	download, err := i.source.open(ctx, i.URL())
	if err != nil {
		if notFound(err) {
			// A factory that lost its schematics is told them again.
			i.forget()

			err = driver.Terminalf("the image factory has no Talos %s for %s with this request's extensions and overlay: %w", i.version, i.flavour(), err)
		}

		return nil, fmt.Errorf("fetch boot image: %w", err)
	}

	_, compression, _ := strings.Cut(i.extension, ".")

	decoded, err := decoders[compression](download)
	if err != nil {
		download.end()

		return nil, fmt.Errorf("decode boot image %s: %w", i.URL(), err)
	}

	return &Reader{url: i.URL(), download: download, decoded: decoded}, nil
}

// Reader delivers the decoded bytes of an image. Only Progress may be called while another goroutine reads.
type Reader struct {
	url      string
	download *download
	decoded  io.ReadCloser
	started  bool
}

// Read reads decoded bytes. It resumes a download that was cut, and fails when the factory stalls.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.decoded.Read(p)
	r.started = r.started || n > 0

	switch {
	case atEnd(err) && !r.started:
		err = fmt.Errorf("fetch boot image %s: it is empty", r.url)
	case err != nil && !atEnd(err):
		err = fmt.Errorf("fetch boot image %s: %w", r.url, err)
	}

	return n, err
}

// Progress returns how many bytes have been fetched, before decoding, and how many there are in all, -1 when the factory does
// not say. The first number never falls and ends at the second.
func (r *Reader) Progress() (fetched, total int64) {
	return r.download.offset.Load(), r.download.size.Load()
}

// Close ends the download.
func (r *Reader) Close() error {
	r.download.end()

	return r.decoded.Close()
}
