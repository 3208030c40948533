package classdata

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// want says in words what a value of the shape looks like.
func (s *shape) want() string {
	switch {
	case len(s.enum) > 0:
		return "one of " + strings.Join(s.enum, ", ")
	case s.kind == boolean:
		return "true or false"
	case s.kind == integer:
		return "a whole number" + s.bounds("")
	case s.kind == number:
		return "a number" + s.bounds("")
	case s.kind == list:
		return "a list" + s.bounds(" items")
	case s.kind == section && s.item != nil:
		return "a mapping" + s.bounds(" keys") + " with values that are " + s.item.want()
	case s.kind == section:
		return "a mapping with the fields " + s.names()
	case s.pattern != nil:
		return "text" + s.bounds(" characters") + " that matches " + s.pattern.String()
	default:
		return "text" + s.bounds(" characters")
	}
}

func (s *shape) bounds(unit string) string {
	switch {
	case s.min != nil && s.max != nil:
		return fmt.Sprintf(" from %s to %s%s", decimal(*s.min), decimal(*s.max), unit)
	case s.min != nil:
		return fmt.Sprintf(" of at least %s%s", decimal(*s.min), unit)
	case s.max != nil:
		return fmt.Sprintf(" of at most %s%s", decimal(*s.max), unit)
	default:
		return ""
	}
}

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func (s *shape) knows(key string) bool {
	return slices.ContainsFunc(s.fields, func(f field) bool { return f.name == key })
}

func (s *shape) names() string {
	names := make([]string, len(s.fields))
	for i, f := range s.fields {
		names[i] = f.name
	}

	return strings.Join(names, ", ")
}

func (s *shape) knownKeys() string { return "known fields are " + s.names() }

// suggest names the known key that key is most likely meant to be, or all of them when none is near.
func (s *shape) suggest(key string) string {
	best, nearest := "", max(2, len(key)/3)+1

	for _, f := range s.fields {
		if n := distance(plain(key), plain(f.name)); n < nearest {
			best, nearest = f.name, n
		}
	}

	if best == "" {
		return s.knownKeys()
	}

	return fmt.Sprintf("did you mean %q?", best)
}

// plain takes away what people get wrong without a typing mistake: case and the separator of words.
func plain(key string) string {
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(clip(key)))
}

// distance is the number of letters to insert, delete, replace or swap with their neighbour to make b of a (optimal string
// alignment).
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)

	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}

	for j := range rows[0] {
		rows[0][j] = j
	}

	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			replace := rows[i-1][j-1]
			if x[i-1] != y[j-1] {
				replace++
			}

			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, replace)

			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}

	return rows[len(x)][len(y)]
}
