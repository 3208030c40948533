//go:build linux

package guest

import (
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omni-infra/omni-infra-providers/sim/talos"
	"github.com/omni-infra/omni-infra-providers/sim/talos/meta"
	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// settleTime is how long disks may take to appear after their drivers were loaded.
const settleTime = 3 * time.Second

const seedMount = "/seed"

// findSeed returns the files of the volume labelled cidata, ISO 9660 or FAT. Without one the error is fs.ErrNotExist, once
// the disks have had time to appear.
func findSeed(log *slog.Logger, deadline time.Time) (fs.FS, error) {
	for {
		for _, device := range blockDevices() {
			label, kind := readLabel(device)
			if !talos.IsSeedLabel(label) {
				continue
			}

			log.Info("seed found", "device", device, "file system", kind)

			return copyVolume(device, kind)
		}

		if time.Now().After(deadline) {
			return nil, fs.ErrNotExist
		}

		time.Sleep(100 * time.Millisecond)
	}
}

// copyVolume reads the top of a file system into memory, so that nothing stays mounted.
func copyVolume(device, kind string) (fs.FS, error) {
	if err := os.MkdirAll(seedMount, 0o755); err != nil {
		return nil, err
	}

	if err := unix.Mount(device, seedMount, kind, unix.MS_RDONLY, ""); err != nil {
		return nil, fmt.Errorf("mount %s as %s: %w", device, kind, err)
	}
	defer unix.Unmount(seedMount, unix.MNT_DETACH) //nolint:errcheck // Read-only.

	entries, err := os.ReadDir(seedMount)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", device, err)
	}

	files := fstest.MapFS{}

	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}

		data, err := os.ReadFile(filepath.Join(seedMount, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", entry.Name(), device, err)
		}

		files[entry.Name()] = &fstest.MapFile{Data: data}
	}

	return files, nil
}

func blockDevices() []string {
	entries, err := os.ReadDir("/sys/class/block")
	if err != nil {
		return nil
	}

	var devices []string

	for _, entry := range entries {
		if name := entry.Name(); !strings.HasPrefix(name, "ram") && !strings.HasPrefix(name, "loop") {
			devices = append(devices, "/dev/"+name)
		}
	}

	return devices
}

func readLabel(device string) (label, kind string) {
	file, err := os.Open(device)
	if err != nil {
		return "", ""
	}
	defer file.Close() //nolint:errcheck // Only read from.

	head := make([]byte, 34<<10)
	n, _ := io.ReadFull(file, head) // A short disk is simply no seed.

	return volumeLabel(head[:n])
}

// volumeLabel reads the label and the kind of the file system that begins with head: ISO 9660 (ECMA-119) or FAT.
func volumeLabel(head []byte) (label, kind string) {
	const (
		isoDescriptor = 32 << 10
		fat16, fat32  = 54, 82
	)

	switch {
	case len(head) >= isoDescriptor+72 && string(head[isoDescriptor+1:isoDescriptor+6]) == "CD001":
		return strings.TrimRight(string(head[isoDescriptor+40:isoDescriptor+72]), " \x00"), "iso9660"
	case len(head) >= 512 && string(head[fat16:fat16+3]) == "FAT":
		return strings.TrimRight(string(head[fat16-11:fat16]), " \x00"), "vfat"
	case len(head) >= 512 && string(head[fat32:fat32+3]) == "FAT":
		return strings.TrimRight(string(head[fat32-11:fat32]), " \x00"), "vfat"
	}

	return "", ""
}

// findMeta returns the META area of the boot disk, or one in memory when no disk has one that can be written.
func findMeta(log *slog.Logger, deadline time.Time) talos.Meta {
	for {
		for _, device := range blockDevices() {
			if area := openMeta(device); area != nil {
				log.Info("META found", "device", device)

				return area
			}
		}

		if time.Now().After(deadline) {
			log.Info("no META on any disk, it will not outlive this boot")

			return &meta.Memory{}
		}

		time.Sleep(100 * time.Millisecond)
	}
}

// openMeta keeps the device open when it has an area, for as long as the machine is up.
func openMeta(device string) *meta.Area {
	file, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return nil
	}

	area, err := meta.Open(file)
	if err != nil {
		file.Close() //nolint:errcheck // Nothing was written.

		return nil
	}

	return area
}

func disks() []talosapi.Disk {
	var list []talosapi.Disk

	entries, _ := os.ReadDir("/sys/block")

	for _, entry := range entries {
		name := entry.Name()
		sectors, err := strconv.ParseUint(readLine("/sys/block/"+name+"/size"), 10, 64)

		if err != nil || sectors == 0 || strings.HasPrefix(name, "ram") || strings.HasPrefix(name, "loop") || strings.HasPrefix(name, "sr") {
			continue
		}

		list = append(list, talosapi.Disk{Name: name, Size: sectors * 512})
	}

	return list
}

func memoryMiB() int {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}

	return int(info.Totalram * uint64(info.Unit) >> 20)
}
