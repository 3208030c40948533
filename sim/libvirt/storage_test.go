package libvirt_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	real "libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

func poolOf(t *testing.T, c *libvirt.Connect, name string) *libvirt.StoragePool {
	t.Helper()

	p, err := c.LookupStoragePoolByName(name)
	require.NoError(t, err)

	return p
}

// send uploads content into a volume.
func send(c *libvirt.Connect, v *libvirt.StorageVol, content []byte) error {
	s, err := c.NewStream(0)
	if err != nil {
		return err
	}

	defer func() { _ = s.Free() }()

	if err := v.Upload(s, 0, 0, 0); err != nil {
		return err
	}

	if _, err := s.Send(content); err != nil {
		return err
	}

	return s.Finish()
}

func TestPoolIsBusyWhileAVolumeIsMade(t *testing.T) {
	opts := libvirt.Options{Durations: map[string]time.Duration{"StoragePool.StorageVolCreateXML": time.Minute}}
	inBubble(t, opts, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		p := poolOf(t, c, "default")
		made := make(chan error, 1)

		go func() {
			_, err := p.StorageVolCreateXML(volumeXML("v", "raw", 1), 0)
			made <- err
		}()

		time.Sleep(time.Second)

		err := p.Refresh(0)
		require.Equal(t, real.ERR_INTERNAL_ERROR, numberOf(err))
		require.Contains(t, err.Error(), "pool 'default' has asynchronous jobs running.")
		require.Contains(t, p.Destroy().Error(), "asynchronous jobs")

		v, err := p.LookupStorageVolByName("v")
		require.NoError(t, err)
		require.Contains(t, v.Delete(0).Error(), "volume 'v' is still being allocated.")
		require.NoError(t, <-made)
		require.NoError(t, p.Refresh(0))
		require.NoError(t, v.Delete(0))
	})
}

func TestVolumeIsInUseWhileItIsCloned(t *testing.T) {
	opts := libvirt.Options{Durations: map[string]time.Duration{"StoragePool.StorageVolCreateXMLFrom": time.Minute}}
	inBubble(t, opts, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		p := poolOf(t, c, "default")
		v, err := p.StorageVolCreateXML(volumeXML("v", "raw", 1), 0)
		require.NoError(t, err)

		made := make(chan error, 1)

		go func() {
			_, err := p.StorageVolCreateXMLFrom(volumeXML("c", "raw", 1), v, 0)
			made <- err
		}()

		time.Sleep(time.Second)
		require.Contains(t, v.Delete(0).Error(), "volume 'v' is still in use.")
		require.Equal(t, real.ERR_OPERATION_INVALID, numberOf(send(c, v, []byte("x"))))
		require.Contains(t, p.Refresh(0).Error(), "asynchronous jobs")
		require.NoError(t, <-made)
		require.NoError(t, v.Delete(0))
	})
}

func TestFullPoolRefusesVolumesAndBytes(t *testing.T) {
	opts := libvirt.Options{Pools: []libvirt.Pool{{Name: "default", Capacity: 1 << 20}}}
	inBubble(t, opts, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		p := poolOf(t, c, "default")
		_, err := p.StorageVolCreateXML("<volume><name>a</name><capacity unit='MiB'>2</capacity></volume>", 0)
		require.Equal(t, real.ERR_SYSTEM_ERROR, numberOf(err))
		require.Contains(t, err.Error(), "No space left on device")

		v, err := p.StorageVolCreateXML(volumeXML("b", "raw", 2<<20), 0)
		require.NoError(t, err, "it takes no space before it is written")
		require.Contains(t, send(c, v, make([]byte, 2<<20)).Error(), "No space left on device")
		require.NoError(t, send(c, v, make([]byte, 1<<20)))

		info, err := p.GetInfo()
		require.NoError(t, err)
		require.Zero(t, info.Available)
		require.NoError(t, v.Delete(0))

		info, err = p.GetInfo()
		require.NoError(t, err)
		require.EqualValues(t, 1<<20, info.Available)
		require.Len(t, h.Ledger().Leaks(), 0)
	})
}

