package conformance

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// history is what happens in one run: an operator's wishes and faults, one after the other. It is plain data, so that it can be
// drawn at random, cut down and kept. Every history makes sense: a step whose object is not there does nothing.
type history []step

// step is one thing that happens.
type step struct {
	// after is the time since the step before.
	after time.Duration
	op    *operation
	args  []string
}

// argument is a kind of word after the name of an operation.
type argument string

// The kinds of arguments. A target is a request without a set ("r-1") or, of a set, the request at that place among those that
// run, ordered by id ("s-1.0").
const (
	requestArg  argument = "REQUEST"
	setArg      argument = "SET"
	targetArg   argument = "TARGET"
	countArg    argument = "COUNT"
	durationArg argument = "DURATION"
	switchArg   argument = "on|off"
	replyArg    argument = "lost|seen"
	faultArg    argument = "FAULT"
	wordArg     argument = "WORD"
)

var argumentRules = map[argument]*regexp.Regexp{
	requestArg:  regexp.MustCompile(`^r-[1-9]$`),
	setArg:      regexp.MustCompile(`^s-[1-9]$`),
	targetArg:   regexp.MustCompile(`^(r-[1-9]|s-[1-9]\.[0-9])$`),
	countArg:    regexp.MustCompile(`^[0-9]{1,3}$`),
	durationArg: regexp.MustCompile(`^[0-9]`),
	switchArg:   regexp.MustCompile(`^(on|off)$`),
	replyArg:    regexp.MustCompile(`^(lost|seen)$`),
	faultArg:    regexp.MustCompile(`^(cut|reply-lost|hang|slow|conflict|throttled|unavailable|full|unauthorized|echo)$`),
	wordArg:     regexp.MustCompile(`^[a-z0-9-]{1,20}$`),
}

// faultKinds are what befalls calls to the cloud in random histories. A cloud that says that things are gone which are there is
// none of it.
var faultKinds = []ledger.FaultKind{
	ledger.Cut, ledger.Lost, ledger.Hang, ledger.Slow, ledger.Throttled, ledger.Conflict, ledger.Unavailable, ledger.Full,
	ledger.Unauthorized, ledger.Echo,
}

// longestStep bounds the times in a history.
const longestStep = 24 * time.Hour

// String returns the history in the form that parseHistory reads: "0s create r-1; 1.5s kill 5s".
func (h history) String() string {
	texts := make([]string, len(h))
	for i, s := range h {
		texts[i] = strings.Join(append([]string{s.after.String(), s.op.name}, s.args...), " ")
	}

	return strings.Join(texts, "; ")
}

// parseHistory reads a history: steps with a semicolon between them, each with the time since the step before, the name of an
// operation, and its arguments.
func parseHistory(text string) (history, error) {
	var (
		h        history
		problems []error
	)

	for i, part := range strings.Split(text, ";") {
		if strings.TrimSpace(part) == "" {
			continue
		}

		s, err := parseStep(part)
		if err != nil {
			problems = append(problems, fmt.Errorf("step %d, %q: %w", i+1, strings.TrimSpace(part), err))

			continue
		}

		h = append(h, s)
	}

	return h, errors.Join(problems...)
}

func parseStep(text string) (step, error) {
	words := strings.Fields(text)
	if len(words) < 2 {
		return step{}, errors.New("want a time and the name of an operation")
	}

	after, err := parseTime(words[0])
	if err != nil {
		return step{}, err
	}

	op := findOperation(words[1])
	if op == nil {
		return step{}, fmt.Errorf("operation %q does not exist; there are %s", words[1], operationNames())
	}

	args := words[2:]
	if len(args) != len(op.args) {
		return step{}, fmt.Errorf("want %s", op)
	}

	for i, kind := range op.args {
		if !argumentRules[kind].MatchString(args[i]) {
			return step{}, fmt.Errorf("argument %q is no %s; want %s", args[i], kind, op)
		}

		if kind == durationArg {
			if _, err := parseTime(args[i]); err != nil {
				return step{}, err
			}
		}
	}

	return step{after: after, op: op, args: args}, nil
}

func parseTime(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)

	switch {
	case err != nil:
		return 0, fmt.Errorf("time %q: want a duration, like 400ms or 5s", text)
	case d < 0 || d > longestStep:
		return 0, fmt.Errorf("time %q: want 0s to %s", text, longestStep)
	default:
		return d, nil
	}
}

// needs returns the features that a provider must have for the history to make sense.
func (h history) needs() (needs []Feature) {
	for _, s := range h {
		if f := s.op.needs; f != "" && !slices.Contains(needs, f) {
			needs = append(needs, f)
		}
	}

	return needs
}

// numeral returns an argument that the parser has found to be one.
func numeral(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}

	return n
}

// duration returns an argument that the parser has found to be one.
func duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}

	return d
}
