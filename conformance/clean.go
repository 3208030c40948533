package conformance

import (
	"fmt"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
)

// removeAll takes all requests and sets back and waits for their end.
func (e *env) removeAll() {
	for _, set := range list[*omni.MachineRequestSet](e) {
		e.tearDown(set.Metadata())
		e.note("operator removes machine request set %s", set.Metadata().ID())
		e.await("machine request set "+set.Metadata().ID()+" is gone", func() (string, bool) { return e.destroy(set.Metadata()) })
	}

	ids := e.requests()

	for _, id := range ids {
		e.remove(id)
	}

	for _, id := range ids {
		e.awaitGone(id)
	}
}

// leftInOmni names the resources that the provider has left behind.
func (e *env) leftInOmni() []string {
	var left []string

	add := func(kind string, md *resource.Metadata) {
		left = append(left, fmt.Sprintf("%s %s is left in Omni", kind, md.ID()))
	}

	for _, r := range list[*infra.MachineRequestStatus](e) {
		add("MachineRequestStatus", r.Metadata())
	}

	for _, r := range list[*infra.ConfigPatchRequest](e) {
		add("ConfigPatchRequest", r.Metadata())
	}

	for _, r := range list[*infra.MachineStatus](e) {
		add("InfraMachineStatus", r.Metadata())
	}

	return left
}

// scanStatuses looks for secrets in all that the provider has written for others to read.
func (e *env) scanStatuses() {
	for _, r := range list[*infra.MachineRequestStatus](e) {
		e.scan("a machine request's status", r.TypedSpec().Value)
	}

	for _, r := range list[*infra.ProviderStatus](e) {
		e.scan("the provider's status", r.TypedSpec().Value)
	}

	for _, r := range list[*infra.ProviderHealthStatus](e) {
		e.scan("the provider's health", r.TypedSpec().Value)
	}

	for _, r := range list[*infra.ConfigPatchRequest](e) {
		if data, err := r.TypedSpec().Value.GetUncompressedData(); err == nil {
			e.ledger.Scan("a config patch request", string(data.Data()))
			data.Free()
		}
	}
}
