package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestBadFlagIsNamed(t *testing.T) {
	t.Parallel()

	for want, args := range map[string][]string{
		"--peer-poll -1s: want a time that is not negative":                        {"--peer-poll", "-1s"},
		"--peer-down -1s: want a time that is not negative":                        {"--peer-down", "-1s"},
		`--defect "odd": want unfiltered-cache or provider-removal-takes-all-sets`: {"--defect", "odd"},
		`--machine-url "127.0.0.1:1": want grpc or https://HOST:PORT`:              {"--machine-url", "127.0.0.1:1"},
		`--factory "grpc://f:1": want http or https://HOST:PORT`:                   {"--factory", "grpc://f:1"},
	} {
		cmd := newCommand(io.Discard, io.Discard)
		cmd.SetArgs(args)
		assert.EqualError(t, cmd.Execute(), want)
	}
}
