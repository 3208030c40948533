package hypervisor

import (
	"context"
	"errors"
	"strings"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// eventQueue is how many events may wait to be looked at.
const eventQueue = 1024

// Watch passes on libvirt's events about the provider's domains. libvirt keeps no events: when the connection breaks, or when
// they come faster than they can be looked at, Watch returns an error. As nobody knows what happened before it watched, it begins
// with a change of no machine in particular.
func (h *Host) Watch(ctx context.Context, providerID string, changed func(driver.Ref)) error {
	events := make(chan string, eventQueue)
	broken := make(chan error, 1)

	fail := func(err error) {
		select {
		case broken <- err:
		default:
		}
	}

	cancel := h.conn.Subscribe(func(e connection.Event) {
		if e.Kind == connection.Lost {
			fail(errors.New("watch domains: the connection to libvirt was lost"))

			return
		}

		select {
		case events <- strings.ToLower(e.Domain):
		default:
			fail(errors.New("watch domains: too many events at once"))
		}
	})
	defer cancel()

	// A domain that has gone cannot be asked whose it was.
	known := map[string]driver.Ref{}

	// This opens the connection, without which no events flow.
	domains, err := h.domains(ctx, providerID)
	if err != nil {
		return err
	}

	for _, own := range domains {
		known[own.uuid] = own.mark.Ref()
	}

	changed(driver.Ref{ProviderID: providerID})

	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-broken:
			return err
		case uuid := <-events:
			ref, ok := known[uuid]
			if !ok {
				own, err := h.domainByUUID(ctx, uuid)
				if err != nil {
					return err
				}

				if own == nil || own.mark.Provider != providerID {
					continue
				}

				ref = own.mark.Ref()
				known[uuid] = ref
			}

			changed(ref)
		}
	}
}
