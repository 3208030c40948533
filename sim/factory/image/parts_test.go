package image

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/siderolabs/image-factory/pkg/schematic"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/factory"
)

type entry struct {
	name         string
	mode         uint64
	major, minor uint64
	data         string
}

// unpack reads an archive by the format's description.
func unpack(t *testing.T, data []byte) []entry {
	t.Helper()

	var entries []entry

	at := 0
	take := func(n int) []byte {
		require.LessOrEqual(t, at+n, len(data))

		part := data[at : at+n]
		at += n

		return part
	}

	for {
		require.Zero(t, at%4, "headers are aligned")
		require.Equal(t, "070701", string(take(6)))

		var fields [13]uint64

		for i := range fields {
			value, err := strconv.ParseUint(string(take(8)), 16, 32)
			require.NoError(t, err)

			fields[i] = value
		}

		name := string(take(int(fields[11])))
		require.True(t, strings.HasSuffix(name, "\x00"))

		take(-at & 3)

		content := string(take(int(fields[6])))

		take(-at & 3)

		if name == "TRAILER!!!\x00" {
			require.Empty(t, bytes.Trim(data[at:], "\x00"), "only padding follows")

			return entries
		}

		entries = append(entries, entry{
			name: strings.TrimSuffix(name, "\x00"), mode: fields[1], major: fields[9], minor: fields[10], data: content,
		})
	}
}

func TestArchiveHasTheDirectoriesOfItsFilesBeforeThem(t *testing.T) {
	var content bytes.Buffer

	a := newArchive(&content)
	a.console()
	a.file("init", 0o755, []byte("#!"))
	a.file("etc/x/y", 0o600, []byte("12345"))
	a.file("etc/x/z", 0o600, nil)
	a.dir("etc")
	require.NoError(t, a.close())

	require.Equal(t, []entry{
		{name: "dev", mode: 0o040755},
		{name: "dev/console", mode: 0o020600, major: 5, minor: 1},
		{name: "init", mode: 0o100755, data: "#!"},
		{name: "etc", mode: 0o040755},
		{name: "etc/x", mode: 0o040755},
		{name: "etc/x/y", mode: 0o100600, data: "12345"},
		{name: "etc/x/z", mode: 0o100600},
	}, unpack(t, content.Bytes()))
}

func TestModulesComeAfterThoseTheyDependOn(t *testing.T) {
	dir := t.TempDir()

	write := func(name, depends string) {
		file := filepath.Join(dir, name+".ko")
		require.NoError(t, os.WriteFile(file, []byte("\x7fELF\x00license=GPL\x00depends="+depends+"\x00name="+name+"\x00"), 0o600))
	}

	for _, name := range modules {
		write(name, map[string]string{"virtio_net": "net_failover,virtio-ring", "virtio_pci": "virtio-ring"}[name])
	}

	write("virtio-ring", "")
	write("net_failover", "failover")

	all, err := listModules(dir)
	require.NoError(t, err)

	_, err = moduleFiles(all)
	require.EqualError(t, err, "module virtio_net: module net_failover: the kernel has no module failover")

	write("failover", "")

	all, err = listModules(dir)
	require.NoError(t, err)

	files, err := moduleFiles(all)
	require.NoError(t, err)

	var names []string
	for _, file := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".ko"))
	}

	require.Equal(t, []string{"virtio-ring", "virtio_pci", "failover", "net_failover", "virtio_net"}, names[:5])
	require.Len(t, names, len(modules)+3)
}

func TestBootRecordHasAnActiveEFIPartitionAndMETA(t *testing.T) {
	record := bootRecord(bytes.Repeat([]byte{0x90}, 512), 40*mib, true)
	require.Len(t, record, 512)
	require.Equal(t, []byte{0x55, 0xaa}, record[510:])
	require.Equal(t, byte(0x90), record[439])
	require.Zero(t, record[440], "boot code ends before the disk's signature")

	first, second := record[446:462], record[462:478]
	require.Equal(t, []byte{0x80, 0xef}, []byte{first[0], first[4]})
	require.Equal(t, uint32(2048), binary.LittleEndian.Uint32(first[8:]))
	require.Equal(t, uint32(40*2048), binary.LittleEndian.Uint32(first[12:]))
	require.Equal(t, []byte{0, 0xda}, []byte{second[0], second[4]})
	require.Equal(t, uint32(41*2048), binary.LittleEndian.Uint32(second[8:]))

	require.Equal(t, make([]byte, 16), bootRecord(nil, mib, false)[462:478])
}

func TestKernelArgumentsOfTheSchematicComeLast(t *testing.T) {
	image := factory.Image{Platform: "nocloud"}
	image.Schematic.Customization.ExtraKernelArgs = []string{"siderolink.api=grpc://x?jointoken=y", "quiet"}

	line, err := cmdline(image)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(line, "talos.platform=nocloud "))
	require.True(t, strings.HasSuffix(line, " siderolink.api=grpc://x?jointoken=y quiet"))

	image.Schematic.Customization.ExtraKernelArgs = []string{"a\nKERNEL /evil"}
	_, err = cmdline(image)
	require.ErrorContains(t, err, `extraKernelArgs: "a\nKERNEL /evil" has a control character`)
}

func TestImageBringsWhatMakesItDifferent(t *testing.T) {
	image := factory.Image{ID: "abc", Version: "v1.13.5"}
	image.Schematic.Customization = schematic.Customization{EmbeddedMachineConfiguration: "kind: SideroLinkConfig\n"}

	data, err := (&Builder{Roots: []byte("PEM")}).ownInitrd(image)
	require.NoError(t, err)
	require.Zero(t, len(data)%sector)

	require.Equal(t, []entry{
		{name: "etc", mode: 0o040755},
		{name: "etc/image.json", mode: 0o100644, data: `{"talos_version":"v1.13.5","schematic":"abc"}`},
		{name: "etc/config.yaml", mode: 0o100600, data: "kind: SideroLinkConfig\n"},
		{name: "etc/roots.pem", mode: 0o100644, data: "PEM"},
	}, unpack(t, data))
}

func TestOtherArchitecturesAndSecureBootAreNoImages(t *testing.T) {
	for _, image := range []factory.Image{{Arch: "arm64"}, {Arch: "amd64", SecureBoot: true}} {
		_, err := (&Builder{}).Open(t.Context(), image)
		require.ErrorIs(t, err, factory.ErrNoImage)
	}
}

func FuzzDependencies(f *testing.F) {
	f.Add([]byte("\x00depends=a,b-c\x00"))

	f.Fuzz(func(t *testing.T, module []byte) {
		for _, name := range dependencies(module) {
			require.NotContains(t, name, "\x00")
			require.NotContains(t, name, "-")
		}
	})
}

func TestInitThatTheGuestCouldNotStartIsRefused(t *testing.T) {
	builder := Builder{Dir: t.TempDir(), Init: "/bin/sh"}

	_, err := builder.init(t.Context())
	require.ErrorContains(t, err, `"/bin/sh" needs shared libraries`)
	require.ErrorContains(t, err, "CGO_ENABLED=0")

	builder.Init = filepath.Join(t.TempDir(), "init")
	require.NoError(t, os.WriteFile(builder.Init, []byte("#!/bin/sh\n"), 0o600))

	_, err = builder.init(t.Context())
	require.ErrorContains(t, err, "read the guest's init")
}
