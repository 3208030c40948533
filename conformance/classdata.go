package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"go.yaml.in/yaml/v4"
)

var classDataCases = []testCase{
	{
		id: "CD-01", name: "class-data/unknown-field",
		rule: "Class data with a field that does not exist is refused, with the field's name in the request's status, before anything is made.",
		run:  func(e *env) { e.refuses(unknownField, "x") },
	},
	{
		id: "CD-02", name: "class-data/wrong-type",
		rule: "Class data with a value of the wrong type is refused, with the field's name in the request's status, before anything is made.",
		run: func(e *env) {
			for _, name := range e.fields(func(f schemaField) bool { return f.Type == "integer" || f.Type == "number" }) {
				e.refuses(name, "a lot")
			}
		},
	},
	{
		id: "CD-03", name: "class-data/out-of-range",
		rule: "Class data with a value outside of the published limits is refused, with the field's name in the request's status, before anything is made.",
		run: func(e *env) {
			for _, name := range e.fields(func(f schemaField) bool { return f.Minimum != nil }) {
				e.refuses(name, *e.schema().Properties[name].Minimum-1)
			}

			for _, name := range e.fields(func(f schemaField) bool { return len(f.Enum) > 0 }) {
				e.refuses(name, "none-of-these")
			}
		},
	},
	{
		id: "CD-04", name: "class-data/not-yaml",
		rule: "Class data that is no document at all is refused, with the reason in the request's status, before anything is made.",
		run:  func(e *env) { e.refusesData("{", "") },
	},
}

// schemaField is what the suite reads of a property in the published JSON schema.
type schemaField struct {
	Type    string   `json:"type"`
	Minimum *float64 `json:"minimum"`
	Enum    []any    `json:"enum"`
}

type schema struct {
	Properties map[string]schemaField `json:"properties"`
}

// schema returns the JSON schema that the provider has published.
func (e *env) schema() (s schema) {
	e.await("the provider publishes the JSON schema of its class data", func() (string, bool) {
		for _, status := range list[*infra.ProviderStatus](e) {
			err := json.Unmarshal([]byte(status.TypedSpec().Value.Schema), &s)

			return fmt.Sprintf("%d properties, error %v", len(s.Properties), err), len(s.Properties) > 0
		}

		return "no status of the provider", false
	})

	return s
}

func (e *env) fields(keep func(schemaField) bool) []string {
	var names []string

	for name, f := range e.schema().Properties {
		if keep(f) {
			names = append(names, name)
		}
	}

	return slices.Sorted(slices.Values(names))
}

// unknownField is in no class data.
const unknownField = "no_such_field"

// refuses asks for a machine with the good class data but for one field.
func (e *env) refuses(field string, value any) { e.refusesData(e.badData(field, value), field) }

// badData returns the good class data but for one field.
func (e *env) badData(field string, value any) string {
	good := map[string]any{}
	if err := yaml.Unmarshal([]byte(e.data), &good); err != nil {
		panic(fmt.Errorf("read the good class data: %w", err))
	}

	bad := maps.Clone(good)
	bad[field] = value

	data, err := json.Marshal(bad)
	if err != nil {
		panic(err)
	}

	return string(data)
}

func (e *env) refusesData(data, field string) {
	const id = "r-bad"

	e.requestFrom(e.provider, id, data)
	e.await(fmt.Sprintf("the request for %s has failed with an error that names the field %q", data, field), func() (string, bool) {
		s := e.status(id)

		return fmt.Sprintf("stage %s, status %q, error %q", s.GetStage(), s.GetStatus(), s.GetError()),
			s.GetStage() == specs.MachineRequestStatusSpec_FAILED && s.GetError() != "" && strings.Contains(s.GetError(), field)
	})

	if made := e.made(); len(made) > 0 {
		e.fail("nothing is made for class data that is refused", "%s", strings.Join(made, "\n"))
	}

	e.remove(id)
	e.awaitGone(id)
}
