package control

import (
	"context"

	"github.com/cosi-project/runtime/pkg/controller"
	"github.com/cosi-project/runtime/pkg/controller/generic/qtransform"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/google/uuid"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
)

const infraMachineController = "InfraMachineController"

// infraMachines tells a static provider what is wanted of each machine that it has found.
func infraMachines() controller.QController {
	return &keeper[*siderolink.Link]{
		name: infraMachineController,
		free: true, // It holds links of static providers only.
		work: makeInfraMachine,
		release: func(ctx context.Context, r controller.QRuntime, link *siderolink.Link) (bool, error) {
			return remove(ctx, r, infra.NewMachine(link.Metadata().ID()).Metadata(), infraMachineController)
		},
		mapped: []mapping{
			on[*infra.Machine](toSameID[*siderolink.Link]()),
			on[*infra.ProviderStatus](toLabelled[*siderolink.Link](omni.LabelInfraProviderID)),
			on[*omni.InfraMachineConfig](toSameID[*siderolink.Link]()),
			on[*omni.MachineSetNode](toSameID[*siderolink.Link]()),
			on[*omni.MachineStatus](toSameID[*siderolink.Link]()),
			on[*siderolink.NodeUniqueToken](toSameID[*siderolink.Link]()),
			on[*omni.Cluster](qtransform.MapperNone()), // It is only read.
		},
		outputs: []controller.Output{shares[*infra.Machine]()},
	}
}

func makeInfraMachine(ctx context.Context, r controller.QRuntime, link *siderolink.Link) error {
	id := link.Metadata().ID()
	provider, _ := link.Metadata().Labels().Get(omni.LabelInfraProviderID)

	status, ok, err := find[*infra.ProviderStatus](ctx, r, provider)
	if err != nil || !ok {
		return err
	}

	if _, static := status.Metadata().Labels().Get(omni.LabelIsStaticInfraProvider); !static {
		return nil
	}

	if err = r.AddFinalizer(ctx, link.Metadata(), infraMachineController); err != nil {
		return ignoreRace(err)
	}

	wanted, err := wantedOf(ctx, r, id)
	if err != nil {
		return err
	}

	return ignoreRace(r.Modify(ctx, infra.NewMachine(id), func(res resource.Resource) error {
		res.Metadata().Labels().Set(omni.LabelInfraProviderID, provider)

		if machine, ok := res.(*infra.Machine); ok {
			wanted.fill(machine)
		}

		return nil
	}))
}

// wanted is what an operator and the clusters want of a machine.
type wanted struct {
	config *specs.InfraMachineConfigSpec
	// node is nil while the machine is in no cluster.
	node         *omni.MachineSetNode
	talosVersion string
	token        string
	// known is set once Omni has learned how the machine boots.
	known bool
}

func wantedOf(ctx context.Context, r controller.Reader, id resource.ID) (w wanted, err error) {
	w.config = &specs.InfraMachineConfigSpec{}

	if config, ok, err := find[*omni.InfraMachineConfig](ctx, r, id); err != nil {
		return w, err
	} else if ok {
		w.config = config.TypedSpec().Value
	}

	if status, ok, err := find[*omni.MachineStatus](ctx, r, id); err != nil {
		return w, err
	} else if ok {
		w.known = status.TypedSpec().Value.SecurityState != nil
	}

	if token, ok, err := find[*siderolink.NodeUniqueToken](ctx, r, id); err != nil {
		return w, err
	} else if ok {
		w.token = token.TypedSpec().Value.Token
	}

	node, ok, err := find[*omni.MachineSetNode](ctx, r, id)
	if err != nil || !ok {
		return w, err
	}

	w.node = node
	name, _ := node.Metadata().Labels().Get(omni.LabelCluster)

	cluster, ok, err := find[*omni.Cluster](ctx, r, name)
	if err == nil && ok {
		w.talosVersion = cluster.TypedSpec().Value.TalosVersion
	}

	return w, err
}

func (w wanted) fill(machine *infra.Machine) {
	labels, spec := machine.Metadata().Labels(), machine.TypedSpec().Value
	_, wasAllocated := labels.Get(omni.LabelCluster)

	for _, label := range clusterLabels {
		labels.Delete(label)

		if w.node != nil {
			if value, ok := w.node.Metadata().Labels().Get(label); ok {
				labels.Set(label, value)
			}
		}
	}

	spec.PowerOffRequestId = w.config.PowerOffRequestId

	if w.node == nil {
		spec.PowerOffRequestId = ""

		if wasAllocated {
			spec.WipeId = uuid.NewString()
		}
	}

	spec.PreferredPowerState = specs.InfraMachineSpec_POWER_STATE_OFF
	if w.config.PowerState == specs.InfraMachineConfigSpec_POWER_STATE_ON || !w.known {
		spec.PreferredPowerState = specs.InfraMachineSpec_POWER_STATE_ON
	}

	spec.AcceptanceStatus = w.config.AcceptanceStatus
	spec.ClusterTalosVersion = w.talosVersion
	spec.ExtraKernelArgs = w.config.ExtraKernelArgs
	spec.RequestedRebootId = w.config.RequestedRebootId
	spec.Cordoned = w.config.Cordoned
	spec.NodeUniqueToken = w.token

	setFlag(labels, omni.LabelMachinePendingAccept, w.config.AcceptanceStatus == specs.InfraMachineConfigSpec_PENDING)
}
