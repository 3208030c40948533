package omni

import (
	"fmt"
	"maps"
	"slices"
	"unicode"

	"github.com/cosi-project/runtime/pkg/resource"
)

// The limits on what callers write into the metadata of resources.
const (
	maxKeyBytes   = 1024
	maxValueBytes = 16 * 1024
	maxEntries    = 256
)

// checkMetadata returns what is wrong with metadata that a caller writes. Of an update only the entries that it changes
// count; stored is nil for a new resource.
func checkMetadata(stored, written *resource.Metadata) []error {
	var errs []error

	if stored == nil {
		if written.ID() == "" {
			errs = append(errs, fmt.Errorf("resource ID must not be empty"))
		}

		errs = append(errs, checkText("resource ID", written.ID(), maxKeyBytes)...)
		errs = append(errs, checkEntries("label", nil, written.Labels().Raw())...)

		return append(errs, checkEntries("annotation", nil, written.Annotations().Raw())...)
	}

	errs = append(errs, checkEntries("label", stored.Labels().Raw(), written.Labels().Raw())...)

	return append(errs, checkEntries("annotation", stored.Annotations().Raw(), written.Annotations().Raw())...)
}

func checkEntries(what string, stored, written map[string]string) []error {
	var errs []error

	if len(written) > maxEntries && len(written) > len(stored) {
		errs = append(errs, fmt.Errorf("too many %ss: %d (max %d)", what, len(written), maxEntries))
	}

	for _, key := range slices.Sorted(maps.Keys(written)) {
		value := written[key]

		if old, ok := stored[key]; ok && old == value {
			continue
		}

		errs = append(errs, checkText(fmt.Sprintf("%s key %q", what, key), key, maxKeyBytes)...)
		errs = append(errs, checkText(fmt.Sprintf("%s value for key %q", what, key), value, maxValueBytes)...)
	}

	return errs
}

func checkText(what, text string, limit int) []error {
	var errs []error

	if len(text) > limit {
		errs = append(errs, fmt.Errorf("%s is too long: %d bytes (max %d)", what, len(text), limit))
	}

	for _, r := range text {
		if unicode.IsControl(r) {
			errs = append(errs, fmt.Errorf("%s must not contain control characters", what))

			break
		}
	}

	return errs
}
