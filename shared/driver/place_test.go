package driver_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func TestUnseenPlacesAreNamedAndSayNothingOfAMachine(t *testing.T) {
	err := fmt.Errorf("find machine: %w", &driver.Unseen{Places: map[string]error{
		"b": driver.NotFound("no route to host"),
		"a": errors.New("connection refused"),
	}})

	assert.EqualError(t, err, `find machine: place "a" cannot be reached: connection refused; place "b" cannot be reached: no route to host`)
	assert.Equal(t, driver.KindTransient, driver.KindOf(err), "what a place's own error says is not the answer to what was asked")
	assert.Len(t, driver.UnseenOf(err).Places, 2)
	assert.Nil(t, driver.UnseenOf(errors.New("other")))
}
