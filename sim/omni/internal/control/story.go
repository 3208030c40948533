package control

import (
	"context"
	"fmt"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
)

// watchStory returns the changes in st that tell its story, until ctx ends.
func watchStory(ctx context.Context, st state.State) (<-chan state.Event, error) {
	events := make(chan state.Event)

	for _, kind := range []resource.Kind{
		infra.NewMachineRequest("").Metadata(),
		infra.NewMachineRequestStatus("").Metadata(),
		siderolink.NewLink("", nil).Metadata(),
		omni.NewMachineStatus("").Metadata(),
		omni.NewInfraProviderCombinedStatus("").Metadata(),
	} {
		if err := st.WatchKind(ctx, kind, events); err != nil {
			return nil, fmt.Errorf("watch %q: %w", kind.Type(), err)
		}
	}

	return events, nil
}

// tell says in words what happens until ctx ends.
func tell(ctx context.Context, events <-chan state.Event, log func(text string)) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-events:
			if text := sentence(event); text != "" {
				log(text)
			}
		}
	}
}

// sentence returns what an event means, empty if nothing that anybody would ask about.
func sentence(event state.Event) string {
	if event.Resource == nil {
		return ""
	}

	id := event.Resource.Metadata().ID()
	torn := event.Type == state.Updated && event.Resource.Metadata().Phase() == resource.PhaseTearingDown &&
		event.Old.Metadata().Phase() == resource.PhaseRunning

	switch res := event.Resource.(type) {
	case *infra.MachineRequest:
		return lifeOf("machine request "+id, event.Type, torn)
	case *siderolink.Link:
		return lifeOf("link of machine "+id, event.Type, torn)
	case *infra.MachineRequestStatus:
		old, _ := event.Old.(*infra.MachineRequestStatus)

		return tellStatus(id, res, old, event.Type, torn)
	case *omni.MachineStatus:
		old, _ := event.Old.(*omni.MachineStatus)

		return tellMachine(id, res, old, event.Type)
	case *omni.InfraProviderCombinedStatus:
		old, _ := event.Old.(*omni.InfraProviderCombinedStatus)

		return tellProvider(id, res, old, event.Type)
	}

	return ""
}

func lifeOf(what string, event state.EventType, torn bool) string {
	switch {
	case event == state.Created:
		return what + " created"
	case torn:
		return what + " is being removed"
	case event == state.Destroyed:
		return what + " is gone"
	}

	return ""
}

func tellStatus(id string, res, old *infra.MachineRequestStatus, event state.EventType, torn bool) string {
	if torn {
		return fmt.Sprintf("the provider lets go of machine request %s", id)
	}

	spec := res.TypedSpec().Value
	if event != state.Updated || old == nil || spec.EqualVT(old.TypedSpec().Value) {
		return ""
	}

	text := fmt.Sprintf("machine request %s: %s", id, stageWord(spec.Stage))
	if spec.Status != "" {
		text += ", " + spec.Status
	}

	if spec.Error != "" {
		text += ": " + spec.Error
	}

	return text
}

func stageWord(stage specs.MachineRequestStatusSpec_Stage) string {
	switch stage {
	case specs.MachineRequestStatusSpec_PROVISIONING:
		return "being provisioned"
	case specs.MachineRequestStatusSpec_PROVISIONED:
		return "provisioned"
	case specs.MachineRequestStatusSpec_FAILED:
		return "failed"
	default:
		return "stage unknown"
	}
}

func tellMachine(id string, res, old *omni.MachineStatus, event state.EventType) string {
	request, matched := res.Metadata().Labels().Get(omni.LabelMachineRequest)

	switch {
	case event == state.Created && matched:
		return fmt.Sprintf("machine %s is matched with machine request %s", id, request)
	case event == state.Created:
		return fmt.Sprintf("machine %s is known", id)
	case event == state.Destroyed:
		return fmt.Sprintf("machine %s is forgotten", id)
	case event != state.Updated || old == nil:
		return ""
	}

	is, was := res.TypedSpec().Value, old.TypedSpec().Value

	switch {
	case is.Connected != was.Connected && is.Connected:
		return fmt.Sprintf("machine %s is connected", id)
	case is.Connected != was.Connected:
		return fmt.Sprintf("machine %s is disconnected", id)
	case is.Cluster != was.Cluster && is.Cluster != "":
		return fmt.Sprintf("machine %s is in cluster %s", id, is.Cluster)
	}

	return ""
}

func tellProvider(id string, res, old *omni.InfraProviderCombinedStatus, event state.EventType) string {
	switch {
	case event == state.Created:
		return fmt.Sprintf("infra provider %s is registered", id)
	case event == state.Destroyed:
		return fmt.Sprintf("infra provider %s is removed", id)
	case event != state.Updated || old == nil:
		return ""
	}

	is, was := res.TypedSpec().Value.GetHealth(), old.TypedSpec().Value.GetHealth()

	switch {
	case is.GetConnected() != was.GetConnected() && is.GetConnected():
		return fmt.Sprintf("infra provider %s is connected", id)
	case is.GetConnected() != was.GetConnected():
		return fmt.Sprintf("infra provider %s is disconnected", id)
	case is.GetError() != was.GetError() && is.GetError() != "":
		return fmt.Sprintf("infra provider %s: %s", id, is.GetError())
	}

	return ""
}
