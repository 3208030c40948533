package classdata

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v4"
)

// kind is a JSON schema type.
type kind string

const (
	boolean kind = "boolean"
	integer kind = "integer"
	number  kind = "number"
	text    kind = "string"
	list    kind = "array"
	section kind = "object"
)

// shape is what one value has to look like. It is all that decoding and the schema know about a Go type. A section with an item has
// any keys, and values of that shape.
type shape struct {
	kind   kind
	secret bool
	// scalars takes numbers and truth values as the text that they are written as.
	scalars  bool
	min, max *float64
	enum     []string
	pattern  *regexp.Regexp
	item     *shape
	fields   []field
}

// field is one key of a section.
type field struct {
	*shape

	name, title, doc string
	index            []int
	required         bool
	local            bool
	fallback         *yaml.Node
}

var textType = reflect.TypeFor[encoding.TextUnmarshaler]()

// shapes holds the *shape of each reflect.Type that was asked for. Nothing changes a shape once it is there.
var shapes sync.Map

// shapeOf describes a struct type. It panics on tags that contradict themselves, as they are constants of the program.
func shapeOf(t reflect.Type) *shape {
	if known, ok := shapes.Load(t); ok {
		return known.(*shape) //nolint:forcetypeassert // only shapes are stored
	}

	if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(textType) {
		panic(fmt.Sprintf("classdata: %s is not a struct", t))
	}

	s, err := typeShape(t, nil)
	if err != nil {
		panic("classdata: " + err.Error())
	}

	shapes.Store(t, s)

	return s
}

func typeShape(t reflect.Type, outer []reflect.Type) (*shape, error) {
	if slices.Contains(outer, t) {
		return nil, fmt.Errorf("%s contains itself", t)
	}

	outer = append(slices.Clone(outer), t)

	if reflect.PointerTo(t).Implements(textType) {
		return &shape{kind: text}, nil
	}

	switch t.Kind() {
	case reflect.Bool:
		return &shape{kind: boolean}, nil
	case reflect.Int, reflect.Int64:
		return &shape{kind: integer}, nil
	case reflect.Int8, reflect.Int16, reflect.Int32:
		bound := float64(uint64(1) << (t.Bits() - 1))

		return &shape{kind: integer, min: new(-bound), max: new(bound - 1)}, nil
	case reflect.Uint, reflect.Uint64:
		return &shape{kind: integer, min: new(0.0)}, nil
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return &shape{kind: integer, min: new(0.0), max: new(float64(uint64(1)<<t.Bits() - 1))}, nil
	case reflect.Float64:
		return &shape{kind: number}, nil
	case reflect.String:
		return &shape{kind: text}, nil
	case reflect.Slice:
		item, err := typeShape(t.Elem(), outer)

		return &shape{kind: list, item: item}, err
	case reflect.Struct:
		fields, err := structFields(t, outer)

		return &shape{kind: section, fields: fields}, err
	case reflect.Map:
		if t.Key().Kind() != reflect.String || t.Elem().Kind() != reflect.String {
			return nil, fmt.Errorf("%s: Omni's form cannot show a map; use a list of structs", t)
		}

		return &shape{kind: section, item: &shape{kind: text}}, nil
	default:
		return nil, fmt.Errorf("%s is not a type for class data", t)
	}
}

func structFields(t reflect.Type, outer []reflect.Type) ([]field, error) {
	var fields []field

	for _, sf := range reflect.VisibleFields(t) {
		name := sf.Tag.Get("json")

		switch {
		case sf.Anonymous && (name != "" || sf.Type.Kind() != reflect.Struct):
			return nil, fmt.Errorf("%s.%s: only a struct without a json tag can be embedded", t, sf.Name)
		case sf.Anonymous:
			continue
		case !sf.IsExported() || name == "-":
			continue
		}

		f, err := newField(sf, outer)
		if err != nil {
			return nil, fmt.Errorf("%s.%s: %w", t, sf.Name, err)
		}

		if slices.ContainsFunc(fields, func(other field) bool { return other.name == f.name }) {
			return nil, fmt.Errorf("%s.%s: key %q is taken by another field", t, sf.Name, f.name)
		}

		fields = append(fields, f)
	}

	return fields, nil
}

