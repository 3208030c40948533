package classdata

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// The YAML tags that a plain scalar can resolve to.
const (
	nullTag    = "!!null"
	boolTag    = "!!bool"
	intTag     = "!!int"
	floatTag   = "!!float"
	stringTag  = "!!str"
	mappingTag = "!!map"
	listTag    = "!!seq"
)

// decoder walks a document along a shape and notes all that is wrong with it. It looks only where the shape has something,
// so its work is bounded by the document's size.
type decoder struct {
	problems problems
	// part says that the document is one of several, public that others can read it.
	part, public bool
}

func (d *decoder) add(path string, line int, format string, args ...any) {
	d.problems = append(d.problems, problem{path: path, line: line, text: fmt.Sprintf(format, args...)})
}

// value decodes node into the settable value into.
func (d *decoder) value(path string, node *yaml.Node, s *shape, into reflect.Value) {
	if node.Kind == yaml.AliasNode || node.Anchor != "" {
		d.add(path, node.Line, "anchors and aliases are not supported; write the value out")

		return
	}

	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}

	switch {
	case s.kind == section && s.item != nil && node.Kind == yaml.MappingNode:
		d.mapping(path, node, s, into)
	case s.kind == section && node.Kind == yaml.MappingNode:
		d.section(path, node, s, into)
	case s.kind == list && node.Kind == yaml.SequenceNode:
		d.list(path, node, s, into)
	case s.kind != section && s.kind != list && node.Kind == yaml.ScalarNode:
		d.scalar(path, node, s, into)
	default:
		d.mismatch(path, node, s)
	}
}

func (d *decoder) section(path string, node *yaml.Node, s *shape, into reflect.Value) {
	lines := make(map[string]int, len(s.fields))
	values := make(map[string]*yaml.Node, len(s.fields))

	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]

		switch first, duplicate := lines[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			d.add(path, key.Line, "a key has to be a plain word, %s", s.knownKeys())
		case duplicate:
			d.add(join(path, key.Value), key.Line, "given twice, first on line %d", first)
		case !s.knows(key.Value):
			d.add(join(path, clip(key.Value)), key.Line, "unknown field; %s", s.suggest(key.Value))
		default:
			values[key.Value] = node.Content[i+1]
		}

		if key.Kind == yaml.ScalarNode {
			lines[key.Value] = key.Line
		}
	}

	// A line helps to find an item of a list, not the document.
	line := node.Line
	if path == "" {
		line = 0
	}

	for _, f := range s.fields {
		target := into.FieldByIndex(f.index)
		fieldPath := join(path, f.name)

		switch given := values[f.name]; {
		case given != nil && d.public && f.secret:
			d.add(fieldPath, given.Line, "this is a secret, which is not taken from here; put it into the provider's environment or configuration file")
		case given != nil && d.public && f.local:
			d.add(fieldPath, given.Line, "this is not taken from here; put it into the provider's environment or configuration file")
		case given != nil:
			d.value(fieldPath, given, f.shape, target)
		case d.part:
		case f.fallback != nil:
			d.value(fieldPath, f.fallback, f.shape, target)
		case f.kind == section && f.item == nil && target.Kind() != reflect.Pointer:
			d.section(fieldPath, &yaml.Node{Line: line}, f.shape, target)
		case f.required:
			d.add(fieldPath, line, "required, but not given; want %s", f.want())
		}
	}
}

func (d *decoder) mapping(path string, node *yaml.Node, s *shape, into reflect.Value) {
	if n := float64(len(node.Content) / 2); s.min != nil && n < *s.min || s.max != nil && n > *s.max {
		d.add(path, node.Line, "has %d keys; want %s", len(node.Content)/2, s.want())

		return
	}

	into.Set(reflect.MakeMapWithSize(into.Type(), len(node.Content)/2))

	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], reflect.New(into.Type().Elem()).Elem()
		name := reflect.ValueOf(key.Value).Convert(into.Type().Key())

		switch {
		case key.Kind != yaml.ScalarNode || key.ShortTag() != stringTag:
			d.add(path, key.Line, "got the key %s, want text; put it in quotes", (&shape{kind: text}).found(key))
		case into.MapIndex(name).IsValid():
			d.add(join(path, clip(key.Value)), key.Line, "given twice")
		default:
			d.value(join(path, clip(key.Value)), node.Content[i+1], s.item, value)
			into.SetMapIndex(name, value)
		}
	}
}

