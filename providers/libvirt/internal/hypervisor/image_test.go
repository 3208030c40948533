package hypervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

func TestManyRequestsShareOneUploadThoughTheFirstGivesUp(t *testing.T) {
	for _, pool := range []string{"files", "lvm"} {
		t.Run(pool, func(t *testing.T) {
			inImageLab(t, sim.Options{}, func(l *imageLab) {
				t := l.t
				h := l.host(Config{})
				source := &diskImage{read: slowly}

				leader, giveUp := context.WithTimeout(t.Context(), 5*time.Second)
				defer giveUp()

				var (
					wg       sync.WaitGroup
					gaveUp   error
					finished atomic.Int32
				)

				wg.Go(func() { gaveUp = l.make(leader, h, l.request("leader"), "storage_pool: "+pool, source, quiet) })
				synctest.Wait()

				for i := range 9 {
					wg.Go(func() {
						if assert.NoError(t, l.make(t.Context(), h, l.request(fmt.Sprintf("m-%d", i)), "storage_pool: "+pool, source, quiet)) {
							finished.Add(1)
						}
					})
				}

				wg.Wait()
				require.ErrorIs(t, gaveUp, context.DeadlineExceeded)
				require.EqualValues(t, 9, finished.Load())
				require.Len(t, slices.DeleteFunc(l.volumes(pool), func(name string) bool { return !isImage(name) }), 2)

				// A device has to be told its size, which the beginning of the image tells.
				opened := map[string]int32{"files": 1, "lvm": 2}[pool]
				require.Equal(t, opened, source.opened.Load())
			})
		})
	}
}

func TestSystemDiskIsAFullCopyWhereAPoolHasNoOverlays(t *testing.T) {
	for _, pool := range []string{"lvm", "zfs"} {
		for _, copies := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, libvirt copies %v", pool, copies), func(t *testing.T) {
				inImageLab(t, sim.Options{}, func(l *imageLab) {
					t := l.t
					config := Config{}
					config.Intercept = func(what string, next func() error) error {
						if !copies && strings.HasPrefix(what, "copy the boot image") {
							return libvirt.Error{Code: libvirt.ERR_NO_SUPPORT, Message: "storage pool does not support volume creation from an existing volume"}
						}

						return next()
					}

					h, req := l.host(config), l.request("m")
					n := machine.NamesOf(req.Ref).Raw()

					require.NoError(t, l.make(t.Context(), h, req, "storage_pool: "+pool+"\nadditional_disks: [{size: 2}]", &diskImage{}, quiet))
					require.ElementsMatch(t, []string{n.Root, n.Disk(0), n.Seed},
						slices.DeleteFunc(l.volumes(pool), isImage))

					content, size := l.read(pool, n.Root, diskImageSize)
					require.EqualValues(t, 1<<30, size, "the copy is as large as the disk")
					require.True(t, bytes.Equal(diskContent(diskImageSize), content))

					content, size = l.read(pool, n.Seed, 1<<20)
					require.Contains(t, string(content), "a secret token")
					require.Zero(t, size%smallVolume)

					dom, err := l.witness.LookupDomainByName(n.Domain)
					require.NoError(t, err)

					desc, err := dom.GetXMLDesc(0)
					require.NoError(t, err)

					for _, volume := range []string{n.Root, n.Disk(0), n.Seed} {
						require.Contains(t, desc, "dev='"+l.pathOf(pool, volume)+"'")
					}

					require.NotContains(t, desc, "qcow2")

					l.remove(h, req)
					require.Empty(t, slices.DeleteFunc(l.volumes(pool), isImage))
					require.Empty(t, l.domains())
				})
			})
		}
	}
}

