package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"go.yaml.in/yaml/v4"
)

var classSchemaCases = []testCase{
	{
		id: "CD-05", name: "class-data/nearest-field",
		rule: "A misspelt field is refused with the name of the field that was meant.",
		run: func(e *env) {
			for _, name := range e.misspellable() {
				e.refusesData(e.dataWith(misspelt(name), 1), name)
			}
		},
	},
	{
		id: "CD-06", name: "class-data/empty",
		rule: "Empty class data is a machine of default values, or is refused with the name of a required field.",
		run: func(e *env) {
			if required := e.required(); len(required) > 0 {
				e.refusesData("", required[0])
				e.refusesData("{}", required[0])

				return
			}

			e.requestFrom(e.provider, "r-1", "")
			e.awaitJoined("r-1")
		},
	},
	{
		id: "CD-07", name: "class-data/missing-field",
		rule: "Class data without a required field is refused, with the field's name in the request's status, before anything is made.",
		run: func(e *env) {
			for _, name := range e.required() {
				data := e.good()
				delete(data, name)
				e.refusesData(text(data), name)
			}
		},
	},
	{
		id: "CD-08", name: "class-data/corrected",
		rule: "A request that was refused may be made again with better class data, under the same id.",
		run: func(e *env) {
			e.refusesData(e.dataWith("no_such_field", 1), "no_such_field")
			e.request("r-bad")
			e.awaitJoined("r-bad")
			equal(e, "error of the good request", "", e.status("r-bad").GetError())
		},
	},
	{
		id: "CD-09", name: "class-data/schema",
		rule: "The published schema is a JSON schema that takes good class data and its own default values, and that Omni can draw a form of.",
		run: func(e *env) {
			e.valid("the good class data", e.good())

			defaults := e.good()
			for name, property := range e.properties() {
				if value, ok := property.(map[string]any)["default"]; ok {
					defaults[name] = value
				}
			}

			e.valid("the default values", defaults)
			e.drawable("", e.published())
		},
	},
}

// published returns the JSON schema that the provider has published.
func (e *env) published() (document map[string]any) {
	e.await("the provider publishes a JSON schema", func() (string, bool) {
		for _, status := range list[*infra.ProviderStatus](e) {
			if status.Metadata().ID() == e.provider {
				err := json.Unmarshal([]byte(status.TypedSpec().Value.Schema), &document)

				return fmt.Sprint(err), err == nil && len(document) > 0
			}
		}

		return "no status of the provider", false
	})

	return document
}

// properties returns the properties of the schema.
func (e *env) properties() map[string]any {
	properties, ok := e.published()["properties"].(map[string]any)
	if !ok {
		e.fail("the schema has properties", "%v", e.published())
	}

	return properties
}

// required returns the names of the required properties.
func (e *env) required() (names []string) {
	all, _ := e.published()["required"].([]any)

	for _, name := range all {
		names = append(names, fmt.Sprint(name))
	}

	return names
}

// misspellable returns up to three properties whose names are long enough to be recognised.
func (e *env) misspellable() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(e.properties())) {
		if len(name) > 3 && len(names) < 3 && misspelt(name) != name {
			names = append(names, name)
		}
	}

	return names
}

// misspelt returns the name with its third and fourth letters changed over.
func misspelt(name string) string { return name[:2] + name[3:4] + name[2:3] + name[4:] }

// good returns good class data.
func (e *env) good() map[string]any {
	data := map[string]any{}
	if err := yaml.Unmarshal([]byte(e.data), &data); err != nil {
		panic(fmt.Errorf("read the good class data: %w", err))
	}

	return data
}

// dataWith returns good class data with one more field.
func (e *env) dataWith(field string, value any) string {
	data := e.good()
	data[field] = value

	return text(data)
}

func text(data map[string]any) string {
	raw, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}

	return string(raw)
}

// valid ends the case unless the schema takes the class data.
func (e *env) valid(what string, data map[string]any) {
	compiler := jsonschema.NewCompiler()

	document, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(text(e.published()))))
	if err == nil {
		err = compiler.AddResource("class-data.json", document)
	}

	if err != nil {
		e.fail("a JSON schema", "%v", err)
	}

	compiled, err := compiler.Compile("class-data.json")
	if err != nil {
		e.fail("a JSON schema", "%v", err)
	}

	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(text(data))))
	if err != nil {
		panic(err)
	}

	if err := compiled.Validate(instance); err != nil {
		e.fail("the schema takes "+what, "%v", err)
	}
}

// drawable ends the case when a part of the schema is an object whose fields have no names: Omni has no form for that. A map of strings
// to strings is let pass, since classes that users have may hold one, which its form leaves out.
func (e *env) drawable(path string, part map[string]any) {
	properties, named := part["properties"].(map[string]any)
	free, open := part["additionalProperties"].(map[string]any)

	switch {
	case open && (named || free["type"] != "string"):
		e.fail("no object in the schema has properties of any name but a map of strings", "%s: %v", path, free)
	case part["type"] == "object" && !named && !open:
		e.fail("every object in the schema has named properties", "%s has none", path)
	}

	for name, property := range properties {
		if inner, ok := property.(map[string]any); ok {
			e.drawable(path+"/"+name, inner)
		}
	}

	if items, ok := part["items"].(map[string]any); ok {
		e.drawable(path+"/items", items)
	}
}
