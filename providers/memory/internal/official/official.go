// Package official is a provider for the cloud in memory that stands on the official library, omni/client/pkg/infra, and is
// written with care as its users write theirs: each step looks before it makes, and waits by asking to be called again. The
// conformance suite is run on it to show what that library leaves to its users; only that test imports it.
package official

import (
	"context"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/resource/typed"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	omniclient "github.com/siderolabs/omni/client/pkg/client"
	"github.com/siderolabs/omni/client/pkg/infra"
	"github.com/siderolabs/omni/client/pkg/infra/imagefactory"
	"github.com/siderolabs/omni/client/pkg/infra/provision"
	infrares "github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"go.uber.org/zap"

	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
)

// ProviderID is the only id that the provider can have: the library derives the type of its state from it, and types are fixed
// when a program is built.
const ProviderID = "official"

// Schema is the JSON schema of the class data.
const Schema = `{"type":"object","properties":{"cores":{"type":"integer","minimum":1,"maximum":64,"default":2}},"additionalProperties":false}`

// machine is what the library keeps of a machine in Omni.
type machine = typed.Resource[spec, extension]

type spec = protobuf.ResourceSpec[specs.MachineSpec, *specs.MachineSpec]

type extension struct{}

// ResourceDefinition says where the state is kept.
func (extension) ResourceDefinition() meta.ResourceDefinitionSpec {
	return meta.ResourceDefinitionSpec{Type: infra.ResourceType("Machines", ProviderID), DefaultNamespace: infra.ResourceNamespace(ProviderID)}
}

// Run runs the provider until ctx ends. omni is connected to Omni, st is its state, and client is a connection to the cloud.
func Run(ctx context.Context, omni *omniclient.Client, st state.State, client *cloud.Client, logger *zap.Logger) error {
	factory, err := imagefactory.NewProxiedClient(omni)
	if err != nil {
		return err
	}

	p, err := infra.NewProvider(ProviderID, &provisioner{client: client}, infra.ProviderConfig{Name: "Official", Schema: Schema})
	if err != nil {
		return err
	}

	return p.Run(ctx, logger, infra.WithState(st), infra.WithImageFactoryClient(factory), infra.WithConcurrency(8),
		infra.WithEncodeRequestIDsIntoTokens(), infra.WithHealthCheckFunc(client.Ping))
}

// pause is how long the cloud is left alone while it works.
const pause = time.Second

type provisioner struct{ client *cloud.Client }

type request = provision.Context[*machine]

// ProvisionSteps are the steps from nothing to a running machine.
func (p *provisioner) ProvisionSteps() []provision.Step[*machine] {
	return []provision.Step[*machine]{
		provision.NewStep("checkData", p.checkData),
		provision.NewStep("ensureImage", p.ensureImage),
		provision.NewStep("createVolume", p.createVolume),
		provision.NewStep("createVM", p.createVM),
		provision.NewStep("startVM", p.startVM),
	}
}

// data is the class data.
type data struct {
	Cores int `yaml:"cores"`
}

func (p *provisioner) checkData(_ context.Context, _ *zap.Logger, r request) error {
	_, err := dataOf(r)

	return err
}

func dataOf(r request) (data, error) {
	d := data{Cores: 2}

	if err := r.UnmarshalProviderData(&d); err != nil {
		return d, err
	}

	if d.Cores < 1 {
		return d, fmt.Errorf("cores: %d is less than 1", d.Cores)
	}

	return d, nil
}

func (p *provisioner) ensureImage(ctx context.Context, logger *zap.Logger, r request) error {
	schematic, err := r.GenerateSchematicID(ctx, logger, provision.WithoutConnectionParams())
	if err != nil {
		return err
	}

	key := schematic + "-" + r.GetTalosVersion()
	tags := map[string]string{"provider": ProviderID, "image": key}

	images, err := p.client.ListImages(ctx, tags)
	if err != nil {
		return err
	}

	// The next step finds the image by what the state says.
	r.State.TypedSpec().Value.ManagementAddress = key

	if len(images) == 0 {
		image, err := p.client.ImportImage(ctx, ProviderID+"-"+key, "https://factory.talos.dev/image/"+schematic+"/v"+r.GetTalosVersion()+"/nocloud-amd64.raw.xz", tags)
		if err != nil {
			return err
		}

		images = append(images, image)
	}

	return await(images[0].State, cloud.Available)
}