func TestPoolsOfDevicesHoldRawVolumesOnly(t *testing.T) {
	for kind, want := range map[string]struct {
		path                  string
		typ                   real.StorageVolType
		size                  uint64
		upload, clone, resize real.ErrorNumber
		overlay               real.ErrorNumber
	}{
		"logical": {
			path: "/dev/vg/v", typ: real.STORAGE_VOL_BLOCK, size: 4 << 20, resize: real.ERR_NO_SUPPORT,
		},
		"zfs": {
			path: "/dev/zvol/vg/v", typ: real.STORAGE_VOL_BLOCK, size: 8192,
			clone: real.ERR_NO_SUPPORT, resize: real.ERR_NO_SUPPORT, overlay: real.ERR_NO_SUPPORT,
		},
		"rbd": {
			path: "vg/v", typ: real.STORAGE_VOL_NETWORK, size: 4096, upload: real.ERR_NO_SUPPORT, overlay: real.ERR_NO_SUPPORT,
		},
	} {
		t.Run(kind, func(t *testing.T) {
			opts := libvirt.Options{Pools: []libvirt.Pool{{Name: "p", Type: kind, Target: "vg"}, {Name: "files"}}}
			inBubble(t, opts, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
				p := poolOf(t, c, "p")
				v, err := p.StorageVolCreateXML(volumeXML("v", "qcow2", 4096), 0)
				require.NoError(t, err)

				path, err := v.GetPath()
				require.NoError(t, err)
				require.Equal(t, want.path, path)

				info, err := v.GetInfo()
				require.NoError(t, err)
				require.Equal(t, real.StorageVolInfo{Type: want.typ, Capacity: want.size, Allocation: want.size}, *info)
				require.Equal(t, want.upload, numberOf(send(c, v, []byte("x"))))
				require.Equal(t, want.resize, numberOf(v.Resize(16<<20, 0)))

				_, err = p.StorageVolCreateXMLFrom(volumeXML("c", "raw", want.size), v, 0)
				require.Equal(t, want.clone, numberOf(err))
				_, err = p.StorageVolCreateXML(volumeXML("o", "raw", 4096, backingXML(want.path, "raw")), 0)
				require.Equal(t, want.overlay, numberOf(err))

				file, err := poolOf(t, c, "files").StorageVolCreateXML(volumeXML("f", "raw", 1), 0)
				require.NoError(t, err)
				_, err = p.StorageVolCreateXMLFrom(volumeXML("d", "raw", want.size), file, 0)
				require.Equal(t, kind == "logical", err == nil, "only volume groups take what is in other pools: %v", err)
			})
		})
	}
}

func TestVolumesOfPoolsAndHostsAreTheirOwn(t *testing.T) {
	opts := libvirt.Options{Pools: []libvirt.Pool{{Name: "a"}, {Name: "b"}}}
	inBubble(t, opts, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		for _, name := range []string{"a", "b"} {
			_, err := poolOf(t, c, name).StorageVolCreateXML(volumeXML("v", "raw", 1), 0)
			require.NoError(t, err)
		}

		n, err := poolOf(t, c, "a").NumOfStorageVolumes()
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
}

// Ten callers that make, fill, refresh and delete at once see nothing but libvirt's own refusals.
func TestManyAtOnce(t *testing.T) {
	opts := libvirt.Options{
		Latency:   time.Millisecond,
		Durations: map[string]time.Duration{"StoragePool.StorageVolCreateXML": 10 * time.Millisecond, "StoragePool.Refresh": 5 * time.Millisecond},
	}
	inBubble(t, opts, func(t *testing.T, h *libvirt.Hypervisor, _ *libvirt.Connect) {
		done := make(chan error, 10)

		for i := range 10 {
			go func() { done <- workOn(h, fmt.Sprintf("v%d", i)) }()
		}

		for range 10 {
			require.NoError(t, <-done)
		}

		require.Empty(t, h.Ledger().Leaks())
	})
}

func workOn(h *libvirt.Hypervisor, name string) error {
	c, err := h.Connect()
	if err != nil {
		return err
	}

	defer func() { _, _ = c.Close() }()

	p, err := c.LookupStoragePoolByName("default")
	if err != nil {
		return err
	}

	defer func() { _ = p.Free() }()

	for range 20 {
		v, err := p.StorageVolCreateXML(volumeXML(name, "raw", 1), 0)
		if err != nil {
			return err
		}

		if err := send(c, v, []byte(name)); err != nil {
			return err
		}

		if err := p.Refresh(0); err != nil && numberOf(err) != real.ERR_INTERNAL_ERROR {
			return err
		}

		if err := v.Delete(0); err != nil {
			return err
		}

		_ = v.Free()
	}

	return nil
}
