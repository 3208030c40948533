package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
)

// removeAll takes all clusters, sets and requests back and waits for their end.
func (e *env) removeAll() {
	e.removeClusters()

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
			e.history().Scan("a config patch request", string(data.Data()))
			data.Free()
		}
	}
}

// tidyTime is how long a case that was not judged well may take to take back what it has asked for.
const tidyTime = 30 * time.Second

// tidy takes back what a case has left that did not come to its end, as well as that goes until hurry is closed.
func (e *env) tidy(hurry <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), tidyTime)
	defer cancel()

	go func() {
		select {
		case <-hurry:
			cancel()
		case <-ctx.Done():
		}
	}()

	e.asked, e.pace.patience = ctx, min(e.pace.patience, tidyTime/2)

	_ = catch(func() {
		_ = e.try(func() {
			if p := e.process(); p == nil || p.over() {
				e.start()
			}

			e.removeAll()
		})
	})

	if p := e.process(); p != nil {
		p.kill()
		<-p.done
	}

	_ = catch(func() {
		for _, m := range e.machines() {
			_ = e.cloud.DeleteMachine(m.ID)
		}
	})
}
