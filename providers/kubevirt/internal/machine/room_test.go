package machine

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPermissionsAreNoRoom(t *testing.T) {
	assert.False(t, lacksRoom("registry answered 403: insufficient permissions"))
}
