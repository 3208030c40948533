package rack

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Lists are always whole: all pages, or an error. Objects are changed by their ids, so that a new one of the same name is never meant.

// Check says whether the rack answers and takes the token.
func (c *Client) Check(ctx context.Context) error {
	return do(ctx, c, "ask the rack who we are", func(ctx context.Context, api *oxide.Client) error {
		_, err := api.CurrentUserView(ctx)

		return err
	})
}

// Projects returns all projects that the token may see.
func (c *Client) Projects(ctx context.Context) ([]oxide.Project, error) {
	return part(call(ctx, c, "list projects", func(ctx context.Context, api *oxide.Client) ([]oxide.Project, error) {
		return api.ProjectListAllPages(ctx, oxide.ProjectListParams{})
	}))
}

// Project returns a project by name or id.
func (c *Client) Project(ctx context.Context, nameOrID string) (oxide.Project, error) {
	return value(call(ctx, c, "look at project "+quoted(nameOrID), func(ctx context.Context, api *oxide.Client) (*oxide.Project, error) {
		return api.ProjectView(ctx, oxide.ProjectViewParams{Project: oxide.NameOrId(nameOrID)})
	}))
}

// Instances returns all instances of a project.
func (c *Client) Instances(ctx context.Context, project string) ([]oxide.Instance, error) {
	return part(call(ctx, c, "list instances of project "+quoted(project), func(ctx context.Context, api *oxide.Client) ([]oxide.Instance, error) {
		return api.InstanceListAllPages(ctx, oxide.InstanceListParams{Project: oxide.NameOrId(project)})
	}))
}

// Instance returns an instance by name.
func (c *Client) Instance(ctx context.Context, project, name string) (oxide.Instance, error) {
	return value(call(ctx, c, "look at instance "+quoted(name), func(ctx context.Context, api *oxide.Client) (*oxide.Instance, error) {
		return api.InstanceView(ctx, oxide.InstanceViewParams{Project: oxide.NameOrId(project), Instance: oxide.NameOrId(name)})
	}))
}

// CreateInstance makes an instance with its disks and addresses, all or nothing.
func (c *Client) CreateInstance(ctx context.Context, project string, body oxide.InstanceCreate) (oxide.Instance, error) {
	made, err := value(part(call(ctx, c, "create instance "+quoted(body.Name), func(ctx context.Context, api *oxide.Client) (*oxide.Instance, error) {
		return api.InstanceCreate(ctx, oxide.InstanceCreateParams{Project: oxide.NameOrId(project), Body: &body})
	})))

	// A rack that repeats what it was told would show the join token.
	if e, ok := errors.AsType[*Error](err); ok {
		e.Message = withoutUserData(e.Message, body.UserData)
	}

	return made, err
}

// tellsUserData is how much of the beginning of user data shows that more of it follows.
const tellsUserData = 16

// withoutUserData cuts a message off where it repeats user data, or a beginning of that.
func withoutUserData(message, data string) string {
	if data == "" {
		return message
	}

	before, _, found := strings.Cut(message, data[:min(len(data), tellsUserData)])
	if !found {
		return message
	}

	return before + "[user data]"
}

// StartInstance starts an instance. One that runs is no error.
func (c *Client) StartInstance(ctx context.Context, i oxide.Instance) (oxide.Instance, error) {
	return value(call(ctx, c, "start instance "+quoted(i.Name), func(ctx context.Context, api *oxide.Client) (*oxide.Instance, error) {
		return api.InstanceStart(ctx, oxide.InstanceStartParams{Instance: oxide.NameOrId(i.Id)})
	}))
}

// StopInstance stops an instance. One that is stopped is no error.
func (c *Client) StopInstance(ctx context.Context, i oxide.Instance) (oxide.Instance, error) {
	return value(call(ctx, c, "stop instance "+quoted(i.Name), func(ctx context.Context, api *oxide.Client) (*oxide.Instance, error) {
		return api.InstanceStop(ctx, oxide.InstanceStopParams{Instance: oxide.NameOrId(i.Id)})
	}))
}

