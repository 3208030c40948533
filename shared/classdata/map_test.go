package classdata_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
)

// labelled has a map of strings, as classes of other programs may.
type labelled struct {
	Labels map[string]string `json:"labels" doc:"Labels." max:"2" pattern:"^[a-z]*$"`
	Secret map[string]string `json:"secret" doc:"Tokens." secret:"true" enum:"a,b"`
}

func TestAMapOfStringsIsHeldToItsRules(t *testing.T) {
	got, err := classdata.Decode[labelled]("labels: {a.b/c: x, 'true': y}")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a.b/c": "x", "true": "y"}, got.Labels)

	got, err = classdata.Decode[labelled]("{}")
	require.NoError(t, err)
	require.Nil(t, got.Labels)

	for data, want := range map[string]string{
		"labels: [a]":                    "labels: got a list, want a mapping of at most 2 keys with values that are text that matches ^[a-z]*$ (line 1)",
		"labels: {a: 1}":                 "labels.a: got the number 1, want text that matches ^[a-z]*$; put it in quotes (line 1)",
		"labels: {a: A}":                 `labels.a: got the text "A"`,
		"labels: {a: {b: c}}":            "labels.a: got a mapping, want text",
		"labels: {1: a}":                 "labels: got the key the number 1, want text; put it in quotes (line 1)",
		"labels: {[a]: a}":               "labels: got the key a list",
		"labels: {a: b, a: c}":           "labels.a: given twice",
		"labels: {a: b, c: d, e: f}":     "labels: has 3 keys; want a mapping of at most 2 keys",
		"labels: &x {a: b}":              "labels: anchors and aliases are not supported",
		"secret: {a: canary-in-a-value}": "secret.a: got another value",
	} {
		_, err := classdata.Decode[labelled](data)
		require.ErrorContains(t, err, want, data)
		require.NotContains(t, err.Error(), "canary")
	}
}

func TestTheSchemaOfAMapTakesWhatDecodeTakes(t *testing.T) {
	var document any
	require.NoError(t, json.Unmarshal([]byte(classdata.Schema[labelled]("")), &document))

	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource("labelled.json", document))

	schema, err := compiler.Compile("labelled.json")
	require.NoError(t, err)

	for data, good := range map[string]bool{
		`{}`: true, `{"labels": {}}`: true, `{"labels": {"a": "b", "c d": ""}}`: true, `{"secret": {"x": "b"}}`: true,
		`{"labels": {"a": "B"}}`: false, `{"labels": {"a": 1}}`: false, `{"labels": {"a": "b", "c": "d", "e": "f"}}`: false, `{"labels": []}`: false, `{"secret": {"x": "c"}}`: false,
	} {
		var value any
		require.NoError(t, json.Unmarshal([]byte(data), &value))
		require.Equal(t, good, schema.Validate(value) == nil, data)

		_, err := classdata.Decode[labelled](data)
		require.Equal(t, good, err == nil, data)
	}
}

func TestAMapOfScalarsTakesThemAsTheTextThatTheyAreWrittenAs(t *testing.T) {
	type scalars struct {
		Labels map[string]string `json:"labels" doc:"x" scalars:"true"`
	}

	got, err := classdata.Decode[scalars]("labels: {a: 1, b: 1.50, c: yes, d: true, e: '2', f: 0x1F}")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1", "b": "1.50", "c": "yes", "d": "true", "e": "2", "f": "0x1F"}, got.Labels)

	for _, data := range []string{"labels: {a: }", "labels: {a: [b]}", "labels: {a: {b: c}}"} {
		_, err := classdata.Decode[scalars](data)
		require.ErrorContains(t, err, "labels.a: got ", data)
	}

	require.Contains(t, strings.Join(strings.Fields(classdata.Schema[scalars]("")), ""), `"additionalProperties":{"type":"string"}`, "Omni's form knows no other map")

	type wrong struct {
		Label string `json:"label" doc:"x" scalars:"true"`
	}

	require.PanicsWithValue(t, `classdata: classdata_test.wrong.Label: the scalars tag is "true", want "true", of a map`, func() { classdata.Schema[wrong]("") })
}
