//go:build real && linux

package guest_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/siderolabs/image-factory/pkg/schematic"
	"github.com/stretchr/testify/require"
	"github.com/ulikunitz/xz"

	"github.com/omni-infra/omni-infra-providers/sim/factory"
	"github.com/omni-infra/omni-infra-providers/sim/factory/image"
	"github.com/omni-infra/omni-infra-providers/sim/talos/internal/omnitest"
	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// builder keeps what it builds between runs, as its users do.
var builder = sync.OnceValue(func() *image.Builder {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}

	return &image.Builder{Dir: filepath.Join(cache, "image-factory-sim")}
})

// disk builds an image and returns a copy of it that a guest may write to.
func disk(t *testing.T, format string, customization schematic.Customization) string {
	t.Helper()

	path, err := builder().Path(t.Context(), factory.Image{
		ID: "a-schematic", Schematic: schematic.Schematic{Customization: customization},
		Version: "v1.13.5", Platform: "nocloud", Arch: "amd64", Format: format,
	})
	require.NoError(t, err)

	data, err := os.ReadFile(path)
	require.NoError(t, err)

	writable := filepath.Join(t.TempDir(), "disk."+format)
	require.NoError(t, os.WriteFile(writable, data, 0o600))

	return writable
}

// serve starts an Omni on loopback and returns it with its address as a guest sees it.
func serve(t *testing.T) (*omnitest.Omni, string) {
	t.Helper()

	listener := listen(t)

	o := omnitest.New()
	o.Serve(listener)
	t.Cleanup(o.Stop)

	return o, fmt.Sprintf("grpc://10.0.2.2:%d?jointoken=%s", listener.Addr().(*net.TCPAddr).Port, omnitest.Token)
}

func listen(t *testing.T) net.Listener {
	t.Helper()

	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	return listener
}

func joinConfig(api string) string {
	return "apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: " + api + "\n"
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)

	return ctx
}

func TestBIOSGuestWithSeedVolumeJoinsRebootsAndKeepsItsToken(t *testing.T) {
	o, api := serve(t)
	ctx := bounded(t)

	v := start(t, "-machine", "pc", "-uuid", strings.ToUpper(machineID),
		"-drive", "format=raw,if=virtio,file="+disk(t, "raw", schematic.Customization{}),
		"-drive", "media=cdrom,readonly=on,format=raw,file="+seedISO(t, map[string]string{
			"user-data": joinConfig(api), "meta-data": "local-hostname: node-1\n",
		}))

	report := omnitest.Await(ctx, t, o.Reports, "report")
	require.Equal(t, machineID, report.UUID)
	require.Equal(t, "v1.13.5", report.TalosVersion)
	require.Equal(t, "a-schematic", report.Schematic)
	require.Equal(t, "node-1", report.Hostname)
	require.Equal(t, "amd64", report.Arch)
	require.Len(t, report.Disks, 1)

	o.Commands <- talosapi.Message{Command: talosapi.CommandUniqueToken, Value: "unique"}
	omnitest.Await(ctx, t, o.Reports, "report with the unique token")

	o.Commands <- talosapi.Message{Command: talosapi.CommandReboot}
	require.Equal(t, talosapi.StageRebooting, omnitest.Await(ctx, t, o.Reports, "goodbye").Stage)

	again := omnitest.Await(ctx, t, o.Reports, "report after the reboot")
	require.NotEqual(t, report.BootID, again.BootID)

	calls := o.Calls()
	require.Len(t, calls, 3)
	require.Empty(t, calls[0].GetNodeUniqueToken())
	require.Equal(t, "unique", calls[1].GetNodeUniqueToken())
	require.Equal(t, "unique", calls[2].GetNodeUniqueToken(), "META is on the disk")

	v.control(t, "system_powerdown")
	require.Equal(t, talosapi.StageShuttingDown, omnitest.Await(ctx, t, o.Reports, "goodbye").Stage)
	v.awaitOff(ctx, t)
	require.NotContains(t, v.console.String(), omnitest.Token)
}

