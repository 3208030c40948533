package oxide_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	api "github.com/oxidecomputer/oxide.go/oxide"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/oxide"
)

func TestDiskSizesHaveTheirLimits(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		for size, problem := range map[int]string{
			gib: "", 1023 * gib: "", gib / 2: "total size must be at least 1 GiB", gib + 512: "total size must be a multiple of 1 GiB",
			gib + 1: "total size must be a multiple of block size 512", 1024 * gib: "total size must be less than 1023 GiB",
		} {
			_, err := b.disk(fmt.Sprintf("d%d", size), blank(), size)
			if problem == "" {
				require.NoError(t, err)
			} else {
				requireNo(t, err, api.ErrInvalidValue, problem)
			}
		}

		_, err := b.disk("local", api.DiskBackend{Value: &api.DiskBackendLocal{}}, 2000*gib)
		require.NoError(t, err, "a local disk may be larger")

		image := b.image("talos", map[int][]byte{0: []byte(padded("x"))})
		_, err = b.disk("small", ofImage(image), gib)
		requireNo(t, err, api.ErrInvalidRequest, "disk size 1073741824 must be greater than or equal to image size 2147483648")
	})
}

// TestImportGoesThroughItsStates follows a disk from its making to the end, with everything that it refuses on the way.
func TestImportGoesThroughItsStates(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		made, err := b.disk("scratch", importing(), gib)
		require.NoError(t, err)
		require.Equal(t, api.DiskStateStateCreating, made.State.State(), "the answer has it as it was recorded")

		id := api.NameOrId(made.Id)
		begin := func() error { return b.DiskBulkWriteImportStart(b.ctx(), api.DiskBulkWriteImportStartParams{Disk: id}) }
		end := func() error { return b.DiskBulkWriteImportStop(b.ctx(), api.DiskBulkWriteImportStopParams{Disk: id}) }
		finalize := func() error {
			return b.DiskFinalizeImport(b.ctx(), api.DiskFinalizeImportParams{Disk: id, Body: &api.FinalizeDisk{}})
		}
		remove := func() error { return b.DiskDelete(b.ctx(), api.DiskDeleteParams{Disk: id}) }
		block := []byte(padded("x"))

		require.Equal(t, "import_ready", b.diskState(made.Id))
		requireNo(t, end(), api.ErrInvalidRequest, `cannot set disk in state ImportReady to "import_ready"`)
		requireNo(t, b.write(made.Id, 0, block), api.ErrInvalidRequest, "cannot import blocks with a bulk write for disk in state ImportReady")
		requireNo(t, remove(), api.ErrInvalidRequest, `disk cannot be deleted in state "import_ready"`)

		require.NoError(t, begin())
		requireNo(t, begin(), api.ErrInvalidRequest, `cannot set disk in state ImportingFromBulkWrites to "importing_from_bulk_writes"`)
		requireNo(t, finalize(), api.ErrInvalidRequest, "cannot finalize disk in state ImportingFromBulkWrites")
		requireNo(t, remove(), api.ErrInvalidRequest, `disk cannot be deleted in state "importing_from_bulk_writes"`)

		for problem, write := range map[string]func() error{
			"beyond the end of the disk": func() error { return b.write(made.Id, gib, block) },
			"cannot be written":          func() error { return b.write(made.Id, 1, block) },
			"in blocks of 512 bytes":     func() error { return b.write(made.Id, 0, block[:511]) },
			"524288 bytes at most":       func() error { return b.write(made.Id, 0, make([]byte, 512<<10+512)) },
			"error base64 decoding data": func() error {
				return b.DiskBulkWriteImport(b.ctx(), api.DiskBulkWriteImportParams{Disk: id, Body: &api.ImportBlocksBulkWrite{
					Offset: new(uint64(0)), Base64EncodedData: "????",
				}})
			},
		} {
			requireNo(t, write(), api.ErrInvalidRequest, problem)
		}

		require.NoError(t, b.write(made.Id, 0, block))
		require.NoError(t, b.write(made.Id, 0, block), "a chunk may come twice")
		require.NoError(t, end())
		require.NoError(t, begin(), "it may go on")
		require.NoError(t, end())
		require.NoError(t, finalize())
		require.Equal(t, "detached", b.diskState(made.Id))
		requireNo(t, begin(), api.ErrInvalidRequest, `cannot set disk in state Detached to "importing_from_bulk_writes"`)
		require.NoError(t, remove())
		require.ErrorIs(t, remove(), api.ErrObjectNotFound)
		require.Empty(t, b.Ledger().Leaks())
	})
}