func newField(sf reflect.StructField, outer []reflect.Type) (field, error) {
	f := field{name: sf.Tag.Get("json"), title: sf.Tag.Get("title"), doc: sf.Tag.Get("doc"), index: sf.Index}

	if f.name == "" || strings.Contains(f.name, ",") {
		return f, fmt.Errorf("the json tag has to be the key and nothing else, got %q", f.name)
	}

	if f.doc == "" {
		return f, fmt.Errorf("the doc tag is missing")
	}

	t := sf.Type

	pointer := t.Kind() == reflect.Pointer
	if pointer {
		t = t.Elem()
	}

	var err error
	if f.shape, err = typeShape(t, outer); err != nil {
		return f, err
	}

	if err = f.constrain(sf.Tag); err != nil {
		return f, err
	}

	if err = f.protect(sf.Tag); err != nil {
		return f, err
	}

	fallback, hasDefault := sf.Tag.Lookup("default")

	switch required := sf.Tag.Get("required"); {
	case required != "" && required != "true":
		return f, fmt.Errorf(`the required tag is %q, want "true" or none`, required)
	case required != "" && hasDefault:
		return f, fmt.Errorf("a field is either required or has a default")
	case f.kind == section && hasDefault:
		return f, fmt.Errorf("a struct's defaults belong to its fields")
	default:
		f.required = required != "" || f.kind == section && !pointer && slices.ContainsFunc(f.fields, func(c field) bool { return c.required })
	}

	if hasDefault {
		f.fallback, err = f.defaultNode(fallback, t)
	}

	return f, err
}

// protect reads the tags that say where a value must not come from.
func (f *field) protect(tag reflect.StructTag) error {
	for key, to := range map[string]*bool{"secret": &f.secret, "local": &f.local} {
		given := tag.Get(key)
		if given != "" && given != "true" {
			return fmt.Errorf(`the %s tag is %q, want "true" or none`, key, given)
		}

		*to = given != ""
	}

	if f.secret && (f.kind == section && f.item == nil || f.kind == list && f.item.kind == section) {
		return errors.New("a struct cannot be a secret, which would protect none of its fields; tag those")
	}

	if f.item != nil {
		f.item.secret = f.secret
	}

	return nil
}

// constrain reads the tags that narrow down a value.
func (s *shape) constrain(tag reflect.StructTag) error {
	switch given := tag.Get("scalars"); {
	case given == "":
	case given != "true" || s.kind != section || s.item == nil:
		return fmt.Errorf(`the scalars tag is %q, want "true", of a map`, given)
	default:
		s.item.scalars = true
	}

	for key, bound := range map[string]**float64{"min": &s.min, "max": &s.max} {
		given := tag.Get(key)
		if given == "" {
			continue
		}

		if s.kind == boolean || s.kind == section && s.item == nil {
			return fmt.Errorf("a %s cannot have the tag %q", s.kind, key)
		}

		n, err := strconv.ParseFloat(given, 64)
		if err != nil {
			return fmt.Errorf("parse tag %s: %w", key, err)
		}

		*bound = &n
	}

	// A list or map has no values or pattern of its own: these tags are about its items.
	target := s
	if s.item != nil {
		target = s.item
	}

	if enum := tag.Get("enum"); enum != "" {
		if target.kind != text && target.kind != integer {
			return fmt.Errorf("a %s cannot have the tag %q", target.kind, "enum")
		}

		target.enum = strings.Split(enum, ",")
	}

	if pattern := tag.Get("pattern"); pattern != "" {
		if target.kind != text {
			return fmt.Errorf("a %s cannot have the tag %q", target.kind, "pattern")
		}

		if strings.Contains(pattern, "(?") {
			return fmt.Errorf("pattern %q: browsers do not know Go's (?...) groups", pattern)
		}

		var err error
		if target.pattern, err = regexp.Compile(pattern); err != nil {
			return fmt.Errorf("parse tag pattern: %w", err)
		}
	}

	return nil
}

// defaultNode parses a default and holds it to the field's own rules.
func (s *shape) defaultNode(value string, t reflect.Type) (*yaml.Node, error) {
	node := &yaml.Node{Kind: yaml.ScalarNode, Tag: stringTag, Value: value}

	var d decoder

	if s.kind != text {
		node = d.parse(value)
	}

	if node != nil {
		d.value("", node, s, reflect.New(t).Elem())
	}

	if len(d.problems) > 0 {
		return nil, fmt.Errorf("default %q: %w", value, d.problems)
	}

	return node, nil
}
