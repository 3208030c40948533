package classdata

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"

	"go.yaml.in/yaml/v4"
)

// Schema returns the JSON schema of T for the provider's status in Omni, where it checks machine classes and makes their form.
// The same T always gives the same bytes, and keys come in the order of T's fields.
//
// It names no draft and uses only keywords that mean the same in draft 7, which the form reads, and in 2020-12: no
// references, no combinations, and maps only where T has one.
//
// It panics when T's tags are wrong.
func Schema[T any](title string) string {
	doc := append(object{{"title", title}}, shapeOf(reflect.TypeFor[T]()).schema()...)

	compact, err := json.Marshal(doc)
	if err != nil {
		panic(fmt.Sprintf("classdata: encode the schema of %s: %s", reflect.TypeFor[T](), err))
	}

	var out bytes.Buffer
	if err = json.Indent(&out, compact, "", "  "); err != nil {
		panic(fmt.Sprintf("classdata: encode the schema of %s: %s", reflect.TypeFor[T](), err))
	}

	return out.String() + "\n"
}

func (s *shape) schema() object {
	o := object{{"type", s.kind}}

	switch s.kind {
	case text:
		o = o.bounds(s, "minLength", "maxLength")
	case list:
		o = append(o.bounds(s, "minItems", "maxItems"), member{"items", s.item.schema()})
	case section:
		if s.item != nil {
			o = append(o.bounds(s, "minProperties", "maxProperties"), member{"additionalProperties", s.item.schema()})
		} else {
			o = s.sectionSchema(o)
		}
	default:
		o = o.bounds(s, "minimum", "maximum")
	}

	if len(s.enum) > 0 {
		o = append(o, member{"enum", s.enumValues()})
	}

	if s.pattern != nil {
		o = append(o, member{"pattern", s.pattern.String()})
	}

	return o
}

func (s *shape) sectionSchema(o object) object {
	properties := object{}
	required := []string{}

	for _, f := range s.fields {
		property := object{}

		if f.title != "" {
			property = append(property, member{"title", f.title})
		}

		property = append(append(property, member{"description", f.doc}), f.schema()...)

		if f.fallback != nil {
			property = append(property, member{"default", jsonValue(f.fallback)})
		}

		properties = append(properties, member{f.name, property})

		if f.required {
			required = append(required, f.name)
		}
	}

	o = append(o, member{"properties", properties})

	if len(required) > 0 {
		o = append(o, member{"required", required})
	}

	return append(o, member{"additionalProperties", false})
}

func (s *shape) enumValues() []any {
	values := make([]any, len(s.enum))

	for i, e := range s.enum {
		values[i] = e

		if s.kind == integer {
			values[i] = json.Number(e)
		}
	}

	return values
}

// jsonValue turns a default, which has been checked, into what encoding/json takes.
func jsonValue(node *yaml.Node) any {
	var v any
	if err := node.Decode(&v); err != nil {
		panic("classdata: decode a default: " + err.Error())
	}

	return v
}

// object is a JSON object that keeps the order of its members.
type object []member

type member struct {
	key   string
	value any
}

func (o object) bounds(s *shape, lower, upper string) object {
	if s.min != nil {
		o = append(o, member{lower, json.Number(decimal(*s.min))})
	}

	if s.max != nil {
		o = append(o, member{upper, json.Number(decimal(*s.max))})
	}

	return o
}

// MarshalJSON writes the members in order.
func (o object) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}

	for i, m := range o {
		if i > 0 {
			out = append(out, ',')
		}

		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", strconv.Quote(m.key), err)
		}

		key, err := json.Marshal(m.key)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", strconv.Quote(m.key), err)
		}

		out = append(append(append(out, key...), ':'), value...)
	}

	return append(out, '}'), nil
}
