package hypervisor

import (
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

// images are the volumes of boot images in a pool.
func (l *imageLab) images(pool string) []string {
	return slices.DeleteFunc(l.volumes(pool), func(name string) bool { return !isImage(name) })
}

func (l *imageLab) sweep(h *Host) { require.NoError(l.t, h.SweepImages(l.t.Context(), "libvirt")) }

func TestImageGoesOnceNothingHasUsedItForItsAgeThoughProvidersComeAndGo(t *testing.T) {
	for _, pool := range []string{"files", "lvm"} {
		t.Run(pool, func(t *testing.T) {
			inImageLab(t, sim.Options{}, func(l *imageLab) {
				t := l.t
				class := "storage_pool: " + pool
				h, req := l.host(Config{}), l.request("m")
				require.NoError(t, l.make(t.Context(), h, req, class, &diskImage{}, quiet))

				whole := l.images(pool)
				require.Len(t, whole, 2)

				if pool == "files" {
					time.Sleep(100 * time.Hour)
					l.sweep(h)
					require.Equal(t, whole, l.images(pool), "it is in use")
				}

				l.remove(h, req)
				h.Close()

				// A provider that knows nothing begins to count.
				h = l.host(Config{})
				l.sweep(h)
				require.Len(t, l.images(pool), 3)

				time.Sleep(20 * time.Hour)
				h.Close()

				// The next one knows since when.
				h = l.host(Config{})
				l.sweep(h)
				require.Len(t, l.images(pool), 3)

				time.Sleep(4*time.Hour - time.Second)
				l.sweep(h)
				require.Len(t, l.images(pool), 3)

				time.Sleep(2 * time.Second)
				l.sweep(h)
				require.Empty(t, l.images(pool))
			})
		})
	}
}

func TestImageThatIsUsedAgainCountsAnew(t *testing.T) {
	for _, pool := range []string{"files", "lvm"} {
		t.Run(pool, func(t *testing.T) {
			inImageLab(t, sim.Options{}, func(l *imageLab) {
				t := l.t
				class := "storage_pool: " + pool
				h, req := l.host(Config{}), l.request("m")
				source := &diskImage{}

				for range 5 {
					require.NoError(t, l.make(t.Context(), h, req, class, source, quiet))
					l.sweep(h)
					l.remove(h, req)
					l.sweep(h)
					time.Sleep(23 * time.Hour)
					l.sweep(h)
					require.Len(t, l.images(pool), 3)
				}

				require.LessOrEqual(t, source.opened.Load(), int32(2), "it was uploaded once")
				time.Sleep(2 * time.Hour)
				l.sweep(h)
				require.Empty(t, l.images(pool))
			})
		})
	}
}

func TestImageInUseByAnybodyStays(t *testing.T) {
	for _, test := range []struct {
		name string
		use  func(l *imageLab, data string)
	}{
		{"overlay in its pool", func(l *imageLab, data string) {
			l.createVolume("files", fmt.Sprintf(`<volume><name>theirs.qcow2</name><capacity unit='GiB'>1</capacity><target><format type='qcow2'/></target>
				<backingStore><path>%s</path><format type='raw'/></backingStore></volume>`, data))
		}},
		{"overlay in another pool", func(l *imageLab, data string) {
			l.createVolume("more", fmt.Sprintf(`<volume><name>theirs.qcow2</name><capacity unit='GiB'>1</capacity><target><format type='qcow2'/></target>
				<backingStore><path>%s</path><format type='raw'/></backingStore></volume>`, data))
		}},
		{"domain", func(l *imageLab, data string) {
			_, err := l.witness.DomainDefineXML(fmt.Sprintf(`<domain type='kvm'><name>theirs</name><memory unit='MiB'>64</memory><os><type arch='x86_64'>hvm</type></os>
				<devices><disk type='file'><source file='%s'/><target dev='vda' bus='virtio'/><readonly/></disk></devices></domain>`, data))
			require.NoError(l.t, err)
		}},
		{"pool that cannot be seen", func(l *imageLab, _ string) {
			p, err := l.witness.LookupStoragePoolByName("more")
			require.NoError(l.t, err)
			require.NoError(l.t, p.Destroy())
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inImageLab(t, sim.Options{Pools: []sim.Pool{{Name: "files"}, {Name: "more", Target: "/more"}}}, func(l *imageLab) {
				t := l.t
				h, req := l.host(Config{ImageMaxAge: -1}), l.request("m")
				require.NoError(t, l.make(t.Context(), h, req, "storage_pool: files", &diskImage{}, quiet))

				whole := l.images("files")
				data := whole[slices.IndexFunc(whole, func(name string) bool { return machine.IsImageData("libvirt", name) })]
				test.use(l, l.pathOf("files", data))
				l.remove(h, req)

				l.sweep(h)
				require.Subset(t, l.images("files"), whole)
			})
		})
	}
}

func (l *imageLab) createVolume(pool, desc string) {
	p, err := l.witness.LookupStoragePoolByName(pool)
	require.NoError(l.t, err)

	_, err = p.StorageVolCreateXML(desc, 0)
	require.NoError(l.t, err)
}

func TestImagesOfOthersAreNotSwept(t *testing.T) {
	inImageLab(t, sim.Options{}, func(l *imageLab) {
		t := l.t
		h, req := l.host(Config{ImageMaxAge: -1}), l.request("m")
		req.ProviderID = "other"
		req.Identity = driver.NewIdentity(req.Ref)

		require.NoError(t, l.make(t.Context(), h, req, "storage_pool: files", &diskImage{}, quiet))
		l.remove(h, req)
		l.sweep(h)
		require.Len(t, l.images("files"), 2)

		require.NoError(t, h.SweepImages(t.Context(), "other"))
		require.Empty(t, l.images("files"))
	})
}

// While a request waits for its disk, from the upload on, nobody sees the image used.
func TestImageIsNotSweptWhileARequestWaitsForIt(t *testing.T) {
	inImageLab(t, sim.Options{}, func(l *imageLab) {
		t := l.t
		h, req := l.host(Config{ImageMaxAge: -1}), l.request("m")
		done := make(chan error, 1)

		go func() { done <- l.make(t.Context(), h, req, "storage_pool: files", &diskImage{read: slowly}, quiet) }()

		for range 10 {
			time.Sleep(time.Second)
			l.sweep(h)
		}

		require.NoError(t, <-done)
		require.Len(t, l.images("files"), 2)
	})
}

// The steps of a machine that runs are made again after a crash before Omni was told.
func TestMachineThatRunsWaitsForNoImage(t *testing.T) {
	inImageLab(t, sim.Options{}, func(l *imageLab) {
		t := l.t
		h, req := l.host(Config{ImageMaxAge: -1}), l.request("m")

		for range 2 {
			require.NoError(t, l.make(t.Context(), h, req, "storage_pool: lvm", &diskImage{}, quiet))
		}

		l.sweep(h)
		require.Empty(t, l.images("lvm"), "its disk is a copy")
	})
}

// A request may come and have its disk between the look for users and what follows from it.
func TestImageThatGetsAUserWhileItIsSweptStays(t *testing.T) {
	inImageLab(t, sim.Options{}, func(l *imageLab) {
		t := l.t
		sweeping, looks := false, 0

		var h *Host

		config := Config{ImageMaxAge: -1}
		config.Intercept = func(what string, next func() error) error {
			err := next()

			if sweeping && strings.HasPrefix(what, "list volumes of storage pool \"zfs\"") {
				// The first is the look for images, the others are those for users.
				if looks++; looks == 3 {
					sweeping = false

					time.Sleep(time.Second)
					assert.NoError(t, l.make(t.Context(), h, l.request("late"), "storage_pool: files", &diskImage{}, quiet))
				}
			}

			return err
		}

		h = l.host(config)
		req := l.request("m")
		require.NoError(t, l.make(t.Context(), h, req, "storage_pool: files", &diskImage{}, quiet))
		l.remove(h, req)

		sweeping = true

		l.sweep(h)
		require.False(t, sweeping, "the request came")
		require.Len(t, l.images("files"), 2)

		// Its disk is in use, and another time nobody comes.
		l.remove(h, l.request("late"))
		l.sweep(h)
		require.Empty(t, l.images("files"))
	})
}

// What another host makes in a pool that both share, libvirt sees when it is told to look.
func TestImageStaysForWhatLibvirtHasNotSeenYet(t *testing.T) {
	inImageLab(t, sim.Options{}, func(l *imageLab) {
		t := l.t
		h, req := l.host(Config{ImageMaxAge: -1}), l.request("m")
		require.NoError(t, l.make(t.Context(), h, req, "storage_pool: files", &diskImage{}, quiet))

		whole := l.images("files")
		data := l.pathOf("files", whole[slices.IndexFunc(whole, func(name string) bool { return machine.IsImageData("libvirt", name) })])
		l.remove(h, req)

		// The header of a qcow2 image: magic and version, where the name of what it lies on is and how long, and the size.
		overlay := binary.BigEndian.AppendUint32([]byte("QFI\xfb"), 3)
		overlay = binary.BigEndian.AppendUint64(overlay, 104)
		overlay = binary.BigEndian.AppendUint32(overlay, uint32(len(data))) //nolint:gosec // It is short.
		overlay = binary.BigEndian.AppendUint32(overlay, 16)
		overlay = binary.BigEndian.AppendUint64(overlay, 1<<30)
		l.s.WriteFile(path.Join(path.Dir(data), "theirs.qcow2"), append(append(overlay, make([]byte, 104-len(overlay))...), data...))

		l.sweep(h)
		require.Subset(t, l.images("files"), whole)

		l.deleteVolume("files", "theirs.qcow2")
		l.sweep(h)
		require.Empty(t, l.images("files"))
	})
}

func (l *imageLab) deleteVolume(pool, name string) {
	p, err := l.witness.LookupStoragePoolByName(pool)
	require.NoError(l.t, err)

	v, err := p.LookupStorageVolByName(name)
	require.NoError(l.t, err)
	require.NoError(l.t, v.Delete(0))
}

// Broken uploads that nobody repeats go as well.
func TestLeftOversOfACrashedUploadAreSwept(t *testing.T) {
	for _, pool := range []string{"files", "lvm"} {
		t.Run(pool, func(t *testing.T) {
			inImageLab(t, sim.Options{}, func(l *imageLab) {
				t := l.t
				c := &crasher{at: 1 << 30}
				config := Config{}
				config.Intercept = func(what string, next func() error) error {
					if strings.HasPrefix(what, "upload") && c.at == 1<<30 {
						c.at = c.calls + 8
					}

					return c.intercept(what, next)
				}
				dying := l.host(config)
				require.Error(t, l.make(t.Context(), dying, l.request("m"), "storage_pool: "+pool, &diskImage{}, quiet))
				dying.Close()
				require.Len(t, l.images(pool), 1)

				h := l.host(Config{})
				l.sweep(h)
				require.Len(t, l.images(pool), 2)
				time.Sleep(25 * time.Hour)
				l.sweep(h)
				require.Empty(t, l.images(pool))
			})
		})
	}
}

func TestSweepsAreInTheBackgroundNowAndThen(t *testing.T) {
	inImageLab(t, sim.Options{}, func(l *imageLab) {
		t := l.t
		calls := 0
		config := Config{ImageMaxAge: -1}
		config.Intercept = func(_ string, next func() error) error {
			calls++

			return next()
		}

		h, req := l.host(config), l.request("m")

		for i := range 100 {
			l.createVolume("files", fmt.Sprintf(`<volume><name>other-%d</name><capacity>1</capacity></volume>`, i))
		}

		list := func() {
			_, err := h.List(t.Context(), "libvirt")
			require.NoError(t, err)
			synctest.Wait()
		}

		require.NoError(t, l.make(t.Context(), h, req, "storage_pool: files", &diskImage{}, quiet))
		calls = 0
		l.remove(h, req)
		require.Less(t, calls, 40, "a removal looks at no volume but the machine's")

		list()
		require.Len(t, l.images("files"), 2, "a process that has just begun, as a command that lists machines, deletes nothing")

		time.Sleep(DefaultSweepInterval)
		list()
		require.Empty(t, l.images("files"))

		calls = 0
		list()
		require.Less(t, calls, 10, "the next sweep is not due")
	})
}
