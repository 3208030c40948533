package oxide

import (
	"net/http"
	"strconv"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

// serialConsole reads what the guest has written to its serial console.
func (c *call) serialConsole() (int, any, error) {
	i, err := c.instanceOf(false)
	if err != nil {
		return 0, nil, err
	}

	switch i.state {
	case api.InstanceStateRunning, api.InstanceStateRebooting, api.InstanceStateMigrating:
	case api.InstanceStateStarting, api.InstanceStateStopping:
		return 0, nil, invalidRequest("cannot connect to serial console of instance in state %q", i.state)
	default:
		return 0, nil, invalidRequest("instance is %s and has no active serial console server", i.state)
	}

	number := func(name string) (value int64, there bool, err error) {
		text := c.query.Get(name)
		if text == "" {
			return 0, false, nil
		}

		value, err = strconv.ParseInt(text, 10, 64)
		if err != nil || value < 0 {
			return 0, true, badQuery("invalid digit found in string")
		}

		return value, true, nil
	}

	start, fromStart, err1 := number("from_start")
	recent, mostRecent, err2 := number("most_recent")
	limit, limited, err3 := number("max_bytes")

	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return 0, nil, err
		}
	}

	if fromStart == mostRecent {
		return 0, nil, invalidRequest("exactly one of from_start and most_recent must be provided")
	}

	end := i.consoleStart + int64(len(i.console))
	if mostRecent {
		start = end - recent
	}

	start = min(max(start, i.consoleStart), end)

	data := i.console[start-i.consoleStart:]
	if limited {
		data = data[:min(int64(len(data)), limit)]
	}

	out := api.InstanceSerialConsoleData{Data: make([]int, len(data)), LastByteOffset: new(uint64(start) + uint64(len(data)))} //nolint:gosec // None is negative.
	for n, b := range data {
		out.Data[n] = int(b)
	}

	return http.StatusOK, out, nil
}