func TestUEFIGuestWithServedSeedJoinsAndObeysTheGuestAgent(t *testing.T) {
	o, api := serve(t)
	ctx := bounded(t)

	listener := listen(t)

	mux := http.NewServeMux()
	mux.HandleFunc("GET /seed/user-data", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, joinConfig(api)) })
	server := &http.Server{Handler: mux}

	go server.Serve(listener) //nolint:errcheck // Ends with Close.

	t.Cleanup(func() { require.NoError(t, server.Close()) })

	v := start(t, "-machine", "q35", "-uuid", machineID,
		"-smbios", fmt.Sprintf("type=1,serial=ds=nocloud-net;;s=http://10.0.2.2:%d/seed;;h=node-2", listener.Addr().(*net.TCPAddr).Port),
		"-drive", "format=qcow2,if=virtio,file="+disk(t, "qcow2", schematic.Customization{}),
		"-bios", "/usr/share/ovmf/OVMF.fd")

	report := omnitest.Await(ctx, t, o.Reports, "report")
	require.Equal(t, machineID, report.UUID)
	require.Equal(t, "node-2", report.Hostname)

	agent := dialUnix(t, filepath.Join(v.dir, "agent"))
	require.JSONEq(t, "7", string(agentCall(t, agent, `{"execute":"guest-sync-delimited","arguments":{"id":7}}`).Return))
	require.JSONEq(t, "{}", string(agentCall(t, agent, `{"execute":"guest-ping"}`).Return))
	require.Contains(t, string(agentCall(t, agent, `{"execute":"guest-network-get-interfaces"}`).Return), `"ip-address":"10.0.2.15"`)

	_, err := agent.Write([]byte(`{"execute":"guest-shutdown","arguments":{"mode":"powerdown"}}` + "\n"))
	require.NoError(t, err)
	require.Equal(t, talosapi.StageShuttingDown, omnitest.Await(ctx, t, o.Reports, "goodbye").Stage)
	v.awaitOff(ctx, t)
}

func TestBIOSGuestFromCDJoinsByTheKernelArgumentOfItsSchematic(t *testing.T) {
	o, api := serve(t)
	ctx := bounded(t)

	v := start(t, "-machine", "pc", "-uuid", machineID, "-boot", "d",
		"-cdrom", disk(t, "iso", schematic.Customization{ExtraKernelArgs: []string{"siderolink.api=" + api}}))

	require.Equal(t, machineID, omnitest.Await(ctx, t, o.Reports, "report").UUID)

	v.control(t, "system_powerdown")
	omnitest.Await(ctx, t, o.Reports, "goodbye")
	v.awaitOff(ctx, t)
}

func TestUEFIGuestFromCDFindsASeedOnFAT(t *testing.T) {
	o, api := serve(t)
	ctx := bounded(t)

	v := start(t, "-machine", "pc", "-uuid", machineID, "-bios", "/usr/share/ovmf/OVMF.fd",
		"-cdrom", disk(t, "iso", schematic.Customization{}),
		"-drive", "format=raw,if=virtio,readonly=on,file="+seedFAT(t, joinConfig(api)))

	require.Equal(t, machineID, omnitest.Await(ctx, t, o.Reports, "report").UUID)

	v.control(t, "system_powerdown")
	omnitest.Await(ctx, t, o.Reports, "goodbye")
	v.awaitOff(ctx, t)
}

func TestEveryFormatHoldsTheSameDisk(t *testing.T) {
	raw := disk(t, "raw", schematic.Customization{})

	want, err := os.ReadFile(raw)
	require.NoError(t, err)
	require.Less(t, len(want), 64<<20)

	for format, open := range map[string]func(io.Reader) (io.Reader, error){
		"raw.xz":  func(r io.Reader) (io.Reader, error) { return xz.NewReader(r) },
		"raw.zst": func(r io.Reader) (io.Reader, error) { return zstd.NewReader(r) },
		"raw.gz":  func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
	} {
		t.Run(format, func(t *testing.T) {
			packed, err := os.Open(disk(t, format, schematic.Customization{}))
			require.NoError(t, err)

			defer packed.Close()

			reader, err := open(packed)
			require.NoError(t, err)

			got, err := io.ReadAll(reader)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
		})
	}

	t.Run("raw.xz by xz itself", func(t *testing.T) {
		execute(t, "xz", "-t", disk(t, "raw.xz", schematic.Customization{}))
	})

	t.Run("qcow2", func(t *testing.T) {
		execute(t, "qemu-img", "compare", raw, disk(t, "qcow2", schematic.Customization{}))
	})
}

func TestFakeQCOW2IsOneThatQEMUReads(t *testing.T) {
	wanted := factory.Image{Version: "v1.13.5", Platform: "nocloud", Arch: "amd64", Format: "qcow2"}

	file, err := factory.Fake{Size: 3 << 20}.Open(t.Context(), wanted)
	require.NoError(t, err)

	data := make([]byte, 8<<20)
	n, err := file.Read(data)
	require.NoError(t, err)

	dir := t.TempDir()
	name := filepath.Join(dir, "fake.qcow2")
	require.NoError(t, os.WriteFile(name, data[:n], 0o600))

	raw := filepath.Join(dir, "fake.raw")
	execute(t, "qemu-img", "check", name)
	execute(t, "qemu-img", "convert", "-O", "raw", name, raw)

	content, err := os.ReadFile(raw)
	require.NoError(t, err)
	require.Len(t, content, 3<<20)
	require.True(t, strings.HasPrefix(string(content), factory.FakeLabel(wanted)))
}
