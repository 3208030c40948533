package runner

import (
	"encoding"
	"maps"
	"reflect"
	"slices"

	"go.yaml.in/yaml/v4"
)

// changes names the settings in which two differ, as the configuration file names them. It tells no value: one may be secret.
func changes[C any](p Program[C], before, after *settings[C]) []string {
	was, is := before.flatten(p), after.flatten(p)

	var names []string

	for _, name := range slices.Sorted(maps.Keys(is)) {
		if !reflect.DeepEqual(was[name], is[name]) {
			names = append(names, name)
		}
	}

	return names
}

// flatten returns the values of all settings by their path in the configuration file.
func (s *settings[C]) flatten(p Program[C]) map[string]any {
	values := map[string]any{}
	flatten(values, "", reflect.ValueOf(s.common))
	flatten(values, p.Name, reflect.ValueOf(s.config))

	return values
}

func flatten(into map[string]any, path string, value reflect.Value) {
	// A type that reads text is one value, whatever it consists of.
	if value.Kind() != reflect.Struct || reflect.PointerTo(value.Type()).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		into[path] = value.Interface()

		return
	}

	for _, field := range reflect.VisibleFields(value.Type()) {
		name := field.Tag.Get("json")
		if !field.IsExported() || field.Anonymous || name == "" || name == "-" {
			continue
		}

		if path != "" {
			name = path + "." + name
		}

		flatten(into, name, value.FieldByIndex(field.Index))
	}
}

// overridden names the settings in the text from Omni that a layer above it overrides with another value.
func (l *layers[C]) overridden(text string, inUse *settings[C]) []string {
	document, err := l.parseOmni(text)
	if text == "" || err != nil {
		return nil
	}

	alone := l.program.defaults()

	// What another layer has to add is missing here, and is nothing that Omni says.
	if err := alone.decode(l.program, document); err != nil {
		return nil
	}

	wanted, is := alone.flatten(l.program), inUse.flatten(l.program)

	return slices.DeleteFunc(leaves("", document), func(name string) bool { return reflect.DeepEqual(wanted[name], is[name]) })
}

// leaves returns the paths of all values in a document that are no mappings.
func leaves(path string, node *yaml.Node) []string {
	if node.Kind != yaml.MappingNode {
		return []string{path}
	}

	var all []string

	for i := 0; i+1 < len(node.Content); i += 2 {
		name := node.Content[i].Value
		if path != "" {
			name = path + "." + name
		}

		all = append(all, leaves(name, node.Content[i+1])...)
	}

	slices.Sort(all)

	return all
}