func (d *decoder) list(path string, node *yaml.Node, s *shape, into reflect.Value) {
	if n := float64(len(node.Content)); s.min != nil && n < *s.min || s.max != nil && n > *s.max {
		d.add(path, node.Line, "has %d items; want %s", len(node.Content), s.want())

		return
	}

	into.Set(reflect.MakeSlice(into.Type(), len(node.Content), len(node.Content)))

	for i, item := range node.Content {
		d.value(fmt.Sprintf("%s[%d]", path, i), item, s.item, into.Index(i))
	}
}

func (d *decoder) scalar(path string, node *yaml.Node, s *shape, into reflect.Value) {
	tag := node.ShortTag()

	switch {
	case s.kind == text && (tag == stringTag || s.scalars && (tag == intTag || tag == floatTag || tag == boolTag)):
		d.text(path, node, s, into)
	case s.kind == boolean && tag == boolTag:
		var b bool
		if err := node.Decode(&b); err != nil {
			d.mismatch(path, node, s)

			return
		}

		into.SetBool(b)
	case (s.kind == integer || s.kind == number) && (tag == intTag || tag == floatTag):
		d.number(path, node, s, into)
	default:
		d.mismatch(path, node, s)
	}
}

func (d *decoder) text(path string, node *yaml.Node, s *shape, into reflect.Value) {
	length := float64(utf8.RuneCountInString(node.Value))

	if s.min != nil && length < *s.min || s.max != nil && length > *s.max ||
		len(s.enum) > 0 && !slices.Contains(s.enum, node.Value) ||
		s.pattern != nil && !s.pattern.MatchString(node.Value) {
		d.mismatch(path, node, s)

		return
	}

	if u, ok := into.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if err := u.UnmarshalText([]byte(node.Value)); err != nil {
			if s.secret {
				d.add(path, node.Line, "not accepted; want %s", s.want())
			} else {
				d.add(path, node.Line, "got %q: %s", clip(node.Value), err)
			}
		}

		return
	}

	into.SetString(node.Value)
}

// number takes 2.0 for the integer 2, as JSON schema does.
func (d *decoder) number(path string, node *yaml.Node, s *shape, into reflect.Value) {
	var f float64
	if err := node.Decode(&f); err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		d.mismatch(path, node, s)

		return
	}

	if s.min != nil && f < *s.min || s.max != nil && f > *s.max {
		d.mismatch(path, node, s)

		return
	}

	fits := s.kind == number || f == math.Trunc(f)

	switch {
	case !fits:
	case into.CanFloat():
		into.SetFloat(f)
	case into.CanInt():
		fits = f >= -1<<63 && f < 1<<63
		into.SetInt(int64(f))

		if node.ShortTag() == intTag {
			var i int64
			fits = node.Decode(&i) == nil
			into.SetInt(i)
		}
	case into.CanUint():
		fits = f < 1<<64
		into.SetUint(uint64(f))

		if node.ShortTag() == intTag {
			var u uint64
			fits = node.Decode(&u) == nil
			into.SetUint(u)
		}
	}

	if !fits || len(s.enum) > 0 && !slices.Contains(s.enum, strconv.FormatFloat(f, 'f', -1, 64)) {
		d.mismatch(path, node, s)
	}
}

// mismatch notes a value that breaks the shape's rules, with what was found and what would be right.
func (d *decoder) mismatch(path string, node *yaml.Node, s *shape) {
	hint := ""

	switch tag := node.ShortTag(); {
	case node.Kind != yaml.ScalarNode:
	case s.kind == text && tag != stringTag && tag != nullTag:
		hint = "; put it in quotes"
	case s.kind != text && tag == stringTag && node.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		hint = "; write it without quotes"
	}

	d.add(path, node.Line, "got %s, want %s%s", s.found(node), s.want(), hint)
}

// found describes a node in words.
func (s *shape) found(node *yaml.Node) string {
	if s.secret {
		return "another value"
	}

	switch node.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
	}

	switch node.ShortTag() {
	case nullTag:
		return "nothing"
	case intTag, floatTag:
		return "the number " + clip(node.Value)
	case boolTag:
		return "the boolean " + clip(node.Value)
	case stringTag:
		return "the text " + strconv.Quote(clip(node.Value))
	default:
		return clip(node.ShortTag() + " " + node.Value)
	}
}

// clip bounds the length of a value in a message.
func clip(s string) string {
	const limit = 64

	if utf8.RuneCountInString(s) <= limit {
		return s
	}

	return string([]rune(s)[:limit]) + "…"
}

func join(path, key string) string {
	return strings.TrimPrefix(path+"."+key, ".")
}