func TestSeedOnADeviceIsOverwrittenBeforeItsSpaceIsGivenBack(t *testing.T) {
	inImageLab(t, sim.Options{}, func(l *imageLab) {
		t := l.t
		var atDelete []byte

		config, req := Config{}, l.request("m")
		n := machine.NamesOf(req.Ref)
		config.Intercept = func(what string, next func() error) error {
			if strings.HasPrefix(what, fmt.Sprintf("delete volume %q", n.Seed)) && slices.Contains(l.volumes("lvm"), n.Seed) {
				atDelete, _ = l.s.ReadFile(l.pathOf("lvm", n.Seed))
			}

			return next()
		}

		h := l.host(config)
		require.NoError(t, l.make(t.Context(), h, req, "storage_pool: lvm", &diskImage{}, quiet))
		l.remove(h, req)

		require.Contains(t, string(atDelete[:machine.MarkSize]), `request="m"`)
		require.Empty(t, bytes.Trim(atDelete[machine.MarkSize:], "\x00"))
	})
}

func TestDisksMayBeInSeveralPools(t *testing.T) {
	inImageLab(t, sim.Options{}, func(l *imageLab) {
		t := l.t
		h, req := l.host(Config{}), l.request("m")
		n := machine.NamesOf(req.Ref)

		require.NoError(t, l.make(t.Context(), h, req,
			"storage_pool: files\nadditional_disks: [{size: 1}, {size: 1, storage_pool: lvm}, {size: 1, storage_pool: ceph}]", &diskImage{}, quiet))
		require.ElementsMatch(t, []string{n.Root, n.Seed, n.Disk(0)}, slices.DeleteFunc(l.volumes("files"), isImage))
		require.Equal(t, []string{n.Raw().Disk(1)}, l.volumes("lvm"), "the image is only where the system disk is")
		require.Equal(t, []string{n.Raw().Disk(2)}, l.volumes("ceph"))

		dom, err := l.witness.LookupDomainByName(n.Domain)
		require.NoError(t, err)

		desc, err := dom.GetXMLDesc(0)
		require.NoError(t, err)
		require.Contains(t, desc, "protocol='rbd'")

		l.remove(h, req)

		for _, pool := range []string{"files", "lvm", "ceph"} {
			require.Empty(t, slices.DeleteFunc(l.volumes(pool), isImage))
		}
	})
}

func TestPoolThatCannotHoldTheDiskIsRefusedByItsField(t *testing.T) {
	inImageLab(t, sim.Options{}, func(l *imageLab) {
		t := l.t
		h := l.host(Config{StoragePools: []string{"files", "lvm", "ceph"}})

		for class, want := range map[string]string{
			"storage_pool: ceph": `storage_pool: pool "ceph" is of type "rbd", into which libvirt cannot bring a boot image: want one of type dir, fs, logical, netfs, vstorage, zfs`,
			"storage_pool: none": `storage_pool: this provider may not use "none": want one of ["files" "lvm" "ceph"]`,
			"storage_pool: files\nadditional_disks: [{size: 1}, {size: 1, storage_pool: zfs}]": `additional_disks[1].storage_pool: this provider may not use "zfs"`,
		} {
			err := l.make(t.Context(), h, l.request("m"), class, &diskImage{}, quiet)
			require.ErrorContains(t, err, want)
			require.Equal(t, driver.KindTerminal, driver.KindOf(err))
		}

		require.Empty(t, l.domains())

		// Names of devices are shorter than those of files.
		long := l.request(strings.Repeat("r", 120))
		data, err := classdata.Decode[machine.ClassData]("storage_pool: lvm\ncores: 1\nmemory: 1024\ndisk_size: 1")
		require.NoError(t, err)

		_, err = h.NewBuilder(long, data).Objects(t.Context())
		require.ErrorContains(t, err, "at most 127 characters: want at most 110 in the id")
		require.Equal(t, driver.KindTerminal, driver.KindOf(err))
	})
}