// RebootInstance restarts an instance.
func (c *Client) RebootInstance(ctx context.Context, i oxide.Instance) (oxide.Instance, error) {
	return value(call(ctx, c, "reboot instance "+quoted(i.Name), func(ctx context.Context, api *oxide.Client) (*oxide.Instance, error) {
		return api.InstanceReboot(ctx, oxide.InstanceRebootParams{Instance: oxide.NameOrId(i.Id)})
	}))
}

// DeleteInstance deletes an instance. Its disks and floating IPs are let go of, and stay.
func (c *Client) DeleteInstance(ctx context.Context, i oxide.Instance) error {
	return do(ctx, c, "delete instance "+quoted(i.Name), func(ctx context.Context, api *oxide.Client) error {
		return api.InstanceDelete(ctx, oxide.InstanceDeleteParams{Instance: oxide.NameOrId(i.Id)})
	})
}

// Interfaces returns an instance's network interfaces.
func (c *Client) Interfaces(ctx context.Context, i oxide.Instance) ([]oxide.InstanceNetworkInterface, error) {
	return call(ctx, c, "list network interfaces of instance "+quoted(i.Name), func(ctx context.Context, api *oxide.Client) ([]oxide.InstanceNetworkInterface, error) {
		return api.InstanceNetworkInterfaceListAllPages(ctx, oxide.InstanceNetworkInterfaceListParams{Instance: oxide.NameOrId(i.Id)})
	})
}

// ExternalIPs returns an instance's external addresses.
func (c *Client) ExternalIPs(ctx context.Context, i oxide.Instance) ([]oxide.ExternalIp, error) {
	return call(ctx, c, "list external IPs of instance "+quoted(i.Name), func(ctx context.Context, api *oxide.Client) ([]oxide.ExternalIp, error) {
		page, err := api.InstanceExternalIpList(ctx, oxide.InstanceExternalIpListParams{Instance: oxide.NameOrId(i.Id)})
		if err != nil {
			return nil, err
		}

		return page.Items, nil
	})
}

// Disks returns all disks of a project.
func (c *Client) Disks(ctx context.Context, project string) ([]oxide.Disk, error) {
	return part(call(ctx, c, "list disks of project "+quoted(project), func(ctx context.Context, api *oxide.Client) ([]oxide.Disk, error) {
		return api.DiskListAllPages(ctx, oxide.DiskListParams{Project: oxide.NameOrId(project)})
	}))
}

// Disk returns a disk by its id.
func (c *Client) Disk(ctx context.Context, id string) (oxide.Disk, error) {
	return value(call(ctx, c, "look at disk "+quoted(id), func(ctx context.Context, api *oxide.Client) (*oxide.Disk, error) {
		return api.DiskView(ctx, oxide.DiskViewParams{Disk: oxide.NameOrId(id)})
	}))
}

// DiskNamed returns a disk by its name.
func (c *Client) DiskNamed(ctx context.Context, project, name string) (oxide.Disk, error) {
	return value(call(ctx, c, "look at disk "+quoted(name), func(ctx context.Context, api *oxide.Client) (*oxide.Disk, error) {
		return api.DiskView(ctx, oxide.DiskViewParams{Project: oxide.NameOrId(project), Disk: oxide.NameOrId(name)})
	}))
}

// CreateDisk makes a disk.
func (c *Client) CreateDisk(ctx context.Context, project string, body oxide.DiskCreate) (oxide.Disk, error) {
	return value(part(call(ctx, c, "create disk "+quoted(body.Name), func(ctx context.Context, api *oxide.Client) (*oxide.Disk, error) {
		return api.DiskCreate(ctx, oxide.DiskCreateParams{Project: oxide.NameOrId(project), Body: &body})
	})))
}

// DeleteDisk deletes a disk that nothing uses.
func (c *Client) DeleteDisk(ctx context.Context, d oxide.Disk) error {
	return do(ctx, c, "delete disk "+quoted(d.Name), func(ctx context.Context, api *oxide.Client) error {
		return api.DiskDelete(ctx, oxide.DiskDeleteParams{Disk: oxide.NameOrId(d.Id)})
	})
}

// StartWrites begins an import into a disk that was made for one.
func (c *Client) StartWrites(ctx context.Context, d oxide.Disk) error {
	return do(ctx, c, "begin the import to disk "+quoted(d.Name), func(ctx context.Context, api *oxide.Client) error {
		return api.DiskBulkWriteImportStart(ctx, oxide.DiskBulkWriteImportStartParams{Disk: oxide.NameOrId(d.Id)})
	})
}

