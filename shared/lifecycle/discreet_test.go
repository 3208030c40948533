package lifecycle

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestJoinTokensAreHidden(t *testing.T) {
	const token = "v2:eyJleHRyYV9kYXRhIjp7fX0+/A=="

	for text, want := range map[string]string{
		"nothing to hide, v2:10 and jointoken":                            "nothing to hide, v2:10 and jointoken",
		"apiUrl: grpc://omni:8090?jointoken=" + token + "\nkind: X":       "apiUrl: grpc://omni:8090?jointoken=(hidden)\nkind: X",
		`"grpc://omni?grpc_tunnel=true&jointoken=v2%3AeyJl%2B%3D&x=1"`:    `"grpc://omni?grpc_tunnel=true&jointoken=(hidden)&x=1"`,
		`{"args":"siderolink.api=grpc://omni?jointoken\u003dplain\u0026"`: `{"args":"siderolink.api=grpc://omni?jointoken\u003d(hidden)\u0026"`,
		"token " + token + ", " + token + ".":                             "token (hidden), (hidden).",
	} {
		assert.Equal(t, want, discreet(text))
	}

	cause := errors.New("cannot process jointoken=" + token)
	err := discreetly(cause)
	require.EqualError(t, err, "cannot process jointoken=(hidden)")
	require.ErrorIs(t, err, cause)
	require.NoError(t, discreetly(nil))
}