func TestProgressOfAnUploadNeverFallsAndEndsAtHundredPercent(t *testing.T) {
	for _, pool := range []string{"files", "lvm"} {
		t.Run(pool, func(t *testing.T) {
			inImageLab(t, sim.Options{}, func(l *imageLab) {
				t := l.t
				var told []int

				require.NoError(t, l.make(t.Context(), l.host(Config{}), l.request("m"), "storage_pool: "+pool, &diskImage{}, func(text string) {
					var percent int
					if _, err := fmt.Sscanf(text, "boot image: %d %%", &percent); err == nil {
						told = append(told, percent)
					}
				}))

				require.True(t, slices.IsSorted(told), "%v", told)
				require.Greater(t, len(slices.Compact(slices.Clone(told))), 10)
				require.Less(t, told[0], 10)
				require.Equal(t, 100, told[len(told)-1])
				require.Equal(t, len(told)-1, slices.Index(told, 100), "100 is said once all is done")
			})
		})
	}
}

func TestUploadThatBreaksOffLeavesNothingAndIsMadeAgain(t *testing.T) {
	for _, test := range []struct {
		name     string
		breakOff func(l *imageLab) io.Reader
	}{
		{"source is cut", func(*imageLab) io.Reader { return iotest.ErrReader(io.ErrUnexpectedEOF) }},
		{"daemon restarts", func(l *imageLab) io.Reader {
			return readerFunc(func([]byte) (int, error) {
				l.s.Restart()

				return 0, errors.New("and the source is cut")
			})
		}},
		{"daemon restarts and the source goes on", func(l *imageLab) io.Reader {
			return readerFunc(func([]byte) (int, error) {
				l.s.Restart()

				return 0, io.EOF
			})
		}},
	} {
		for _, pool := range []string{"files", "lvm", "zfs"} {
			t.Run(test.name+" in "+pool, func(t *testing.T) {
				inImageLab(t, sim.Options{}, func(l *imageLab) {
					t := l.t
					h, req := l.host(Config{}), l.request("m")
					source := &diskImage{read: func(content io.Reader) io.Reader {
						// The first look is for the size.
						return io.MultiReader(io.LimitReader(content, 8<<20), test.breakOff(l), content)
					}}

					require.Error(t, l.make(t.Context(), h, req, "storage_pool: "+pool, source, quiet))
					l.reconnect()

					for _, name := range l.volumes(pool) {
						require.True(t, machine.IsImageData("libvirt", name), "%s says that the image is whole", name)
					}

					time.Sleep(time.Minute)

					source.read = nil
					require.NoError(t, l.make(t.Context(), h, req, "storage_pool: "+pool, source, quiet))
					require.Len(t, slices.DeleteFunc(l.volumes(pool), func(name string) bool { return !isImage(name) }), 2)
				})
			})
		}
	}
}

// Somebody may lie on an image from the moment on that it is published, whether who has published it hears of that or not.
func TestImageOfWhosePublicationNothingIsHeardStays(t *testing.T) {
	for _, pool := range []string{"files", "lvm"} {
		t.Run(pool, func(t *testing.T) {
			inImageLab(t, sim.Options{}, func(l *imageLab) {
				t := l.t
				lost := false
				config := Config{}
				config.Intercept = func(what string, next func() error) error {
					err := next()

					if !lost && strings.HasPrefix(what, `create volume "omni-image`) && !strings.Contains(what, ".raw") {
						lost = true

						l.s.Restart()

						return libvirt.Error{Code: libvirt.ERR_INTERNAL_ERROR, Message: "client socket is closed"}
					}

					return err
				}

				h, source := l.host(config), &diskImage{}
				require.Error(t, l.make(t.Context(), h, l.request("m"), "storage_pool: "+pool, source, quiet))
				require.True(t, lost)

				opened := source.opened.Load()

				l.reconnect()
				time.Sleep(time.Minute)
				require.Len(t, slices.DeleteFunc(l.volumes(pool), func(name string) bool { return !isImage(name) }), 2)
				require.NoError(t, l.make(t.Context(), h, l.request("m"), "storage_pool: "+pool, source, quiet))
				require.Equal(t, opened, source.opened.Load(), "it is whole")
			})
		})
	}
}

