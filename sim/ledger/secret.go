package ledger

import (
	"fmt"
	"strings"
)

// minSecret is the length below which a value is too common to look for.
const minSecret = 8

type secret struct{ name, value string }

// Secret makes the books look for value wherever text passes: in their own entries and in what Scan is given. The value is
// never repeated in a report; name stands for it ("join token"). Values under eight bytes are refused.
func (l *Ledger) Secret(name, value string) error {
	if len(value) < minSecret {
		return fmt.Errorf("watch for secret %q: the value has %d bytes, want at least %d", name, len(value), minSecret)
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	l.secrets = append(l.secrets, secret{name: name, value: value})

	return nil
}

// Scan looks for secrets in text, which was found at the named place ("log"). A find is a leak.
func (l *Ledger) Scan(place, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.scanLocked(place, text)
}

func (l *Ledger) scanLocked(place, text string) {
	for _, s := range l.secrets {
		if strings.Contains(text, s.value) {
			l.exposed = append(l.exposed, fmt.Sprintf("secret %q is in %s", s.name, place))
		}
	}
}
