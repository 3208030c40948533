// Package factory is a simulated image factory: it takes schematics and serves images with the HTTP API of the real one, as far
// as Omni and infrastructure providers use it. Simulated clouds use it with images that are small and fake; package image builds
// ones that boot. cmd/image-factory-sim serves it.
package factory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"
	"sync"

	"github.com/siderolabs/image-factory/pkg/schematic"
)

// maxSchematic bounds what is read as a schematic.
const maxSchematic = 1 << 20

// ErrNoImage says that there is no such image, and never will be.
var ErrNoImage = errors.New("no such image")

// File is an image that is open for reading.
type File interface {
	io.ReadSeeker
	io.Closer
}

// Source has the images.
type Source interface {
	// Open returns an image from its start. An error that wraps ErrNoImage is answered with 404, any other with 500.
	Open(ctx context.Context, image Image) (File, error)
}

// Factory serves schematics and images. The zero value is ready, has the default versions and serves fake images. It is safe for
// concurrent use; exported fields are not changed once it serves.
type Factory struct {
	// Images is where images come from; nil means Fake images.
	Images Source
	// Versions are the Talos versions there are, with their "v"; nil means DefaultVersions.
	Versions []string
	// Log gets the errors that the client is not told; nil discards them.
	Log *slog.Logger

	mu         sync.Mutex
	schematics map[string]schematic.Schematic
	faults     Faults
	counts     Counts
}

// DefaultVersions are the Talos versions of a factory that names none.
var DefaultVersions = []string{"v1.11.5", "v1.12.4", "v1.13.4", "v1.13.5"}

// Counts are how many requests came, the refused ones included.
type Counts struct {
	// Schematics counts POST /schematics, Images the GETs of images by their path.
	Schematics int
	Images     map[string]int
}

// Counts returns a copy of the present counts.
func (f *Factory) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()

	return Counts{Schematics: f.counts.Schematics, Images: maps.Clone(f.counts.Images)}
}

// Add makes a schematic known without a request and returns its id.
func (f *Factory) Add(s schematic.Schematic) (string, error) {
	id, err := s.ID()
	if err != nil {
		return "", fmt.Errorf("add schematic: %w", err)
	}

	f.mu.Lock()
	defer f.mu.Unlock()

	if f.schematics == nil {
		f.schematics = map[string]schematic.Schematic{}
	}

	f.schematics[id] = s

	return id, nil
}

// Handler returns the handler of the factory's whole API. What it does not have is answered with 404.
func (f *Factory) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /versions", f.getVersions)
	mux.HandleFunc("POST /schematics", f.createSchematic)
	mux.HandleFunc("GET /schematics/{schematic}", f.getSchematic)
	mux.HandleFunc("GET /image/{schematic}/{version}/{name}", f.getImage)

	return mux
}

func (f *Factory) versions() []string {
	if f.Versions == nil {
		return DefaultVersions
	}

	return f.Versions
}

func (f *Factory) getVersions(w http.ResponseWriter, r *http.Request) {
	versions := f.versions()
	if r.URL.Query().Get("broken") == "true" {
		versions = []string{}
	}

	writeJSON(w, http.StatusOK, versions)
}

func (f *Factory) createSchematic(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.counts.Schematics++
	fault := f.faults.take(&f.faults.SchematicErrors)
	f.mu.Unlock()

	if fault.refuse(w) {
		return
	}

	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxSchematic))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)

		return
	}

	parsed, err := schematic.Unmarshal(data)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)

		return
	}

	normalized, err := parsed.Marshal()
	if err != nil {
		f.fail(w, r, err)

		return
	}

	id, err := f.Add(*parsed)
	if err != nil {
		f.fail(w, r, err)

		return
	}

	writeJSON(w, http.StatusCreated, map[string]string{"id": id, "schematic": string(normalized)})
}

func (f *Factory) getSchematic(w http.ResponseWriter, r *http.Request) {
	found, ok := f.find(r.PathValue("schematic"))
	if !ok {
		http.Error(w, "schematic not found", http.StatusNotFound)

		return
	}

	data, err := found.Marshal()
	if err != nil {
		f.fail(w, r, err)

		return
	}

	w.Header().Set("Content-Type", "application/yaml")
	w.Write(data) //nolint:errcheck // The client is gone.
}

// getImage also answers HEAD, for which net/http drops the body.
func (f *Factory) getImage(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()

	fault := outcome{}

	if r.Method == http.MethodGet {
		if f.counts.Images == nil {
			f.counts.Images = map[string]int{}
		}

		f.counts.Images[r.URL.Path]++
		fault = f.faults.take(&f.faults.ImageErrors)
	}

	f.mu.Unlock()

	if fault.refuse(w) {
		return
	}

	image, status, err := f.image(r)
	if err != nil {
		http.Error(w, err.Error(), status)

		return
	}

	file, err := f.source().Open(r.Context(), image)

	switch {
	case errors.Is(err, ErrNoImage):
		http.Error(w, err.Error(), http.StatusNotFound)

		return
	case err != nil:
		f.fail(w, r, err)

		return
	}

	defer file.Close() //nolint:errcheck // Only read from.

	size, err := file.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}

	if err != nil {
		f.fail(w, r, err)

		return
	}

	w.Header().Set("Content-Type", contentType(image.Name()))
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s"`, image.Name()))
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))

	if r.Method != http.MethodHead {
		fault.send(r.Context(), w, file, size)
	}
}

// image reads the path of an image request, and returns the status for one that is refused.
func (f *Factory) image(r *http.Request) (Image, int, error) {
	id := r.PathValue("schematic")

	found, ok := f.find(id)
	if !ok {
		return Image{}, http.StatusNotFound, fmt.Errorf("schematic ID %q not found", id)
	}

	version, ok := parseVersion(r.PathValue("version"))
	if !ok {
		return Image{}, http.StatusInternalServerError, errors.New("internal server error") // The real one does not tell either.
	}

	image, err := parseName(r.PathValue("name"))
	if err != nil {
		return Image{}, http.StatusBadRequest, fmt.Errorf("error parsing profile from path: %w", err)
	}

	if !slices.Contains(f.versions(), version) {
		return Image{}, http.StatusNotFound, fmt.Errorf("version %s is not available", version)
	}

	image.ID, image.Schematic, image.Version = id, found, version

	return image, 0, nil
}

// fail answers as the real factory does to what it does not expect: without saying what it was.
func (f *Factory) fail(w http.ResponseWriter, r *http.Request, err error) {
	if f.Log != nil {
		f.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}

	http.Error(w, "internal server error", http.StatusInternalServerError)
}

func (f *Factory) find(id string) (schematic.Schematic, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if found, ok := f.schematics[id]; ok {
		return found, true
	}

	// The schematic that customizes nothing is always there, as on the real factory, where everyone uses it.
	var vanilla schematic.Schematic
	if known, err := vanilla.ID(); err != nil || known != id {
		return vanilla, false
	}

	return vanilla, true
}

func (f *Factory) source() Source {
	if f.Images == nil {
		return Fake{}
	}

	return f.Images
}

func contentType(name string) string {
	switch extension := path.Ext(name); extension {
	case ".iso":
		return "application/x-iso9660-image"
	case ".xz":
		return "application/x-xz"
	case ".gz":
		return "application/gzip"
	case ".qcow2":
		return "application/x-qemu-disk"
	default:
		if known := mime.TypeByExtension(extension); known != "" {
			return known
		}

		return "application/octet-stream"
	}
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(value) //nolint:errcheck // The client is gone.
}