func TestImageHoldsWhatWasWritten(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		first, last := bytes.Repeat([]byte("a"), 512<<10), bytes.Repeat([]byte("z"), 512)
		id := b.image("talos", map[int][]byte{0: first, 100_000 * 512: last, 2*gib - 512: last})

		c, err := b.Content("image", id)
		require.NoError(t, err)
		require.EqualValues(t, 2*gib, c.Size())
		require.EqualValues(t, 512<<10+2*64<<10, c.Held(), "holes stay holes")

		got := make([]byte, len(first)+512)
		_, err = c.ReadAt(got, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(got, append(first, make([]byte, 512)...)))

		n, err := c.ReadAt(got, 2*gib-512)
		require.ErrorContains(t, err, "EOF")
		require.Equal(t, string(last), string(got[:n]))

		// Another disk that is made from it, and larger, holds the same.
		d, err := b.disk("data", ofImage(id), 3*gib)
		require.NoError(t, err)
		require.NoError(t, b.ImageDelete(b.ctx(), api.ImageDeleteParams{Image: api.NameOrId(id)}))

		c, err = b.Content("disk", d.Id)
		require.NoError(t, err)
		require.EqualValues(t, 3*gib, c.Size())
		require.EqualValues(t, 512<<10+2*64<<10, c.Held())

		_, err = b.Content("image", id)
		require.ErrorContains(t, err, "there is none")
	})
}

func TestSparseImageCostsNothing(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		var before, after runtime.MemStats

		runtime.GC()
		runtime.ReadMemStats(&before)

		pieces := map[int][]byte{}
		for i := range 32 {
			pieces[i*(64<<20)] = []byte(padded("piece"))
		}

		id := b.image("sparse", pieces)

		runtime.GC()
		runtime.ReadMemStats(&after)
		require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(16<<20))

		c, err := b.Content("image", id)
		require.NoError(t, err)
		require.EqualValues(t, 32*64<<10, c.Held())
	})
}

func TestRackHoldsNoMoreThanItMay(t *testing.T) {
	inBubble(t, oxide.Options{MaxContent: 128 << 10}, func(b *bench) {
		d, err := b.disk("data", importing(), gib)
		require.NoError(t, err)
		require.NoError(t, b.DiskBulkWriteImportStart(b.ctx(), api.DiskBulkWriteImportStartParams{Disk: api.NameOrId(d.Id)}))
		require.ErrorIs(t, b.write(d.Id, 0, bytes.Repeat([]byte("x"), 192<<10)), api.ErrInternalError)
		require.NoError(t, b.write(d.Id, 0, make([]byte, 192<<10)), "zeroes give room back")
		require.NoError(t, b.write(d.Id, 1<<20, bytes.Repeat([]byte("x"), 128<<10)))
		require.NoError(t, b.write(d.Id, 1<<20, bytes.Repeat([]byte("y"), 128<<10)), "what is written over takes no more")
	})
}

