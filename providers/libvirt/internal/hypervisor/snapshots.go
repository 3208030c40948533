package hypervisor

import (
	"context"
	"fmt"
	"path"
	"slices"

	"go.uber.org/zap"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// The provider makes no snapshots, but operators do, by hand. What libvirt keeps for them itself goes with the domain; an external
// snapshot also makes files beside the disks: an overlay for each, on which the domain goes on, and one with the memory.
//
// An overlay is the machine's when the domain, or a snapshot of it, has it for a disk, and it lies on a disk of the machine. A file
// with memory is the machine's when a snapshot of the domain says that it made it.

// mostLayers bounds how deep an overlay is followed.
const mostLayers = 200

// snapshotFiles are the paths that a domain and its snapshots name.
type snapshotFiles struct {
	disks, memory []string
}

// removeSnapshots deletes the files of the domain's external snapshots. The domain has to be off, and its disks have to be there.
func (h *Host) removeSnapshots(ctx context.Context, ref driver.Ref, own *domain) error {
	files, err := h.snapshotFiles(ctx, ref)
	if err != nil {
		return err
	}

	isOwn, err := h.diskOf(ctx, own)
	if err != nil {
		return err
	}

	files.disks = slices.DeleteFunc(files.disks, isOwn)

	if len(files.disks) == 0 && len(files.memory) == 0 {
		return nil
	}

	// libvirt sees the files that QEMU has made when it looks for them.
	pools := own.mark.Pools()
	for _, v := range own.mark.Volumes {
		pools = append(pools, v.Pool)
	}

	slices.Sort(pools)

	for _, pool := range slices.Compact(pools) {
		if err := h.refreshIfIdle(ctx, pool); err != nil && !driver.IsNotFound(err) {
			return err
		}
	}

	doomed := files.memory

	for _, file := range files.disks {
		layers, err := h.layers(ctx, own, isOwn, file)
		if err != nil {
			return err
		}

		doomed = append(doomed, layers...)
	}

	slices.Sort(doomed)

	for _, file := range slices.Compact(doomed) {
		if err := h.deleteFile(ctx, ref, file); err != nil {
			return err
		}
	}

	return nil
}

// diskOf returns what says whether a file is a volume that the provider has made for the domain, or adopted with it. The names of the
// former tell; those of the latter may be somebody else's as well, so that where they are counts.
func (h *Host) diskOf(ctx context.Context, own *domain) (func(file string) bool, error) {
	adopted := map[string]bool{}

	for _, v := range own.mark.Volumes {
		at, err := h.locate(ctx, v)
		if driver.IsNotFound(err) {
			continue
		}

		if err != nil {
			return nil, err
		}

		adopted[at] = true
	}

	return func(file string) bool {
		return adopted[file] || len(machine.VolumesOf(own.mark.Ref(), []string{path.Base(file)})) > 0
	}, nil
}

// snapshotFiles reads what the domain has for disks, now and when it starts again, and what its snapshots have made.
func (h *Host) snapshotFiles(ctx context.Context, ref driver.Ref) (snapshotFiles, error) {
	return domainCall(ctx, h, ref, "list snapshots of", func(_ connection.Connect, dom connection.Domain) (snapshotFiles, error) {
		var files snapshotFiles

		desc, err := dom.GetXMLDesc(libvirt.DOMAIN_XML_INACTIVE)
		if err != nil {
			return files, err
		}

		disks, err := disksOf(desc)
		if err != nil {
			return files, err
		}

		for _, disk := range disks {
			if disk.path != "" {
				files.disks = append(files.disks, disk.path)
			}
		}

		snapshots, err := dom.ListAllSnapshots(0)
		if connection.Is(err, libvirt.ERR_NO_SUPPORT, libvirt.ERR_OPERATION_UNSUPPORTED) {
			return files, nil
		}

		if err != nil {
			return files, err
		}

		for i := range snapshots {
			desc, err := snapshots[i].GetXMLDesc(0)
			_ = snapshots[i].Free()

			if connection.Is(err, libvirt.ERR_NO_DOMAIN_SNAPSHOT) {
				continue
			}

			if err != nil {
				return files, err
			}

			var doc libvirtxml.DomainSnapshot
			if err := doc.Unmarshal(desc); err != nil {
				return files, fmt.Errorf("read the description of a snapshot: %w", err)
			}

			if doc.Memory != nil && doc.Memory.Snapshot == "external" && doc.Memory.File != "" {
				files.memory = append(files.memory, doc.Memory.File)
			}

			if doc.Disks == nil {
				continue
			}

			for _, disk := range doc.Disks.Disks {
				if disk.Snapshot == "external" && disk.Source != nil && disk.Source.File != nil {
					files.disks = append(files.disks, disk.Source.File.File)
				}
			}
		}

		return files, nil
	})
}

// layers returns the overlays from a file down to a disk of the machine, or none when it does not lie on one.
func (h *Host) layers(ctx context.Context, own *domain, isOwn func(file string) bool, file string) ([]string, error) {
	var layers []string

	for at := file; len(layers) < mostLayers; {
		if isOwn(at) {
			return layers, nil
		}

		layers = append(layers, at)

		below, err := h.backing(ctx, at)
		if err != nil {
			return nil, err
		}

		if below == "" {
			h.config.Logger.Info("disk is not the machine's, and left alone", zap.String("request", own.mark.Request), zap.String("domain", own.name), zap.String("file", file))

			return nil, nil
		}

		at = below
	}

	return nil, nil
}

// backing returns what a volume lies on; nothing for what is no volume, or gone.
func (h *Host) backing(ctx context.Context, file string) (string, error) {
	below, err := connection.Call(ctx, h.conn, fmt.Sprintf("look up volume %q", file), func(c connection.Connect) (string, error) {
		v, err := c.LookupStorageVolByPath(file)
		if err != nil {
			return "", err
		}

		defer func() { _ = v.Free() }()

		desc, err := v.GetXMLDesc(0)
		if err != nil {
			return "", err
		}

		var doc libvirtxml.StorageVolume
		if err := doc.Unmarshal(desc); err != nil {
			return "", fmt.Errorf("read its description: %w", err)
		}

		if doc.BackingStore == nil {
			return "", nil
		}

		return doc.BackingStore.Path, nil
	})
	if driver.IsNotFound(err) {
		return "", nil
	}

	return below, err
}

// deleteFile deletes a volume by its path. A file outside of the storage pools is out of the provider's reach.
func (h *Host) deleteFile(ctx context.Context, ref driver.Ref, file string) error {
	err := connection.Do(ctx, h.conn, fmt.Sprintf("delete volume %q of a snapshot", file), func(c connection.Connect) error {
		v, err := c.LookupStorageVolByPath(file)
		if err != nil {
			return err
		}

		defer func() { _ = v.Free() }()

		return v.Delete(0)
	})
	if driver.IsNotFound(err) {
		h.config.Logger.Warn("a snapshot's file is in no storage pool, or gone; if it is there, remove it by hand", zap.String("request", ref.RequestID), zap.String("file", file))

		return nil
	}

	return err
}