// Write writes a part of an import. data is in base64.
func (c *Client) Write(ctx context.Context, d oxide.Disk, offset uint64, data string) error {
	return do(ctx, c, fmt.Sprintf("write byte %d and what follows to disk %s", offset, quoted(d.Name)), func(ctx context.Context, api *oxide.Client) error {
		return api.DiskBulkWriteImport(ctx, oxide.DiskBulkWriteImportParams{
			Disk: oxide.NameOrId(d.Id), Body: &oxide.ImportBlocksBulkWrite{Base64EncodedData: data, Offset: &offset},
		})
	})
}

// StopWrites ends an import.
func (c *Client) StopWrites(ctx context.Context, d oxide.Disk) error {
	return do(ctx, c, "end the import to disk "+quoted(d.Name), func(ctx context.Context, api *oxide.Client) error {
		return api.DiskBulkWriteImportStop(ctx, oxide.DiskBulkWriteImportStopParams{Disk: oxide.NameOrId(d.Id)})
	})
}

// Finalize makes a disk of an import that has ended, and a snapshot of it if that has a name.
func (c *Client) Finalize(ctx context.Context, d oxide.Disk, snapshot string) error {
	return do(ctx, c, "finalize disk "+quoted(d.Name), func(ctx context.Context, api *oxide.Client) error {
		return api.DiskFinalizeImport(ctx, oxide.DiskFinalizeImportParams{
			Disk: oxide.NameOrId(d.Id), Body: &oxide.FinalizeDisk{SnapshotName: oxide.Name(snapshot)},
		})
	})
}

// Snapshots returns all snapshots of a project.
func (c *Client) Snapshots(ctx context.Context, project string) ([]oxide.Snapshot, error) {
	return part(call(ctx, c, "list snapshots of project "+quoted(project), func(ctx context.Context, api *oxide.Client) ([]oxide.Snapshot, error) {
		return api.SnapshotListAllPages(ctx, oxide.SnapshotListParams{Project: oxide.NameOrId(project)})
	}))
}

// Snapshot returns a snapshot by name.
func (c *Client) Snapshot(ctx context.Context, project, name string) (oxide.Snapshot, error) {
	return value(call(ctx, c, "look at snapshot "+quoted(name), func(ctx context.Context, api *oxide.Client) (*oxide.Snapshot, error) {
		return api.SnapshotView(ctx, oxide.SnapshotViewParams{Project: oxide.NameOrId(project), Snapshot: oxide.NameOrId(name)})
	}))
}

// DeleteSnapshot deletes a snapshot. Images made of it stay.
func (c *Client) DeleteSnapshot(ctx context.Context, s oxide.Snapshot) error {
	return do(ctx, c, "delete snapshot "+quoted(s.Name), func(ctx context.Context, api *oxide.Client) error {
		return api.SnapshotDelete(ctx, oxide.SnapshotDeleteParams{Snapshot: oxide.NameOrId(s.Id)})
	})
}

// Images returns all images of a project, or of the silo when project is empty.
func (c *Client) Images(ctx context.Context, project string) ([]oxide.Image, error) {
	return part(call(ctx, c, "list images of "+whose(project), func(ctx context.Context, api *oxide.Client) ([]oxide.Image, error) {
		return api.ImageListAllPages(ctx, oxide.ImageListParams{Project: oxide.NameOrId(project)})
	}))
}

// Image returns an image of a project by name, or one of the silo when project is empty.
func (c *Client) Image(ctx context.Context, project, name string) (oxide.Image, error) {
	return value(call(ctx, c, "look at image "+quoted(name)+" of "+whose(project), func(ctx context.Context, api *oxide.Client) (*oxide.Image, error) {
		return api.ImageView(ctx, oxide.ImageViewParams{Project: oxide.NameOrId(project), Image: oxide.NameOrId(name)})
	}))
}

// CreateImage makes an image of a snapshot.
func (c *Client) CreateImage(ctx context.Context, project string, body oxide.ImageCreate) (oxide.Image, error) {
	return value(part(call(ctx, c, "create image "+quoted(body.Name), func(ctx context.Context, api *oxide.Client) (*oxide.Image, error) {
		return api.ImageCreate(ctx, oxide.ImageCreateParams{Project: oxide.NameOrId(project), Body: &body})
	})))
}

