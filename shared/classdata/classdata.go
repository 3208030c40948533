// Package classdata reads the provider data of a machine class into a Go struct and derives the JSON schema of that struct
// which Omni shows as a form. Providers use it; both sides come from the same struct tags, so they cannot drift apart.
//
// A field of class data is an exported Go field with these tags:
//
//	json      its key; every exported field has one ("-" leaves the field out)
//	doc       what it means, with the unit, shown in the form; required
//	title     its heading in the form; optional
//	default   its value when absent, as text for a string and as YAML for everything else
//	required  "true" when it has to be given; a field with neither this nor a default is optional
//	min, max  the bounds of a number, of a string's length in characters, or of a list's length; both inclusive
//	enum      the values it may take, separated by commas; of a list, its items' values
//	pattern   a regular expression that a string has to match; of a list, that its items have to match
//	scalars   "true" for a map whose values may be numbers and truth values too, which are text as they are written
//	secret    "true" when no error may quote the value; see CheckPart
//	local     "true" when the value makes sense on the provider's own host alone; see CheckPart
//
// Fields are booleans, integers, floats, strings, types with UnmarshalText, structs, and lists of these. A pointer is nil when
// its key is absent. Embedded structs add their fields to the struct around them. Omni's form cannot show maps, for which lists of
// structs stand; only a map of strings is taken, for classes that another program's users have, with min and max for the number of
// its keys, and enum and pattern for its values. A struct with a required field is itself required unless it is a pointer.
package classdata

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// MaxSize is the largest document that Decode reads, in bytes.
const MaxSize = 64 << 10

// Validator is implemented by class data that has rules across fields. Validate is called after every field's own rules hold;
// its error, or each error it joins, names the field and says what would be right.
type Validator interface {
	Validate() error
}

// Decode reads class data, one YAML or JSON document, into T and fills in the defaults. An empty document stands for one
// without any key.
//
// What is wrong is reported all at once, as one Terminal error that names each field by its path ("disks[1].size"), says what
// was found and what would be right, and gives the line. Unknown keys are errors. Whatever the schema of T refuses, Decode
// refuses too.
//
// It panics when T's own tags are wrong, which any test that decodes T shows.
func Decode[T any](data string) (T, error) { return DecodeAs[T]("class data", data) }

// DecodeAs is Decode for another kind of document, such as a configuration file; errors call it what.
func DecodeAs[T any](what, data string) (T, error) {
	var value, zero T

	root := shapeOf(reflect.TypeFor[T]())

	var d decoder

	if doc := d.parse(data); doc != nil {
		d.value("", doc, root, reflect.ValueOf(&value).Elem())
	}

	if len(d.problems) == 0 {
		d.validate(&value)
	}

	if len(d.problems) > 0 {
		slices.SortStableFunc(d.problems, func(a, b problem) int { return a.line - b.line })

		return zero, driver.Terminalf("invalid %s: %w", what, d.problems)
	}

	return value, nil
}

// CheckPart checks a document that is one of several that make up a T: it may leave out what is required, and no rule across
// fields is looked at. A public part comes from a place that others can read, which what says: a field with the tag secret or
// local is refused there.
func CheckPart[T any](what, data string, public bool) error {
	var value T

	d := decoder{part: true, public: public}

	if doc := d.parse(data); doc != nil {
		d.value("", doc, shapeOf(reflect.TypeFor[T]()), reflect.ValueOf(&value).Elem())
	}

	if len(d.problems) == 0 {
		return nil
	}

	return driver.Terminalf("invalid %s: %w", what, d.problems)
}

// parse returns the root of the only document in data, or nil after noting what is wrong.
func (d *decoder) parse(data string) *yaml.Node {
	if len(data) > MaxSize {
		d.add("", 0, "the document has %d bytes; at most %d are read", len(data), MaxSize)

		return nil
	}

	text := []byte(data)

	// JSON may be indented with tabs, YAML may not. In valid JSON a tab is never part of a value.
	if json.Valid(text) {
		text = bytes.ReplaceAll(text, []byte("\t"), []byte(" "))
	}

	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err != nil {
		d.add("", 0, "not valid YAML: %s", err)

		return nil
	}

	var doc, next yaml.Node

	switch err = loader.Load(&doc); {
	case errors.Is(err, io.EOF):
		return &yaml.Node{Kind: yaml.MappingNode}
	case err != nil:
		d.add("", 0, "not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))

		return nil
	}

	if err = loader.Load(&next); !errors.Is(err, io.EOF) {
		d.add("", next.Line, "the data holds more than one document; give one")

		return nil
	}

	root := doc.Content[0]
	if root.ShortTag() == nullTag && root.Kind == yaml.ScalarNode {
		return &yaml.Node{Kind: yaml.MappingNode}
	}

	return root
}

func (d *decoder) validate(value any) {
	v, ok := value.(Validator)
	if !ok {
		return
	}

	err := v.Validate()
	if err == nil {
		return
	}

	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			d.add("", 0, "%s", e)
		}

		return
	}

	d.add("", 0, "%s", err)
}

// maxProblems bounds the length of an error.
const maxProblems = 20

// problem is one thing that is wrong with class data.
type problem struct {
	path string
	line int
	text string
}

// problems is the error that Decode wraps.
type problems []problem

func (p problems) Error() string {
	var b strings.Builder

	for i, one := range p {
		if i == maxProblems {
			fmt.Fprintf(&b, "; and %d more", len(p)-i)

			break
		}

		if i > 0 {
			b.WriteString("; ")
		}

		if one.path != "" {
			b.WriteString(one.path + ": ")
		}

		b.WriteString(one.text)

		if one.line > 0 {
			fmt.Fprintf(&b, " (line %d)", one.line)
		}
	}

	return b.String()
}
