package machine

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
)

const (
	document    = "../../docs/class-data.md"
	fieldsBegin = "<!-- fields -->\n"
	fieldsEnd   = "<!-- /fields -->"
)

func TestTheDocumentHasEveryField(t *testing.T) {
	text, err := os.ReadFile(document)
	require.NoError(t, err)

	before, rest, found := strings.Cut(string(text), fieldsBegin)
	require.True(t, found)

	_, after, found := strings.Cut(rest, fieldsEnd)
	require.True(t, found)

	want := before + fieldsBegin + "\n| field | meaning | default | values |\n|---|---|---|---|\n" +
		rows(reflect.TypeFor[ClassData](), "") + "\n" + fieldsEnd + after

	if *update {
		require.NoError(t, os.WriteFile(document, []byte(want), 0o644))

		return
	}

	require.Equal(t, want, string(text), "run the test with -update")
}

// rows has a row for each field of a struct, in the order of the schema.
func rows(of reflect.Type, indent string) string {
	var out strings.Builder

	for _, f := range reflect.VisibleFields(of) {
		if f.Anonymous {
			continue
		}

		name, kind := f.Tag.Get("json"), f.Type

		list := kind.Kind() == reflect.Slice
		if list {
			name, kind = name+"[]", kind.Elem()
		}

		section := kind.Kind() == reflect.Struct && kind.PkgPath() == of.PkgPath()

		fmt.Fprintf(&out, "| `%s%s` | %s | %s | %s |\n", indent, name, escape(f.Tag.Get("doc")), fallback(f, section), values(f, list))

		if section {
			out.WriteString(rows(kind, indent+"  "))
		}
	}

	return out.String()
}

func escape(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;").Replace(text)
}

func fallback(f reflect.StructField, section bool) string {
	value, given := f.Tag.Lookup("default")

	switch {
	case f.Tag.Get("required") != "":
		return "required"
	case value == "[{}]":
		return "one with its defaults"
	case given:
		return "`" + value + "`"
	case f.Type.Kind() == reflect.Bool:
		return "`false`"
	case section && f.Type.Kind() != reflect.Slice:
		return ""
	default:
		return "none"
	}
}

func values(f reflect.StructField, list bool) string {
	low, high := f.Tag.Get("min"), f.Tag.Get("max")

	switch {
	case f.Tag.Get("enum") != "":
		return "`" + strings.ReplaceAll(f.Tag.Get("enum"), ",", "`, `") + "`"
	case list && low != "":
		return low + " to " + high + " items"
	case list:
		return "at most " + high + " items"
	case f.Type.Kind() == reflect.Bool:
		return "`true`, `false`"
	case f.Type.Kind() != reflect.String && low != "":
		return low + " to " + high
	case f.Type.Kind() == reflect.String && high != "":
		return "at most " + high + " characters"
	default:
		return ""
	}
}

var examples = regexp.MustCompile("(?s)```yaml\n(.*?)```")

func TestEveryExampleOfTheDocumentIsGoodClassData(t *testing.T) {
	text, err := os.ReadFile(document)
	require.NoError(t, err)

	all := examples.FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(all), 6)

	for _, example := range all {
		data, err := classdata.Decode[ClassData](example[1])
		require.NoError(t, err, example[1])
		require.NotEmpty(t, describe(t, data))
	}
}
