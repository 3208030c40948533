package lifecycle

import "regexp"

// joinTokens finds the join tokens in a text: the value of the kernel argument or the setting, in any escaping, and the tokens of
// Omni that carry data wherever they stand.
var joinTokens = regexp.MustCompile(`(?i)(jointoken(?:=|%3d|\\u003d))[^&\s"'\\,;)}\]]+|\bv[12](?::|%3a)ey[-\w+/=%]+`)

// discreet takes the join tokens out of a foreign text. Clouds repeat in their errors what they were asked to do, and the join
// token is a part of it.
func discreet(text string) string { return joinTokens.ReplaceAllString(text, "${1}(hidden)") }

// discreetError is an error whose text is discreet.
type discreetError struct {
	text string
	err  error
}

// Error returns the discreet text.
func (e *discreetError) Error() string { return e.text }

// Unwrap returns the error as it was.
func (e *discreetError) Unwrap() error { return e.err }

// discreetly makes an error of a driver fit to be shown and logged.
func discreetly(err error) error {
	if err == nil {
		return nil
	}

	if text := err.Error(); discreet(text) != text {
		return &discreetError{text: discreet(text), err: err}
	}

	return err
}
