package memory

import (
	"errors"
	"net/http"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
)

// classify gives an error of the cloud its kind. What it does not know stays transient: a lost connection, a fault of the cloud,
// a conflict with something that the cloud is still doing.
func classify(err error) error {
	answer, ok := errors.AsType[*cloud.Error](err)
	if !ok {
		return err
	}

	switch answer.Status {
	case http.StatusNotFound:
		return &driver.Error{Kind: driver.KindNotFound, Err: err}
	case http.StatusTooManyRequests:
		return driver.Throttled(answer.RetryAfter, err)
	case http.StatusInsufficientStorage:
		return driver.Capacity(err)
	case http.StatusBadRequest:
		return driver.Terminal(err)
	default:
		return err
	}
}

// listed is classify for lists: there, not found speaks of the place that was looked at, and says nothing of what was looked for.
func listed(err error) error {
	if cloud.StatusOf(err) == http.StatusNotFound {
		return err
	}

	return classify(err)
}
