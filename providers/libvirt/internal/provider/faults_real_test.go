//go:build real

package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// restartLibvirtd ends the daemon and starts another; guests stay.
func restartLibvirtd(t testing.TB) {
	t.Helper()

	stopLibvirtd(t)
	startLibvirtd(t)
}

func libvirtdPID(t testing.TB) int {
	t.Helper()

	text, err := os.ReadFile("/run/libvirt/libvirtd.pid")
	require.NoError(t, err)

	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)

	return pid
}

func stopLibvirtd(t testing.TB) {
	t.Helper()

	pid := libvirtdPID(t)
	require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }, 20*time.Second, 50*time.Millisecond)
}

func startLibvirtd(t testing.TB, args ...string) {
	t.Helper()

	run(t, append([]string{"libvirtd", "-d", "-p", "/run/libvirt/libvirtd.pid"}, args...)...)
	require.Eventually(t, func() bool {
		return exec.CommandContext(context.WithoutCancel(t.Context()), "virsh", "-c", "qemu:///system", "version").Run() == nil
	}, 20*time.Second, 100*time.Millisecond)
}

func TestConnectionComesBackAfterRestartOfLibvirtd(t *testing.T) {
	pool, _ := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	req := newRequest(t, "restart", classData(pool))

	require.NoError(t, provision(t.Context(), d, req, new(testImage)))

	looks := make(chan struct{}, 10)

	go func() {
		_ = d.Watch(t.Context(), req.ProviderID, func(ref driver.Ref) { // Its end is the test's.
			if ref.RequestID == "" {
				looks <- struct{}{}
			}
		})
	}()

	<-looks
	stopLibvirtd(t)

	err := d.Check(t.Context())
	require.ErrorContains(t, err, `connect to libvirt at "qemu:///system"`)
	require.ErrorContains(t, err, "check that the daemon runs")

	startLibvirtd(t)
	require.Eventually(t, func() bool { return d.Check(t.Context()) == nil }, 20*time.Second, 100*time.Millisecond)

	select {
	case <-looks:
	case <-time.After(30 * time.Second):
		require.Fail(t, "events may be missing, and nobody is told to look")
	}

	found, err := d.Find(t.Context(), req.Ref)
	require.NoError(t, err)
	require.Equal(t, driver.PowerOn, found.Power)
	remove(t, d, req.Ref)
}

