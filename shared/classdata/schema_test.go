package classdata_test

import (
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestSchemaIsTheSameEveryTime(t *testing.T) {
	got := classdata.Schema[machine]("Test machine")
	require.Equal(t, got, classdata.Schema[machine]("Test machine"))

	const golden = "testdata/machine.schema.json"

	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}

	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

func TestSchemaHoldsExactlyTheFieldsOfTheStruct(t *testing.T) {
	var schema map[string]any
	require.NoError(t, json.Unmarshal([]byte(classdata.Schema[machine]("")), &schema))

	compareFields(t, "", schema, reflect.TypeFor[machine]())
}

func compareFields(t *testing.T, path string, schema map[string]any, typ reflect.Type) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		if typ.Kind() == reflect.Slice {
			schema = schema["items"].(map[string]any)
		}

		typ = typ.Elem()
	}

	if schema["type"] != "object" {
		return
	}

	properties := schema["properties"].(map[string]any)
	assert.Equal(t, false, schema["additionalProperties"], path)

	var keys []string

	for _, sf := range reflect.VisibleFields(typ) {
		key := sf.Tag.Get("json")
		if key == "" || key == "-" {
			continue
		}

		keys = append(keys, key)

		if assert.Contains(t, properties, key, path) {
			compareFields(t, path+"."+key, properties[key].(map[string]any), sf.Type)
		}
	}

	assert.Len(t, properties, len(keys), path)
}

func TestSchemaUsesOnlyWhatTheFormRenders(t *testing.T) {
	allowed := []string{
		"type", "title", "description", "default", "properties", "required", "additionalProperties", "items", "enum",
		"minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern",
	}

	var check func(path string, schema map[string]any)

	check = func(path string, schema map[string]any) {
		assert.IsType(t, "", schema["type"], path)

		for keyword, value := range schema {
			assert.Contains(t, allowed, keyword, path)

			switch keyword {
			case "properties":
				for name, property := range value.(map[string]any) {
					check(path+"."+name, property.(map[string]any))
				}
			case "items":
				check(path+"[]", value.(map[string]any))
			case "additionalProperties":
				assert.Equal(t, false, value, path)
			}
		}
	}

	var schema map[string]any
	require.NoError(t, json.Unmarshal([]byte(classdata.Schema[machine]("")), &schema))
	check("", schema)
}

func TestSchemaDefaultsEqualTheDecodersDefaults(t *testing.T) {
	var schema struct {
		Properties map[string]struct {
			Default any `json:"default"`
		} `json:"properties"`
	}

	require.NoError(t, json.Unmarshal([]byte(classdata.Schema[machine]("")), &schema))

	explicit := map[string]any{"memory": 4096}

	for key, property := range schema.Properties {
		if property.Default != nil {
			explicit[key] = property.Default
		}
	}

	require.Len(t, explicit, 6)

	document, err := json.Marshal(explicit)
	require.NoError(t, err)

	require.NoError(t, compileSchema(t, jsonschema.Draft7).Validate(parse(t, string(document))))

	withDefaults, err := classdata.Decode[machine](string(document))
	require.NoError(t, err)

	without, err := classdata.Decode[machine]("memory: 4096")
	require.NoError(t, err)
	assert.Equal(t, without, withDefaults)
}

// TestSchemaAndDecoderAgree compares both on documents that are about fields; what only the decoder can know is left out.
func TestSchemaAndDecoderAgree(t *testing.T) {
	onlyDecoder := []string{"text type's own rule", "duplicate key", "several documents", "alias", "rules across fields", "not a finite number"}

	documents := map[string]string{
		"minimal":              "memory: 2048",
		"full":                 "memory: 4096\ncores: 512\nratio: 1\nstorage_pool: a\nautoboot: true\nsector_size: 4096\ngroups: [a]\ndisks: [{size: 1, bus: sata}]\nboot: {size: 2}",
		"float for an integer": "memory: 4096.0",
		"hexadecimal":          "memory: 0x1000",
		"empty":                "{}",
		"null in a field":      "memory: 4096\nboot: null",
		"empty section":        "memory: 4096\nnetwork: {}",
	}

	for _, tt := range refused {
		documents[tt.name] = tt.data
	}

	for _, name := range onlyDecoder {
		require.Contains(t, documents, name)
		delete(documents, name)
	}

	for _, draft := range []*jsonschema.Draft{jsonschema.Draft7, jsonschema.Draft2020} {
		schema := compileSchema(t, draft)

		for name, data := range documents {
			_, decodeErr := classdata.Decode[machine](data)
			schemaErr := schema.Validate(parse(t, data))

			assert.Equal(t, decodeErr == nil, schemaErr == nil, "%s: decoder says %v, schema says %v", name, decodeErr, schemaErr)
		}
	}
}

// parse reads YAML into the values that encoding/json would make, as Omni does before it validates.
func parse(t *testing.T, data string) any {
	t.Helper()

	var v any
	require.NoError(t, yaml.Unmarshal([]byte(data), &v))

	encoded, err := json.Marshal(v)
	require.NoError(t, err)

	value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(encoded)))
	require.NoError(t, err)

	return value
}

func compileSchema(t *testing.T, draft *jsonschema.Draft) *jsonschema.Schema {
	t.Helper()

	document, err := jsonschema.UnmarshalJSON(strings.NewReader(classdata.Schema[machine]("Test machine")))
	require.NoError(t, err)

	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(draft)
	require.NoError(t, compiler.AddResource("machine.json", document))

	schema, err := compiler.Compile("machine.json")
	require.NoError(t, err)

	return schema
}