func (p *provisioner) createVolume(ctx context.Context, _ *zap.Logger, r request) error {
	volumes, err := p.client.ListVolumes(ctx, tags(r.GetRequestID()))
	if err != nil {
		return err
	}

	if len(volumes) == 0 {
		images, err := p.client.ListImages(ctx, map[string]string{"provider": ProviderID, "image": r.State.TypedSpec().Value.ManagementAddress})

		switch {
		case err != nil:
			return err
		case len(images) == 0:
			return fmt.Errorf("image %q is gone", r.State.TypedSpec().Value.ManagementAddress)
		}

		volume, err := p.client.CreateVolume(ctx, cloud.VolumeSpec{
			Name: r.GetRequestID() + "-root", ImageID: images[0].ID, SizeGiB: 10, Tags: tags(r.GetRequestID()),
		})
		if err != nil {
			return err
		}

		volumes = append(volumes, volume)
	}

	return await(volumes[0].State, cloud.Available)
}

func (p *provisioner) createVM(ctx context.Context, _ *zap.Logger, r request) error {
	vms, err := p.client.ListVMs(ctx, tags(r.GetRequestID()))
	if err != nil {
		return err
	}

	if len(vms) == 0 {
		d, err := dataOf(r)
		if err != nil {
			return err
		}

		volumes, err := p.client.ListVolumes(ctx, tags(r.GetRequestID()))

		switch {
		case err != nil:
			return err
		case len(volumes) == 0:
			return fmt.Errorf("volume of %q is gone", r.GetRequestID())
		}

		vm, err := p.client.CreateVM(ctx, cloud.VMSpec{
			Name: r.GetRequestID(), Cores: d.Cores, MemoryMiB: 2048, VolumeIDs: []string{volumes[0].ID},
			UserData: r.ConnectionParams.JoinConfig, Tags: tags(r.GetRequestID()),
		})
		if err != nil {
			return err
		}

		vms = append(vms, vm)
	}

	r.SetMachineUUID(vms[0].UUID)
	r.SetMachineInfraID(vms[0].ID)

	return await(vms[0].State, cloud.Stopped, cloud.Starting, cloud.Running)
}

func (p *provisioner) startVM(ctx context.Context, _ *zap.Logger, r request) error {
	vms, err := p.client.ListVMs(ctx, tags(r.GetRequestID()))

	switch {
	case err != nil:
		return err
	case len(vms) == 0:
		return fmt.Errorf("machine of %q is gone", r.GetRequestID())
	case vms[0].State == cloud.Stopped:
		if err := p.client.StartVM(ctx, vms[0].ID); err != nil {
			return err
		}

		return provision.NewRetryInterval(pause)
	}

	return await(vms[0].State, cloud.Running)
}

// Deprovision takes the machine away, then its disk. It is called again until it returns no error.
func (p *provisioner) Deprovision(ctx context.Context, _ *zap.Logger, _ *machine, r *infrares.MachineRequest) error {
	mark := tags(r.Metadata().ID())

	vms, err := p.client.ListVMs(ctx, mark)
	if err != nil {
		return err
	}

	for _, vm := range vms {
		switch vm.State {
		case cloud.Running:
			err = p.client.StopVM(ctx, vm.ID)
		case cloud.Stopped:
			err = p.client.DeleteVM(ctx, vm.ID)
		}

		if err != nil {
			return err
		}
	}

	if len(vms) > 0 {
		return provision.NewRetryInterval(pause)
	}

	volumes, err := p.client.ListVolumes(ctx, mark)
	if err != nil {
		return err
	}

	for _, volume := range volumes {
		if volume.State == cloud.Available {
			if err := p.client.DeleteVolume(ctx, volume.ID); err != nil {
				return err
			}
		}
	}

	if len(volumes) > 0 {
		return provision.NewRetryInterval(pause)
	}

	return nil
}

// tags mark what belongs to a request.
func tags(id resource.ID) map[string]string {
	return map[string]string{"provider": ProviderID, "request": id}
}

// await asks to be called again until the object is in a state that was waited for.
func await(got cloud.State, want ...cloud.State) error {
	for _, state := range want {
		if got == state {
			return nil
		}
	}

	return provision.NewRetryInterval(pause)
}
