// Package documenttest holds the document of a provider's class data to its Go struct: the table of all fields, which it writes, and the
// examples. Tests of providers use it.
package documenttest

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table of fields stands between these lines.
const (
	begin = "<!-- fields -->\n"
	end   = "<!-- /fields -->"
)

// RequireFields fails the test unless the document at path has the table of T's fields, made of the tags that package classdata reads. With
// update it writes the table instead.
func RequireFields[T any](t *testing.T, path string, update bool) {
	t.Helper()

	text, err := os.ReadFile(path)
	require.NoError(t, err)

	before, rest, found := strings.Cut(string(text), begin)
	require.True(t, found, "%s has no line %q", path, begin)

	_, after, found := strings.Cut(rest, end)
	require.True(t, found, "%s has no line %q", path, end)

	want := before + begin + "\n| field | meaning | default | values |\n|---|---|---|---|\n" +
		rows(reflect.TypeFor[T](), "") + "\n" + end + after

	if update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644)) //nolint:gosec // for everybody to read

		return
	}

	require.Equal(t, want, string(text), "run the test with -update")
}

var examples = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// Examples returns the YAML examples of the document at path, and fails the test if there are fewer than least.
func Examples(t *testing.T, path string, least int) (all []string) {
	t.Helper()

	text, err := os.ReadFile(path)
	require.NoError(t, err)

	for _, example := range examples.FindAllStringSubmatch(string(text), -1) {
		all = append(all, example[1])
	}

	require.GreaterOrEqual(t, len(all), least, "examples in %s", path)

	return all
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
	case f.Type.Kind() == reflect.Map:
		return "at most " + high + " keys"
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