func TestImagesMoveBetweenProjectAndSilo(t *testing.T) {
	inBubble(t, oxide.Options{Projects: []string{"default", "other"}}, func(b *bench) {
		id := api.NameOrId(b.image("talos", map[int][]byte{0: []byte(padded("x"))}))

		_, err := b.ImageView(b.ctx(), api.ImageViewParams{Image: "talos"})
		requireNo(t, err, api.ErrObjectNotFound, `not found: image with name "talos"`)

		_, err = b.DiskCreate(b.ctx(), api.DiskCreateParams{Project: "other", Body: &api.DiskCreate{
			Name: "d", Description: "d", Size: 2 * gib, DiskBackend: ofImage(string(id)),
		}})
		requireNo(t, err, api.ErrInvalidRequest, "image does not belong to this project")

		promoted, err := b.ImagePromote(b.ctx(), api.ImagePromoteParams{Image: id})
		require.NoError(t, err)
		require.Empty(t, promoted.ProjectId)

		_, err = b.ImageView(b.ctx(), api.ImageViewParams{Image: "talos"})
		require.NoError(t, err)

		silo, err := b.ImageListAllPages(b.ctx(), api.ImageListParams{})
		require.NoError(t, err)
		require.Len(t, silo, 1)

		demoted, err := b.ImageDemote(b.ctx(), api.ImageDemoteParams{Image: id, Project: "other"})
		require.NoError(t, err)
		require.NotEmpty(t, demoted.ProjectId)

		mine, err := b.ImageListAllPages(b.ctx(), api.ImageListParams{Project: project})
		require.NoError(t, err)
		require.Empty(t, mine)
	})
}

func TestSnapshotOutlivesItsDisk(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		d, err := b.disk("data", blank(), gib)
		require.NoError(t, err)

		s, err := b.SnapshotCreate(b.ctx(), api.SnapshotCreateParams{Project: project, Body: &api.SnapshotCreate{
			Name: "snap", Description: "d", Disk: api.NameOrId(d.Id),
		}})
		require.NoError(t, err)
		require.Equal(t, api.SnapshotStateReady, s.State)
		require.NoError(t, b.DiskDelete(b.ctx(), api.DiskDeleteParams{Disk: api.NameOrId(d.Id)}))

		all, err := b.SnapshotListAllPages(b.ctx(), api.SnapshotListParams{Project: project})
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.NoError(t, b.SnapshotDelete(b.ctx(), api.SnapshotDeleteParams{Snapshot: "snap", Project: project}))
		require.Empty(t, b.Ledger().Leaks())
	})
}

func TestDiskThatTheRackKeepsIsNotTouched(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		d, err := b.disk("data", blank(), gib)
		require.NoError(t, err)
		require.NoError(t, b.SetDisk(d.Id, api.DiskStateStateMaintenance))
		requireNo(t, b.DiskDelete(b.ctx(), api.DiskDeleteParams{Disk: api.NameOrId(d.Id)}), api.ErrInvalidRequest,
			`disk cannot be deleted in state "maintenance"`)
		require.NoError(t, b.SetDisk(d.Id, api.DiskStateStateFaulted))
		require.NoError(t, b.DiskDelete(b.ctx(), api.DiskDeleteParams{Disk: api.NameOrId(d.Id)}))
		require.ErrorContains(t, b.SetDisk(d.Id, api.DiskStateStateFaulted), "there is none")

		local, err := b.disk("local", api.DiskBackend{Value: &api.DiskBackendLocal{}}, gib)
		require.NoError(t, err)
		require.Equal(t, api.DiskTypeLocal, local.DiskType)
		_, err = b.SnapshotCreate(b.ctx(), api.SnapshotCreateParams{Project: project, Body: &api.SnapshotCreate{
			Name: "snap", Description: "d", Disk: "local",
		}})
		require.ErrorIs(t, err, api.ErrInvalidRequest)
	})
}

func TestQuotaOfStorage(t *testing.T) {
	inBubble(t, oxide.Options{Quota: oxide.Resources{Storage: 2 * gib}}, func(b *bench) {
		_, err := b.disk("one", blank(), 2*gib)
		require.NoError(t, err)
		_, err = b.disk("two", blank(), gib)
		requireNo(t, err, api.ErrInsufficientCapacity, "Storage Limit Exceeded")
		require.ErrorIs(t, err, api.ErrHTTP507)

		u, err := b.UtilizationView(b.ctx())
		require.NoError(t, err)
		require.Equal(t, u.Capacity.Storage, u.Provisioned.Storage)
	})
}
