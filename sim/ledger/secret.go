package ledger

import (
	"fmt"
	"slices"
	"strings"
)

// minSecret is the length below which a value is too common to look for.
const minSecret = 8

type secret struct{ name, value string }

// Secret makes the books look for value wherever text passes: in their own entries, also those there are already, and in what
// Scan is given from now on. The value is never repeated in a report; name stands for it ("join token"). Values under eight bytes are refused.
func (l *Ledger) Secret(name, value string) error {
	if len(value) < minSecret {
		return fmt.Errorf("watch for secret %q: the value has %d bytes, want at least %d", name, len(value), minSecret)
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	added := secret{name: name, value: value}
	if slices.Contains(l.secrets, added) {
		return nil
	}

	l.secrets = append(l.secrets, added)

	for _, e := range l.entries {
		l.findLocked(added, "the history", e.text)
	}

	return nil
}

// Redact returns text with the names of the secrets that it has in their place.
func (l *Ledger) Redact(text string) string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.redactLocked(text)
}

func (l *Ledger) redactLocked(text string) string {
	for _, s := range l.secrets {
		text = strings.ReplaceAll(text, s.value, "["+s.name+"]")
	}

	return text
}

// Scan looks for secrets in text, which was found at the named place ("log"). A find is a leak.
func (l *Ledger) Scan(place, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.scanLocked(place, text)
}

func (l *Ledger) scanLocked(place, text string) {
	for _, s := range l.secrets {
		l.findLocked(s, place, text)
	}
}

// findLocked notes the first find of a secret in each place.
func (l *Ledger) findLocked(s secret, place, text string) {
	if !strings.Contains(text, s.value) {
		return
	}

	if found := fmt.Sprintf("secret %q is in %s", s.name, place); !slices.Contains(l.exposed, found) {
		l.exposed = append(l.exposed, found)
	}
}
