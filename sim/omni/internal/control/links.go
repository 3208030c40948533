package control

import (
	"context"

	"github.com/cosi-project/runtime/pkg/controller"
	"github.com/cosi-project/runtime/pkg/controller/generic"
	"github.com/cosi-project/runtime/pkg/controller/generic/destroy"
	"github.com/cosi-project/runtime/pkg/controller/generic/qtransform"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/gen/optional"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"go.uber.org/zap"
)

// machineProvisionController owns the request sets that a machine set has; their machines are not for manual allocation.
const machineProvisionController = "MachineProvisionController"

// linkControllers follow what the provision service writes: links and pending machines.
func linkControllers() []controller.QController {
	return []controller.QController{
		linkStatuses[*siderolink.Link](),
		linkStatuses[*siderolink.PendingMachine](),
		machineFromLink(),
		machineRegistrations(),
		&keeper[*siderolink.Link]{
			name:    "LinkCleanupController",
			release: forgetJoin,
			outputs: []controller.Output{shares[*siderolink.NodeUniqueToken](), shares[*siderolink.JoinTokenUsage]()},
		},
		infraMachines(),
		&keeper[*siderolink.Link]{name: "MaintenanceConfigStatusController"},
		&keeper[*siderolink.Link]{name: "MachineStatusLinkController", last: true},
		destroy.NewController[*siderolink.Link](optional.None[uint]()),
	}
}

// linked is a resource with a SideroLink peer: a Link or a PendingMachine.
type linked interface {
	generic.ResourceWithRD
	*siderolink.Link | *siderolink.PendingMachine
}

func peerOf[L linked](l L) *specs.SiderolinkSpec {
	switch l := any(l).(type) {
	case *siderolink.Link:
		return l.TypedSpec().Value
	case *siderolink.PendingMachine:
		return l.TypedSpec().Value
	default:
		panic("a linked resource is a link or a pending machine")
	}
}

// linkStatuses says of each link that its peer is in place, which the provision service waits for.
func linkStatuses[L linked]() controller.QController {
	var zero L

	definition := zero.ResourceDefinition()

	return qtransform.NewQController(qtransform.Settings[L, *siderolink.LinkStatus]{
		Name:            "LinkStatusController[" + definition.Type + "]",
		MapMetadataFunc: func(l L) *siderolink.LinkStatus { return siderolink.NewLinkStatus(l) },
		UnmapMetadataFunc: func(status *siderolink.LinkStatus) L {
			if id := status.TypedSpec().Value.LinkId; status.Metadata().ID() == id+"/"+definition.Type {
				return linkOf[L](id)
			}

			return linkOf[L]("") // a status of the other kind of link
		},
		TransformFunc: func(_ context.Context, _ controller.Reader, _ *zap.Logger, l L, status *siderolink.LinkStatus) error {
			peer, spec := peerOf(l), status.TypedSpec().Value
			spec.LinkId = l.Metadata().ID()
			spec.NodeSubnet = peer.NodeSubnet
			spec.NodePublicKey = peer.NodePublicKey
			spec.VirtualAddrport = peer.VirtualAddrport

			return nil
		},
	}, qtransform.WithOutputKind(controller.OutputShared))
}

func linkOf[L linked](id resource.ID) L {
	var zero L
	if _, ok := any(zero).(*siderolink.Link); ok {
		return any(siderolink.NewLink(id, nil)).(L) //nolint:errcheck // the type was just looked at
	}

	return any(siderolink.NewPendingMachine(id, nil)).(L) //nolint:errcheck // a linked resource has one of two types
}

// machineFromLink makes the Machine of a link. One that a dynamic provider made becomes a Machine only when its request is
// known, and its status names a machine.
func machineFromLink() controller.QController {
	return qtransform.NewQController(qtransform.Settings[*siderolink.Link, *omni.Machine]{
		Name:              "MachineController",
		MapMetadataFunc:   func(link *siderolink.Link) *omni.Machine { return omni.NewMachine(link.Metadata().ID()) },
		UnmapMetadataFunc: func(m *omni.Machine) *siderolink.Link { return siderolink.NewLink(m.Metadata().ID(), nil) },
		TransformFunc:     fillMachine,
	},
		qtransform.WithExtraMappedInput[*infra.MachineRequest](toLabelled[*siderolink.Link](omni.LabelMachineRequest)),
		qtransform.WithExtraMappedInput[*infra.MachineRequestStatus](toLabelled[*siderolink.Link](omni.LabelMachineRequest)),
		qtransform.WithExtraMappedInput[*infra.ProviderStatus](toLabelled[*siderolink.Link](omni.LabelInfraProviderID)),
		qtransform.WithExtraMappedInput[*omni.MachineRequestSet](qtransform.MapperNone()),
	)
}