func TestUploadThatArrivesDamagedIsNotUsed(t *testing.T) {
	for _, pool := range []string{"files", "lvm"} {
		t.Run(pool, func(t *testing.T) {
			inImageLab(t, sim.Options{}, func(l *imageLab) {
				t := l.t
				config := Config{}
				config.Intercept = func(what string, next func() error) error {
					err := next()

					// After all has been sent, and before it is looked at.
					for _, name := range l.volumes(pool) {
						if strings.HasPrefix(what, "look up volume") && machine.IsImageData("libvirt", name) {
							content, readErr := l.s.ReadFile(l.pathOf(pool, name))
							require.NoError(t, readErr)
							copy(content[len(content)/2:], make([]byte, len(content)))
							l.s.WriteFile(l.pathOf(pool, name), content)
						}
					}

					return err
				}

				h := l.host(config)
				err := l.make(t.Context(), h, l.request("m"), "storage_pool: "+pool, &diskImage{}, quiet)
				require.ErrorContains(t, err, "were read back otherwise than they were sent")
				require.Empty(t, l.volumes(pool))
			})
		})
	}
}

func TestFullPoolIsSaidAndNothingHalfMadeStays(t *testing.T) {
	for _, test := range []struct {
		pool sim.Pool
		size uint64
	}{{sim.Pool{Name: "p"}, 2 << 20}, {sim.Pool{Name: "p", Type: "logical"}, 10 << 20}} {
		t.Run(fmt.Sprintf("%s of %d MiB", test.pool.Type, test.size>>20), func(t *testing.T) {
			test.pool.Capacity = test.size

			inImageLab(t, sim.Options{Pools: []sim.Pool{test.pool}}, func(l *imageLab) {
				t := l.t
				h, req := l.host(Config{ImageMaxAge: -1}), l.request("m")
				source := &diskImage{read: func(content io.Reader) io.Reader {
					whole, err := io.ReadAll(content)
					require.NoError(t, err)

					for i := 1 << 20; i+512 < len(whole); i += 4096 {
						whole[i] = 1
					}

					return bytes.NewReader(whole)
				}}

				for range 3 {
					err := l.make(t.Context(), h, req, "storage_pool: p", source, quiet)
					require.Error(t, err)
					require.Equal(t, driver.KindCapacity, driver.KindOf(err), "%v", err)
					require.ErrorContains(t, err, "MiB free")
				}

				l.remove(h, req)
				require.NoError(t, h.SweepImages(t.Context(), "libvirt"))
				require.Empty(t, l.volumes("p"))
			})
		})
	}
}

func TestPoolThatIsBusyWithCopiesMakesAndRemovesMachines(t *testing.T) {
	inImageLab(t, sim.Options{Durations: map[string]time.Duration{"StoragePool.StorageVolCreateXMLFrom": 5 * time.Minute}}, func(l *imageLab) {
		t := l.t
		h, old := l.host(Config{}), l.request("old")
		require.NoError(t, l.make(t.Context(), h, old, "storage_pool: lvm", &diskImage{}, quiet))

		var wg sync.WaitGroup

		for i := range 10 {
			wg.Go(func() {
				assert.NoError(t, l.make(t.Context(), h, l.request(fmt.Sprintf("m-%d", i)), "storage_pool: lvm", &diskImage{}, quiet))
			})
		}

		time.Sleep(7 * time.Minute)

		started := time.Now()
		l.remove(h, old)
		require.Less(t, time.Since(started), 10*time.Second, "copies of minutes delay no removal")

		wg.Wait()
		require.Len(t, l.domains(), 10)
	})
}