func TestUploadThatLosesLibvirtdIsMadeAgain(t *testing.T) {
	pool, dir := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	req := newRequest(t, "upload", classData(pool))

	image := &testImage{open: func(content io.Reader) io.Reader {
		return io.MultiReader(io.LimitReader(content, 1<<20+1), readerFunc(func([]byte) (int, error) {
			restartLibvirtd(t)

			return 0, io.EOF
		}), content)
	}}

	require.Error(t, provision(t.Context(), d, req, image))

	require.Eventually(t, func() bool { return d.Check(t.Context()) == nil }, 20*time.Second, 100*time.Millisecond)

	image.open = nil
	require.NoError(t, provision(t.Context(), d, req, image))
	require.Len(t, files(t, dir), 4, "nothing is left of the broken upload")
	remove(t, d, req.Ref)
	require.Empty(t, files(t, dir))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestImageThatIsCutShortIsNotUsed(t *testing.T) {
	pool, dir := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	req := newRequest(t, "short", classData(pool))

	for name, failure := range map[string]error{"cut": io.ErrUnexpectedEOF, "stalled": errors.New("no data for 30s")} {
		image := &testImage{open: func(content io.Reader) io.Reader {
			return io.MultiReader(io.LimitReader(content, 1000), readerFunc(func([]byte) (int, error) { return 0, failure }))
		}}

		require.ErrorIs(t, provision(t.Context(), d, req, image), failure, name)
		require.Empty(t, files(t, dir), name)
	}

	empty := &testImage{open: func(io.Reader) io.Reader { return strings.NewReader("") }}
	require.ErrorContains(t, provision(t.Context(), d, req, empty), "there is nothing to upload")
	require.Empty(t, files(t, dir))
}

func TestRequestsShareOneUploadThoughTheFirstGivesUp(t *testing.T) {
	const count = 10

	pool, dir := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	started, proceed, told := make(chan struct{}), make(chan struct{}), make(chan struct{}, count)

	image := &testImage{open: func(content io.Reader) io.Reader {
		return io.MultiReader(readerFunc(func([]byte) (int, error) {
			close(started)
			<-proceed

			return 0, io.EOF
		}), content)
	}}

	requests := make([]driver.Request, count)
	results := make(chan error, count)
	first, giveUp := context.WithCancel(t.Context())

	for i := range requests {
		requests[i] = newRequest(t, fmt.Sprintf("share-%d", i), classData(pool))

		go func() {
			ctx := t.Context()
			if i == 0 {
				ctx = first
			} else {
				<-started
			}

			var once sync.Once

			results <- provisionTelling(ctx, d, requests[i], image, func(string) { once.Do(func() { told <- struct{}{} }) })
		}()
	}

	<-started

	// All wait for the upload: each has been told of it.
	for range count {
		<-told
	}

	giveUp()
	require.ErrorIs(t, <-results, context.Canceled)
	close(proceed)

	for range count - 1 {
		require.NoError(t, <-results)
	}

	require.EqualValues(t, 1, image.opened.Load())
	require.Len(t, domainNames(t), count-1)

	var group sync.WaitGroup

	for _, req := range requests {
		group.Go(func() {
			for {
				done, err := d.Remove(t.Context(), req.Ref)
				if done || !assert.NoError(t, err) {
					return
				}
			}
		})
	}

	group.Wait()
	sweepImages(t, d, requests[0].ProviderID)
	require.Empty(t, domainNames(t))
	require.Empty(t, files(t, dir))
}

func TestStartThatFailedWorksOnceTheCauseIsGone(t *testing.T) {
	pool, _ := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	name := "lab-" + nameHash(t)[:6]
	file := filepath.Join(t.TempDir(), "network.xml")

	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `<network><name>%s</name><bridge name='%s'/></network>`, name, name), 0o600))
	virsh(t, "net-define", file)
	t.Cleanup(func() { virsh(t, "net-undefine", name) })

	req := newRequest(t, "network", strings.Replace(classData(pool), "type: user", "network_name: "+name, 1))

	require.ErrorContains(t, provision(t.Context(), d, req, new(testImage)), "virsh net-start "+name)

	virsh(t, "net-start", name)

	plan, err := d.Plan(t.Context(), req)
	require.NoError(t, err)

	virsh(t, "net-destroy", name)

	for _, phase := range plan.Phases {
		if err = phase.Ensure(t.Context(), newTask(req, new(testImage))); err != nil {
			break
		}
	}

	require.ErrorContains(t, err, fmt.Sprintf("start domain %q", machine.NamesOf(req.Ref).Domain))
	require.ErrorContains(t, err, "is not active")
	require.Equal(t, driver.KindTransient, driver.KindOf(err))

	virsh(t, "net-start", name)
	require.NoError(t, provision(t.Context(), d, req, new(testImage)))

	mac := req.Identity.MAC(0).String()
	require.Contains(t, virsh(t, "domiflist", machine.NamesOf(req.Ref).Domain), mac)
	remove(t, d, req.Ref)
	virsh(t, "net-destroy", name)
}

func TestTooLittleMemoryIsSaidWithNumbers(t *testing.T) {
	pool, _ := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	req := newRequest(t, "memory", strings.Replace(classData(pool), "memory: 128", "memory: 16777216", 1))

	err := provision(t.Context(), d, req, new(testImage))
	require.ErrorContains(t, err, "memory: got 16777216 MiB, but the host has ")
	require.Equal(t, driver.KindTerminal, driver.KindOf(err))
	require.Empty(t, volumeNames(t, pool))
}

func TestFullPoolIsSaidWithNumbers(t *testing.T) {
	pool, dir := newPool(t)
	virsh(t, "pool-destroy", pool)
	run(t, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", dir)
	t.Cleanup(func() { run(t, "umount", "--lazy", dir) })
	virsh(t, "pool-start", pool)

	d := newDriver(t, hypervisor.Config{})

	// The second is told by the size of what arrived alone.
	for _, size := range []int64{8 << 20, 3 << 19} {
		full := &testImage{open: func(io.Reader) io.Reader { return io.LimitReader(onesReader{}, size) }}

		err := provision(t.Context(), d, newRequest(t, "full", classData(pool)), full)
		require.ErrorContains(t, err, "ensure-image: ")
		require.ErrorContains(t, err, "MiB free")
		require.Equal(t, driver.KindCapacity, driver.KindOf(err))
		require.Empty(t, files(t, dir))
	}
}

type onesReader struct{}

func (onesReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 1
	}

	return len(p), nil
}

