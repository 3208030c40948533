package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Kind is a kind of object that the provider makes.
type Kind string

// The kinds.
const (
	KindInstance   Kind = "instance"
	KindDisk       Kind = "disk"
	KindFloatingIP Kind = "floating-ip"
	KindImage      Kind = "image"
	// KindScratch is the disk, and the snapshot, of one attempt to import an image.
	KindScratch Kind = "scratch"
)

// markPrefix begins the description of every object that has a mark. Objects that exist carry it: it never changes.
const markPrefix = "omni-infra.dev/1 "

// maxMark is how long a description may be.
const maxMark = 512

// Mark is the ownership mark: the description that an object gets with the call that makes it. A mark alone is not enough, as a
// description can be copied: an object is ours when it also has the name that goes with the mark.
type Mark struct {
	Kind     Kind   `json:"kind"`
	Provider string `json:"provider"`
	// Request is the machine request, for an image's scratch the one for which it was imported. An image has none.
	Request string `json:"request,omitempty"`
	// Image is the key of the image, and Attempt tells apart the attempts to import it.
	Image   string `json:"image,omitempty"`
	Attempt string `json:"attempt,omitempty"`
	// Version is that of the provider that made the object.
	Version string `json:"version"`
}

// Ref is the request whose object it is.
func (m Mark) Ref() driver.Ref { return driver.Ref{ProviderID: m.Provider, RequestID: m.Request} }

// Description is the mark as the rack keeps it.
func (m Mark) Description() (string, error) {
	var out bytes.Buffer

	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)

	if err := encoder.Encode(m); err != nil {
		return "", fmt.Errorf("encode the mark of %s: %w", m.Ref(), err)
	}

	text := markPrefix + strings.TrimSpace(out.String())
	if len(text) > maxMark {
		return "", fmt.Errorf("the mark of %s has %d bytes, and a description holds %d: want a shorter request id", m.Ref(), len(text), maxMark)
	}

	return text, nil
}

var errNoMark = errors.New("the description is not a mark")

// ParseMark reads a description. Anything that Description would not have written is no mark.
func ParseMark(description string) (Mark, error) {
	text, ok := strings.CutPrefix(description, markPrefix)
	if !ok || len(description) > maxMark {
		return Mark{}, errNoMark
	}

	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()

	var m Mark
	if err := decoder.Decode(&m); err != nil {
		return Mark{}, fmt.Errorf("read the ownership mark: %w", err)
	}

	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Mark{}, errNoMark
	}

	if again, err := m.Description(); err != nil || again != description {
		return Mark{}, errNoMark
	}

	return m, m.check()
}

// check says whether the mark is whole.
func (m Mark) check() error {
	image := m.Kind == KindImage || m.Kind == KindScratch

	switch {
	case m.Provider == "":
		return errors.New("the ownership mark names no provider")
	case image != (m.Image != ""), (m.Kind == KindScratch) != (m.Attempt != ""), (m.Kind == KindImage) != (m.Request == ""):
		return fmt.Errorf("the ownership mark is not one of kind %q", m.Kind)
	default:
		return nil
	}
}

// Owner tells whose an object of a kind is, by its name and its description. A false ours says that it is not the provider's. One that has
// its mark, but not the name that goes with it, has an empty request: somebody has copied the mark, or renamed the object.
func Owner(providerID string, kind Kind, name, description string) (ref driver.Ref, ours bool) {
	m, err := ParseMark(description)
	if err != nil || m.Provider != providerID || m.Kind != kind {
		return driver.Ref{}, false
	}

	if !NamesOf(m.Ref()).Owns(kind, name) {
		return driver.Ref{ProviderID: providerID}, true
	}

	return m.Ref(), true
}
