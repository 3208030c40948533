package oxide_test

import (
	"context"
	"encoding/base64"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	api "github.com/oxidecomputer/oxide.go/oxide"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/oxide"
	"github.com/omni-infra/omni-infra-providers/sim/oxide/openapi"
)

const (
	project = "default"
	gib     = 1 << 30
)

// bench is a rack with a client of one process.
type bench struct {
	*oxide.Rack
	*api.Client
	t *testing.T
}

// inBubble runs test on a fake clock with a rack that is closed at its end, and that was asked for nothing it does not have.
func inBubble(t *testing.T, opts oxide.Options, test func(b *bench)) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		r := oxide.New(opts)
		defer r.Close()

		test(&bench{r, client(t, r, r.Token(), nil), t})
	})
}

// client is that of oxide.go, on a session of its own if it is nil.
func client(t *testing.T, r *oxide.Rack, token string, session *ledger.Session) *api.Client {
	t.Helper()

	transport := r.Transport(session)

	document, err := openapi.FromEnv()
	require.NoError(t, err)

	if document != nil {
		transport = document.Transport(transport, false, func(err error) { t.Error(err) })
	}

	c, err := api.NewClient(api.WithHost("https://rack.test"), api.WithToken(token),
		api.WithHTTPClient(&http.Client{Transport: transport, Timeout: 10 * time.Minute}))
	require.NoError(t, err)

	return c
}

func (b *bench) ctx() context.Context { return b.t.Context() }

func blank() api.DiskBackend {
	return api.DiskBackend{Value: &api.DiskBackendDistributed{DiskSource: api.DiskSource{Value: &api.DiskSourceBlank{BlockSize: 512}}}}
}

func importing() api.DiskBackend {
	return api.DiskBackend{Value: &api.DiskBackendDistributed{
		DiskSource: api.DiskSource{Value: &api.DiskSourceImportingBlocks{BlockSize: 512}},
	}}
}

func ofImage(id string) api.DiskBackend {
	return api.DiskBackend{Value: &api.DiskBackendDistributed{DiskSource: api.DiskSource{Value: &api.DiskSourceImage{ImageId: id}}}}
}

func (b *bench) disk(name string, backend api.DiskBackend, size int) (*api.Disk, error) {
	return b.DiskCreate(b.ctx(), api.DiskCreateParams{Project: project, Body: &api.DiskCreate{
		Name: api.Name(name), Description: "a disk", Size: api.ByteCount(size), DiskBackend: backend,
	}})
}

func (b *bench) diskState(id string) string {
	b.t.Helper()

	d, err := b.DiskView(b.ctx(), api.DiskViewParams{Disk: api.NameOrId(id)})
	require.NoError(b.t, err)

	return string(d.State.State())
}

func (b *bench) write(disk string, offset int, data []byte) error {
	return b.DiskBulkWriteImport(b.ctx(), api.DiskBulkWriteImportParams{Disk: api.NameOrId(disk), Body: &api.ImportBlocksBulkWrite{
		Offset: new(uint64(offset)), Base64EncodedData: base64.StdEncoding.EncodeToString(data),
	}})
}

// image imports data, the pieces by their offsets, and returns the image's id.
func (b *bench) image(name string, pieces map[int][]byte) string {
	b.t.Helper()

	d, err := b.disk("import-"+name, importing(), 2*gib)
	require.NoError(b.t, err)

	disk := api.NameOrId(d.Id)
	require.NoError(b.t, b.DiskBulkWriteImportStart(b.ctx(), api.DiskBulkWriteImportStartParams{Disk: disk}))

	for offset, piece := range pieces {
		require.NoError(b.t, b.write(d.Id, offset, piece))
	}

	require.NoError(b.t, b.DiskBulkWriteImportStop(b.ctx(), api.DiskBulkWriteImportStopParams{Disk: disk}))
	require.NoError(b.t, b.DiskFinalizeImport(b.ctx(), api.DiskFinalizeImportParams{
		Disk: disk, Body: &api.FinalizeDisk{SnapshotName: api.Name("snapshot-" + name)},
	}))

	s, err := b.SnapshotView(b.ctx(), api.SnapshotViewParams{Project: project, Snapshot: api.NameOrId("snapshot-" + name)})
	require.NoError(b.t, err)

	i, err := b.ImageCreate(b.ctx(), api.ImageCreateParams{Project: project, Body: &api.ImageCreate{
		Name: api.Name(name), Description: "an image", Os: "talos", Version: "v1.13.5",
		Source: api.ImageSource{Value: &api.ImageSourceSnapshot{Id: s.Id}},
	}})
	require.NoError(b.t, err)
	require.NoError(b.t, b.SnapshotDelete(b.ctx(), api.SnapshotDeleteParams{Snapshot: api.NameOrId(s.Id)}))
	require.NoError(b.t, b.DiskDelete(b.ctx(), api.DiskDeleteParams{Disk: disk}))

	return i.Id
}