// A foreign job that holds the pool passes.
func TestPoolThatIsBusyForAMomentIsWaitedFor(t *testing.T) {
	inImageLab(t, sim.Options{}, func(l *imageLab) {
		t := l.t
		busy := 3
		config := Config{}
		config.Intercept = func(what string, next func() error) error {
			if strings.HasPrefix(what, "refresh") && busy > 0 {
				busy--

				return libvirt.Error{Code: libvirt.ERR_INTERNAL_ERROR, Message: "pool 'files' has asynchronous jobs running."}
			}

			return next()
		}

		require.NoError(t, l.make(t.Context(), l.host(config), l.request("m"), "storage_pool: files", &diskImage{}, quiet))
	})
}

func TestSizeOfAnImageIsTheSizeOfItsDisk(t *testing.T) {
	size, ok := gptSize(diskContent(diskImageSize))
	require.True(t, ok)
	require.EqualValues(t, diskImageSize, size)

	for name, read := range map[string]func(io.Reader) io.Reader{
		"with a table": func(r io.Reader) io.Reader { return r },
		"without": func(r io.Reader) io.Reader {
			content, err := io.ReadAll(r)
			require.NoError(t, err)
			copy(content[512:], "NO")

			return bytes.NewReader(content)
		},
	} {
		size, err := measure(t.Context(), &diskImage{read: read})
		require.NoError(t, err, name)
		require.EqualValues(t, diskImageSize, size, name)
	}

	_, err := measure(t.Context(), &diskImage{read: func(io.Reader) io.Reader { return iotest.ErrReader(io.ErrUnexpectedEOF) }})
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func FuzzGPT(f *testing.F) {
	f.Add(diskContent(diskImageSize)[:1024])
	f.Add([]byte("EFI PART"))

	f.Fuzz(func(t *testing.T, head []byte) {
		size, ok := gptSize(head)
		if ok {
			require.Positive(t, size)
			require.LessOrEqual(t, size, uint64((largestSector+1)*sectorSize))
		}
	})
}

// A foreign volume of the machine's names, in a pool where it claims them or in another one, is never touched.
func TestForeignVolumeIsNeverTouchedInAnyPool(t *testing.T) {
	for _, where := range []string{"files", "lvm", "zfs"} {
		req := (&imageLab{}).request("m")
		n := machine.NamesOf(req.Ref)

		for _, name := range []string{n.Root, n.Raw().Root, n.Seed, n.Disk(0), n.Raw().Disk(0)} {
			t.Run(path.Join(where, name), func(t *testing.T) {
				inImageLab(t, sim.Options{}, func(l *imageLab) {
					t := l.t
					h := l.host(Config{})
					target := map[string]string{"files": "/var/lib/libvirt/images", "lvm": "/dev/lvm", "zfs": "/dev/zvol/zfs"}[where]
					theirs := []byte(strings.Repeat("theirs", 4000))

					p, err := l.witness.LookupStoragePoolByName(where)
					require.NoError(t, err)

					desc, err := p.GetXMLDesc(0)
					require.NoError(t, err)

					if _, after, ok := strings.Cut(desc, "<path>"); ok {
						target, _, _ = strings.Cut(after, "</path>")
					}

					l.s.WriteFile(target+"/"+name, theirs)

					err = l.make(t.Context(), h, req, "storage_pool: lvm\nadditional_disks: [{size: 1, storage_pool: files}]", &diskImage{}, quiet)
					if where == "zfs" {
						require.NoError(t, err)
					} else {
						require.ErrorContains(t, err, fmt.Sprintf("volume %q in storage pool %q is in the way", name, where))
						require.Empty(t, l.domains())
					}

					listed, err := h.List(t.Context(), "libvirt")
					require.NoError(t, err)
					require.Len(t, listed, len(l.domains()))

					l.remove(h, req)

					content, err := l.s.ReadFile(target + "/" + name)
					require.NoError(t, err)
					require.Equal(t, theirs, content)
				})
			})
		}
	}
}