func fillMachine(ctx context.Context, r controller.Reader, _ *zap.Logger, link *siderolink.Link, machine *omni.Machine) error {
	labels := machine.Metadata().Labels()

	if provider, ok := link.Metadata().Labels().Get(omni.LabelInfraProviderID); ok {
		if err := labelProvided(ctx, r, link, machine, provider); err != nil {
			return err
		}
	}

	if _, ok := link.Metadata().Annotations().Get(omni.CreatedWithUniqueToken); ok {
		machine.Metadata().Annotations().Set(omni.CreatedWithUniqueToken, "")
	}

	address := addressOf(link.TypedSpec().Value.NodeSubnet)
	labels.Set(omni.MachineAddressLabel, address)

	spec := machine.TypedSpec().Value
	spec.ManagementAddress = address
	spec.Connected = link.TypedSpec().Value.Connected
	spec.UseGrpcTunnel = link.TypedSpec().Value.VirtualAddrport != ""

	return nil
}

// labelProvided labels the machine of a provider, or says that it cannot be one yet.
func labelProvided(
	ctx context.Context, r controller.Reader, link *siderolink.Link, machine *omni.Machine, provider string,
) error {
	providerStatus, ok, err := find[*infra.ProviderStatus](ctx, r, provider)
	if err != nil {
		return err
	}

	if !ok {
		return errNotYet
	}

	labels := machine.Metadata().Labels()
	labels.Set(omni.LabelInfraProviderID, provider)

	if _, static := providerStatus.Metadata().Labels().Get(omni.LabelIsStaticInfraProvider); static {
		labels.Set(omni.LabelIsManagedByStaticInfraProvider, "")

		return nil
	}

	id, ok := link.Metadata().Labels().Get(omni.LabelMachineRequest)
	if !ok {
		return errNotYet
	}

	request, ok, err := find[*infra.MachineRequest](ctx, r, id)
	if err != nil {
		return err
	}

	if !ok {
		return errNotYet
	}

	status, ok, err := find[*infra.MachineRequestStatus](ctx, r, id)
	if err != nil {
		return err
	}

	if !ok || status.TypedSpec().Value.Id == "" {
		return errNotYet
	}

	labels.Set(omni.LabelMachineRequest, id)

	setID, ok := request.Metadata().Labels().Get(omni.LabelMachineRequestSet)
	if !ok {
		return nil
	}

	labels.Set(omni.LabelMachineRequestSet, setID)

	set, ok, err := find[*omni.MachineRequestSet](ctx, r, setID)
	if err != nil {
		return err
	}

	if ok && set.Metadata().Owner() == machineProvisionController {
		labels.Set(omni.LabelNoManualAllocation, "")
	}

	return nil
}

// machineRegistrations shows a provider the links of its machines.
func machineRegistrations() controller.QController {
	return qtransform.NewQController(qtransform.Settings[*siderolink.Link, *infra.MachineRegistration]{
		Name: "InfraMachineRegistrationController",
		MapMetadataFunc: func(link *siderolink.Link) *infra.MachineRegistration {
			return infra.NewMachineRegistration(link.Metadata().ID())
		},
		UnmapMetadataFunc: func(registration *infra.MachineRegistration) *siderolink.Link {
			return siderolink.NewLink(registration.Metadata().ID(), nil)
		},
		TransformFunc: func(
			_ context.Context, _ controller.Reader, _ *zap.Logger, link *siderolink.Link, registration *infra.MachineRegistration,
		) error {
			if _, ok := link.Metadata().Labels().Get(omni.LabelInfraProviderID); !ok {
				return errNotYet
			}

			for key, value := range link.Metadata().Labels().Raw() {
				registration.Metadata().Labels().Set(key, value)
			}

			return nil
		},
	})
}

// forgetJoin takes away what Omni remembers of how the machine joined.
func forgetJoin(ctx context.Context, r controller.QRuntime, link *siderolink.Link) (bool, error) {
	id := link.Metadata().ID()

	tokenGone, err := remove(ctx, r, siderolink.NewNodeUniqueToken(id).Metadata(), "")
	if err != nil {
		return false, err
	}

	usageGone, err := remove(ctx, r, siderolink.NewJoinTokenUsage(id).Metadata(), "")

	return tokenGone && usageGone, err
}