// spec is a small instance that boots from an image.
func spec(name, image string) *api.InstanceCreate {
	body := &api.InstanceCreate{
		Name: api.Name(name), Description: "an instance", Hostname: api.Hostname(name), Ncpus: 2, Memory: 4 * gib,
		SshPublicKeys: []api.NameOrId{}, UserData: base64.StdEncoding.EncodeToString([]byte("user-data-of-" + name)),
	}

	if image != "" {
		body.BootDisk = api.InstanceDiskAttachment{Value: &api.InstanceDiskAttachmentCreate{
			Name: api.Name(name + "-boot"), Description: "boot disk", Size: 10 * gib, DiskBackend: ofImage(image),
		}}
	}

	return body
}

func (b *bench) create(body *api.InstanceCreate) (*api.Instance, error) {
	return b.InstanceCreate(b.ctx(), api.InstanceCreateParams{Project: project, Body: body})
}

func (b *bench) instance(body *api.InstanceCreate) *api.Instance {
	b.t.Helper()

	i, err := b.create(body)
	require.NoError(b.t, err)

	return i
}

func (b *bench) state(id string) api.InstanceState {
	b.t.Helper()

	i, err := b.InstanceView(b.ctx(), api.InstanceViewParams{Instance: api.NameOrId(id)})
	require.NoError(b.t, err)

	return i.RunState
}

func (b *bench) start(id string) error {
	_, err := b.InstanceStart(b.ctx(), api.InstanceStartParams{Instance: api.NameOrId(id)})

	return err
}

func (b *bench) stop(id string) error {
	_, err := b.InstanceStop(b.ctx(), api.InstanceStopParams{Instance: api.NameOrId(id)})

	return err
}

func (b *bench) reboot(id string) error {
	_, err := b.InstanceReboot(b.ctx(), api.InstanceRebootParams{Instance: api.NameOrId(id)})

	return err
}

func (b *bench) delete(id string) error {
	return b.InstanceDelete(b.ctx(), api.InstanceDeleteParams{Instance: api.NameOrId(id)})
}

// requireNo requires that an answer says no with that code and text.
func requireNo(t *testing.T, err error, code error, text string) {
	t.Helper()

	require.ErrorIs(t, err, code)
	require.ErrorContains(t, err, text)
}

func TestMachineFromImageToItsEnd(t *testing.T) {
	var g oxide.Guest

	opts := oxide.Options{
		Boot: func(ctx context.Context, guest oxide.Guest) { g = guest; <-ctx.Done() },
		Durations: map[string]time.Duration{
			"disk_create": 3 * time.Second, "disk_finalize_import": time.Minute, "instance_create": 5 * time.Second,
			"instance_start": 20 * time.Second, "instance_stop": 10 * time.Second, "instance_delete": 2 * time.Second,
		},
	}

	inBubble(t, opts, func(b *bench) {
		projects, err := b.ProjectListAllPages(b.ctx(), api.ProjectListParams{})
		require.NoError(t, err)
		require.Len(t, projects, 1)

		image := b.image("talos", map[int][]byte{0: []byte(padded("boot sector"))})
		i := b.instance(spec("one", image))
		require.Equal(t, api.InstanceStateStarting, i.RunState)

		time.Sleep(20 * time.Second)
		synctest.Wait()
		require.Equal(t, i.Id, g.UUID)
		require.Equal(t, image, g.Image)
		require.Equal(t, "user-data-of-one", string(g.Seed["user-data"]))
		require.Len(t, g.MACs, 1)
		require.Equal(t, api.InstanceStateRunning, b.state(i.Id))

		requireNo(t, b.delete(i.Id), api.ErrInvalidRequest, "cannot delete instance: instance is running or has not yet fully stopped")
		require.NoError(t, b.stop(i.Id))
		require.Equal(t, api.InstanceStateStopping, b.state(i.Id))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, api.InstanceStateStopped, b.state(i.Id))
		requireNo(t, b.DiskDelete(b.ctx(), api.DiskDeleteParams{Disk: api.NameOrId(i.BootDiskId)}), api.ErrInvalidRequest,
			`disk cannot be deleted in state "attached"`)
		require.NoError(t, b.delete(i.Id))
		require.NoError(t, b.DiskDelete(b.ctx(), api.DiskDeleteParams{Disk: api.NameOrId(i.BootDiskId)}))
		require.Empty(t, b.Ledger().Leaks(), b.Ledger().History())
	})
}

// padded is text in a block of 512 bytes.
func padded(text string) string { return text + string(make([]byte, 512-len(text))) }
