package memory

import (
	"context"
	"fmt"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// classData is what a machine class says about its machines. Its tags are the defaults, the limits and the published schema.
type classData struct {
	Cores    int         `json:"cores" title:"Cores" doc:"Number of virtual processor cores." default:"2" min:"1" max:"64"`
	Memory   int         `json:"memory" title:"Memory" doc:"Memory in MiB." default:"2048" min:"512" max:"1048576"`
	DiskSize int         `json:"disk_size" title:"Disk size" doc:"Size of the boot disk in GiB." default:"10" min:"5" max:"65536"`
	Arch     driver.Arch `json:"arch" title:"Architecture" doc:"Processor architecture." default:"amd64" enum:"amd64,arm64"`
}

// Schema is the JSON schema of the class data, for the provider's status in Omni.
func Schema() string { return classdata.Schema[classData]("In-memory machine") }

// Validate checks class data as Plan does.
func Validate(data string) error {
	_, err := classdata.Decode[classData](data)

	return err
}

// Plan reads the class data and names everything, without a call to the cloud.
func (d *Driver) Plan(_ context.Context, req driver.Request) (driver.Plan, error) {
	data, err := classdata.Decode[classData](req.ClassData)
	if err != nil {
		return driver.Plan{}, err
	}

	m := maker{
		Driver: d,
		data:   data,
		vm:     req.RequestID,
		volume: req.RequestID + "-root",
	}

	return driver.Plan{
		UUID:  req.Identity.UUID,
		Image: &driver.ImageSpec{Platform: "nocloud", Arch: data.Arch},
		Names: map[string]string{"vm": m.vm, "volume": m.volume},
		// Kubernetes gets to know which machine of the cloud each node is.
		Patches: map[string]string{
			"provider-id": fmt.Sprintf("machine:\n  kubelet:\n    extraArgs:\n      provider-id: memory://%s\n", req.Identity.UUID),
		},
		Phases: []driver.Phase{
			{Name: "ensure-image", Ensure: brief(m.ensureImage)},
			{Name: "create-volume", Ensure: brief(m.createVolume)},
			{Name: "create-vm", Ensure: brief(m.createVM)},
			{Name: "start-vm", Ensure: brief(m.startVM)},
		},
	}, nil
}
