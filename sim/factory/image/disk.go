package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/omni-infra/omni-infra-providers/sim/factory"
	"github.com/omni-infra/omni-infra-providers/sim/talos/guest"
	"github.com/omni-infra/omni-infra-providers/sim/talos/meta"
)

// The disk has a master boot record, a FAT partition that begins at 1 MiB and that both firmwares boot from, and after it one
// of 1 MiB that holds META. An emulated hard disk on a CD has no META: firmware allows it one partition, and it cannot be written.
const (
	mib        = 1 << 20
	sector     = 512
	bootStart  = mib
	metaSize   = mib
	typeEFI    = 0xef
	typeNoFS   = 0xda
	active     = 0x80
	tableStart = 446
)

// cmdline returns the kernel command line of an image.
func cmdline(image factory.Image) (string, error) {
	args := []string{"talos.platform=" + image.Platform, "console=tty1", "console=ttyS0", "net.ifnames=0", "quiet", "panic=10"}

	for _, arg := range image.Schematic.Customization.ExtraKernelArgs {
		if strings.ContainsFunc(arg, func(r rune) bool { return r < ' ' }) {
			return "", fmt.Errorf("extraKernelArgs: %q has a control character", arg)
		}

		args = append(args, arg)
	}

	return strings.Join(args, " "), nil
}

// ownInitrd returns the part of the initramfs that makes one image different from another. It goes before the compressed part,
// for the kernel takes archives one after the other.
func (b *Builder) ownInitrd(image factory.Image) ([]byte, error) {
	about, err := json.Marshal(guest.Image{TalosVersion: image.Version, Schematic: image.ID})
	if err != nil {
		return nil, err
	}

	var content bytes.Buffer

	packed := newArchive(&content)
	packed.file(strings.TrimPrefix(guest.ImageFile, "/"), 0o644, about)

	if config := image.Schematic.Customization.EmbeddedMachineConfiguration; config != "" {
		packed.file(strings.TrimPrefix(guest.EmbeddedFile, "/"), 0o600, []byte(config))
	}

	if len(b.Roots) > 0 {
		packed.file(strings.TrimPrefix(guest.RootsFile, "/"), 0o644, b.Roots)
	}

	if err = packed.close(); err != nil {
		return nil, err
	}

	return append(content.Bytes(), make([]byte, -content.Len()&(sector-1))...), nil
}

// writeFAT writes the boot file system at offset into the file called name, which is large enough.
func (b *Builder) writeFAT(ctx context.Context, name string, offset, size int64, parts parts, image factory.Image, work string) error {
	args, err := cmdline(image)
	if err != nil {
		return err
	}

	initrd, err := b.initrd(parts, image)
	if err != nil {
		return err
	}

	files := map[string][]byte{
		"initrd.img":   initrd,
		"syslinux.cfg": []byte("DEFAULT talos\nPROMPT 0\nTIMEOUT 1\nLABEL talos\nKERNEL /vmlinuz\nINITRD /initrd.img\nAPPEND " + args + "\n"),
		"loader.conf":  []byte("timeout 0\ndefault talos.conf\n"),
		"talos.conf":   []byte("title Talos (" + image.Version + ")\nlinux /vmlinuz\ninitrd /initrd.img\noptions " + args + "\n"),
	}

	for file, data := range files {
		if err = os.WriteFile(filepath.Join(work, file), data, 0o644); err != nil {
			return err
		}
	}

	volume := fmt.Sprintf("%s@@%d", name, offset)

	for _, step := range [][]string{
		{"mformat", "-i", volume, "-T", fmt.Sprint(size / sector), "-H", fmt.Sprint(offset / sector), "-v", "TALOS", "::"},
		{"mmd", "-i", volume, "::/EFI", "::/EFI/BOOT", "::/loader", "::/loader/entries"},
		{"mcopy", "-i", volume, parts.kernel, "::/vmlinuz"},
		{"mcopy", "-i", volume, filepath.Join(work, "initrd.img"), filepath.Join(work, "syslinux.cfg"), "::/"},
		{"mcopy", "-i", volume, filepath.Join(work, "loader.conf"), "::/loader/"},
		{"mcopy", "-i", volume, filepath.Join(work, "talos.conf"), "::/loader/entries/"},
		{"mcopy", "-i", volume, systemdBoot.path, "::/EFI/BOOT/BOOTX64.EFI"},
	} {
		if err = run(ctx, nil, step[0], step[1:]...); err != nil {
			return err
		}
	}

	return nil
}

func (b *Builder) initrd(parts parts, image factory.Image) ([]byte, error) {
	own, err := b.ownInitrd(image)
	if err != nil {
		return nil, err
	}

	common, err := os.ReadFile(parts.initrd)
	if err != nil {
		return nil, err
	}

	return append(own, common...), nil
}

// bootSize is how large the boot file system has to be.
func bootSize(parts parts) (int64, error) {
	size := int64(2 * mib)

	for _, file := range []string{parts.kernel, parts.initrd, systemdBoot.path} {
		info, err := os.Stat(file)
		if err != nil {
			return 0, err
		}

		size += info.Size()
	}

	return (size + mib - 1) / mib * mib, nil
}

// writeDisk writes the raw disk image, bootable with BIOS and UEFI. Without META it has one partition.
func (b *Builder) writeDisk(ctx context.Context, name string, parts parts, image factory.Image, work string, withMeta bool) error {
	size, err := bootSize(parts)
	if err != nil {
		return err
	}

	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // Closed before the end as well.

	length := bootStart + size
	if withMeta {
		length += metaSize
	}

	if err = file.Truncate(length); err != nil {
		return err
	}

	if err = b.writeFAT(ctx, name, bootStart, size, parts, image, work); err != nil {
		return err
	}

	if err = run(ctx, nil, "syslinux", "--offset", fmt.Sprint(bootStart), "--install", name); err != nil {
		return err
	}

	code, err := os.ReadFile(mbrCode.path)
	if err != nil {
		return err
	}

	if _, err = file.WriteAt(bootRecord(code, size, withMeta), 0); err != nil {
		return err
	}

	if !withMeta {
		return file.Close()
	}

	values := map[uint8]string{}
	for _, value := range image.Schematic.Customization.Meta {
		values[value.Key] = value.Value
	}

	if err = meta.Format(area{file, bootStart + size}, values); err != nil {
		return err
	}

	return file.Close()
}

// bootRecord returns the first sector: boot code and the table of partitions.
func bootRecord(code []byte, size int64, withMeta bool) []byte {
	record := make([]byte, sector)
	copy(record[:440], code)

	entry := func(i int, flag, kind byte, start, size int64) {
		e := record[tableStart+16*i:]
		e[0], e[4] = flag, kind
		copy(e[1:4], []byte{0xfe, 0xff, 0xff}) // Cylinders are not used: see the sector numbers.
		copy(e[5:8], []byte{0xfe, 0xff, 0xff})
		binary.LittleEndian.PutUint32(e[8:], uint32(start/sector))
		binary.LittleEndian.PutUint32(e[12:], uint32(size/sector))
	}

	entry(0, active, typeEFI, bootStart, size)

	if withMeta {
		entry(1, 0, typeNoFS, bootStart+size, metaSize)
	}

	record[510], record[511] = 0x55, 0xaa

	return record
}

// area is a file from an offset on.
type area struct {
	file   *os.File
	offset int64
}

func (a area) ReadAt(p []byte, off int64) (int, error)  { return a.file.ReadAt(p, a.offset+off) }
func (a area) WriteAt(p []byte, off int64) (int, error) { return a.file.WriteAt(p, a.offset+off) }