// PromoteImage makes a project's image one of the silo.
func (c *Client) PromoteImage(ctx context.Context, i oxide.Image) (oxide.Image, error) {
	return value(call(ctx, c, "promote image "+quoted(i.Name), func(ctx context.Context, api *oxide.Client) (*oxide.Image, error) {
		return api.ImagePromote(ctx, oxide.ImagePromoteParams{Image: oxide.NameOrId(i.Id)})
	}))
}

// DeleteImage deletes an image. Disks made of it stay.
func (c *Client) DeleteImage(ctx context.Context, i oxide.Image) error {
	return do(ctx, c, "delete image "+quoted(i.Name), func(ctx context.Context, api *oxide.Client) error {
		return api.ImageDelete(ctx, oxide.ImageDeleteParams{Image: oxide.NameOrId(i.Id)})
	})
}

// FloatingIPs returns all floating IPs of a project.
func (c *Client) FloatingIPs(ctx context.Context, project string) ([]oxide.FloatingIp, error) {
	return part(call(ctx, c, "list floating IPs of project "+quoted(project), func(ctx context.Context, api *oxide.Client) ([]oxide.FloatingIp, error) {
		return api.FloatingIpListAllPages(ctx, oxide.FloatingIpListParams{Project: oxide.NameOrId(project)})
	}))
}

// FloatingIP returns a floating IP by name.
func (c *Client) FloatingIP(ctx context.Context, project, name string) (oxide.FloatingIp, error) {
	return value(call(ctx, c, "look at floating IP "+quoted(name), func(ctx context.Context, api *oxide.Client) (*oxide.FloatingIp, error) {
		return api.FloatingIpView(ctx, oxide.FloatingIpViewParams{Project: oxide.NameOrId(project), FloatingIp: oxide.NameOrId(name)})
	}))
}

// CreateFloatingIP takes an address from a pool and keeps it.
func (c *Client) CreateFloatingIP(ctx context.Context, project string, body oxide.FloatingIpCreate) (oxide.FloatingIp, error) {
	return value(part(call(ctx, c, "create floating IP "+quoted(body.Name), func(ctx context.Context, api *oxide.Client) (*oxide.FloatingIp, error) {
		return api.FloatingIpCreate(ctx, oxide.FloatingIpCreateParams{Project: oxide.NameOrId(project), Body: &body})
	})))
}

// DetachFloatingIP takes a floating IP from the instance that has it.
func (c *Client) DetachFloatingIP(ctx context.Context, f oxide.FloatingIp) error {
	return do(ctx, c, "detach floating IP "+quoted(f.Name), func(ctx context.Context, api *oxide.Client) error {
		_, err := api.FloatingIpDetach(ctx, oxide.FloatingIpDetachParams{FloatingIp: oxide.NameOrId(f.Id)})

		return err
	})
}

// DeleteFloatingIP gives an address back.
func (c *Client) DeleteFloatingIP(ctx context.Context, f oxide.FloatingIp) error {
	return do(ctx, c, "delete floating IP "+quoted(f.Name), func(ctx context.Context, api *oxide.Client) error {
		return api.FloatingIpDelete(ctx, oxide.FloatingIpDeleteParams{FloatingIp: oxide.NameOrId(f.Id)})
	})
}

func whose(project string) string {
	if project == "" {
		return "the silo"
	}

	return "project " + quoted(project)
}

// value returns what p points to. Nothing at all in an answer that should have something is an error.
func value[T any](p *T, err error) (T, error) {
	switch {
	case err != nil:
		var none T

		return none, err
	case p == nil:
		var none T

		return none, fmt.Errorf("the rack's answer is empty")
	default:
		return *p, nil
	}
}

// IsID says whether text is an id and not a name, which it then cannot be.
func IsID(text string) bool {
	_, err := uuid.Parse(text)

	return err == nil && len(text) == 36
}

// Terminal says that a create was refused for what it asks, and not for the room there is, or for what somebody else has now and may let go of:
// it can never work as it is.
func Terminal(err error) error {
	if driver.KindOf(err) == driver.KindTransient && Invalid(err) && !taken(err) {
		return driver.Terminal(err)
	}

	return err
}
