package validation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/cosi-project/runtime/pkg/resource"
)

// What Omni takes as metadata, in bytes and entries.
const (
	maxKey     = 1024
	maxValue   = 16 << 10
	maxEntries = 256
)

// metadata checks the id, labels and annotations that a write brings. Of an update, whose stored metadata is old, only the
// entries that it changes are looked at.
func metadata(old, updated *resource.Metadata) []error {
	var problems []error

	oldLabels, oldAnnotations := map[string]string{}, map[string]string{}

	if old == nil {
		if updated.ID() == "" {
			problems = append(problems, errors.New("resource ID must not be empty"))
		}

		problems = append(problems, text("resource ID", updated.ID(), maxKey)...)
	} else {
		oldLabels, oldAnnotations = old.Labels().Raw(), old.Annotations().Raw()
	}

	problems = append(problems, entries("label", oldLabels, updated.Labels().Raw())...)

	return append(problems, entries("annotation", oldAnnotations, updated.Annotations().Raw())...)
}

func entries(what string, old, updated map[string]string) []error {
	var problems []error

	if len(updated) > maxEntries && len(updated) > len(old) {
		problems = append(problems, fmt.Errorf("too many %ss: %d (max %d)", what, len(updated), maxEntries))
	}

	for _, key := range slices.Sorted(maps.Keys(updated)) {
		value := updated[key]
		was, there := old[key]

		if !there {
			problems = append(problems, text(fmt.Sprintf("%s key %q", what, key), key, maxKey)...)
		}

		if !there || was != value {
			problems = append(problems, text(fmt.Sprintf("%s value for key %q", what, key), value, maxValue)...)
		}
	}

	return problems
}

func text(what, value string, limit int) []error {
	var problems []error

	if len(value) > limit {
		problems = append(problems, fmt.Errorf("%s is too long: %d bytes (max %d)", what, len(value), limit))
	}

	if strings.ContainsFunc(value, unicode.IsControl) {
		problems = append(problems, fmt.Errorf("%s must not contain control characters", what))
	}

	return problems
}