func TestWhatLibvirtLacksIsNamed(t *testing.T) {
	pool, _ := newPool(t)
	d := newDriver(t, hypervisor.Config{})

	for _, test := range []struct{ name, data, want string }{
		{"pool", classData("nowhere"), `storage_pool: libvirt has no pool "nowhere"; it has ` + pool},
		{"network", strings.Replace(classData(pool), "type: user", "network_name: nowhere", 1), `network_interfaces[0].network_name: libvirt has no network "nowhere"; it has `},
		{"node", classData(pool, "numa: {nodeset: '900'}"), "numa.nodeset: the host has no node 900; it has 0"},
		{"interface", strings.Replace(classData(pool), "type: user", "type: direct, network_name: nowhere", 1), `network_interfaces[0].network_name: the host has no interface "nowhere"`},
		{"hostname", classData(pool), "hostname"},
	} {
		t.Run(test.name, func(t *testing.T) {
			req := newRequest(t, map[bool]string{true: "under_score", false: "fine"}[test.name == "hostname"], test.data)
			_, err := d.Plan(t.Context(), req)
			require.ErrorContains(t, err, test.want)
			require.Equal(t, driver.KindTerminal, driver.KindOf(err))
		})
	}

	require.ErrorContains(t, provision(t.Context(), d, newRequest(t, "small", classData(pool)), &testImage{
		open: func(io.Reader) io.Reader { return io.LimitReader(zeroReader{}, 1<<30+1) },
	}), "disk_size: got 1 GiB, but the boot image is larger: want at least 2 GiB")

	remove(t, d, newRequest(t, "small", "").Ref)
	require.Empty(t, volumeNames(t, pool))
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)

	return len(p), nil
}

func TestAddressOfAnotherDomainIsRefused(t *testing.T) {
	pool, _ := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	data := strings.Replace(classData(pool), "type: user", "type: user, physical_address: \"52:54:00:AA:bb:01\"", 1)
	one, two := newRequest(t, "one", data), newRequest(t, "two", data)

	require.NoError(t, provision(t.Context(), d, one, new(testImage)))
	require.NoError(t, provision(t.Context(), d, one, new(testImage)))
	require.ErrorContains(t, provision(t.Context(), d, two, new(testImage)),
		fmt.Sprintf("network_interfaces[0].physical_address: domain %q has 52:54:00:aa:bb:01", machine.NamesOf(one.Ref).Domain))
	remove(t, d, one.Ref)
	remove(t, d, two.Ref)
}

func TestWrongURIIsSaidInOneLine(t *testing.T) {
	for uri, want := range map[string]string{
		"nonsense:///system":                               "check the URI",
		"qemu+unix:///system?socket=/nowhere":              "check that the daemon runs",
		"qemu+tcp://127.0.0.1:1/system":                    "check that the daemon runs",
		"qemu+ssh://root@127.0.0.1:1/system?no_tty=1":      "check",
		"qemu+tcp://user:hush@127.0.0.1:1/system?no_tty=1": "check",
		"qemu+tls://127.0.0.1:1/system?pkipath=/nowhere":   "check",
	} {
		d := newDriver(t, hypervisor.Config{Config: connection.Config{URI: uri}})
		err := d.Check(t.Context())
		require.ErrorContains(t, err, want, uri)
		require.NotContains(t, err.Error(), "\n")
		require.NotContains(t, err.Error(), "hush")
		require.NotContains(t, err.Error(), "virError")
	}
}

func TestEventsNameTheMachineEvenWhenItHasGone(t *testing.T) {
	pool, _ := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	req := newRequest(t, "watched", classData(pool))

	require.NoError(t, d.Check(t.Context()))

	changed := make(chan driver.Ref, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	go func() {
		ended <- d.Watch(ctx, req.ProviderID, func(ref driver.Ref) {
			if ref.RequestID != "" {
				changed <- ref
			}
		})
	}()

	await := func(during string) {
		t.Helper()

		select {
		case ref := <-changed:
			require.Equal(t, req.Ref, ref)
		case err := <-ended:
			require.NoError(t, err, during)
		case <-time.After(20 * time.Second):
			require.Fail(t, "no event", during)
		}

		time.Sleep(300 * time.Millisecond)

		for len(changed) > 0 {
			<-changed
		}
	}

	require.NoError(t, provision(t.Context(), d, req, new(testImage)))
	await("start")

	defineForeign(t, "foreign", "0d7d5c0e-5bd0-4a49-9d8e-3c5b8f2c1a13", "")
	virsh(t, "destroy", machine.NamesOf(req.Ref).Domain)
	await("stop")
	virsh(t, "undefine", machine.NamesOf(req.Ref).Domain)
	await("undefine")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	remove(t, d, req.Ref)
}
