package lifecycle

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
)

var update = flag.Bool("update", false, "write the golden files that are not there; stored states of a release are never written again")

// storedStates are what a release leaves in Omni, by the situation. A situation that is added gets its file with -update.
var storedStates = map[string]recordSpec{
	"planned":     {UUID: "b2a7e0f1-3a52-5d2c-9c57-04d4f3b9a3a0", Names: map[string]string{"machine": "pool-a", "volume": "pool-a-boot"}},
	"cloud-id":    {Names: map[string]string{"machine": "pool-a"}},
	"joined":      {UUID: "b2a7e0f1-3a52-5d2c-9c57-04d4f3b9a3a0", Names: map[string]string{"machine": "pool-a"}, Joined: "b2a7e0f1-3a52-5d2c-9c57-04d4f3b9a3a0"},
	"lost":        {UUID: "b2a7e0f1-3a52-5d2c-9c57-04d4f3b9a3a0", Names: map[string]string{"machine": "pool-a"}, Lost: "machine was removed from Omni", Replaced: "2"},
	"rebooting":   {UUID: "b2a7e0f1-3a52-5d2c-9c57-04d4f3b9a3a0", Names: map[string]string{"machine": "pool-a"}, RebootID: "r-7", RebootFrom: "boot-3"},
	"wish-power":  {UUID: "b2a7e0f1-3a52-5d2c-9c57-04d4f3b9a3a0", Names: map[string]string{"machine": "pool-a"}, PowerWish: "off"},
	"wish-reboot": {UUID: "b2a7e0f1-3a52-5d2c-9c57-04d4f3b9a3a0", Names: map[string]string{"machine": "pool-a"}, RebootWish: "r-8"},
	"placed":      {UUID: "b2a7e0f1-3a52-5d2c-9c57-04d4f3b9a3a0", Names: map[string]string{"machine": "pool-a"}, Place: "host-b"},
	"rebooted":    {UUID: "b2a7e0f1-3a52-5d2c-9c57-04d4f3b9a3a0", Names: map[string]string{"machine": "pool-a"}, RebootID: "r-7", RebootFrom: "boot-3", RebootDone: true},
}

// The stored form of every release is read by all later ones, with the meaning that it had.
func TestStoredStateOfEveryReleaseIsRead(t *testing.T) {
	current := filepath.Join("testdata", "state", "v"+strconv.Itoa(recordVersion))

	if *update {
		require.NoError(t, os.MkdirAll(current, 0o755))

		for name, spec := range storedStates {
			spec.Version = recordVersion

			data, err := spec.MarshalProto()
			require.NoError(t, err)
			writeOnce(t, filepath.Join(current, name+".pb"), data)

			text, err := yaml.Marshal(spec)
			require.NoError(t, err)
			writeOnce(t, filepath.Join(current, name+".yaml"), text)
		}
	}

	for name := range storedStates {
		assert.FileExists(t, filepath.Join(current, name+".pb"), "make it with -update")
	}

	files, err := filepath.Glob("testdata/state/v*/*.pb")
	require.NoError(t, err)

	for _, file := range files {
		stored, err := os.ReadFile(file)
		require.NoError(t, err)

		want, err := os.ReadFile(strings.TrimSuffix(file, ".pb") + ".yaml")
		require.NoError(t, err)

		r, ok, err := decodeRecord(delivered(t, stored, nil))
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, r.readable(), file)

		got, err := yaml.Marshal(r.spec)
		require.NoError(t, err)
		assert.YAMLEq(t, string(want), string(got), file)

		// What this release would write of it is read the same.
		data, err := r.spec.MarshalProto()
		require.NoError(t, err)

		again, _, err := decodeRecord(delivered(t, data, nil))
		require.NoError(t, err)
		assert.Equal(t, r.spec, again.spec, file)
	}
}

// writeOnce writes a golden file, but never over another.
func writeOnce(t *testing.T, file string, data []byte) {
	t.Helper()

	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // a golden file
	if os.IsExist(err) {
		return
	}

	require.NoError(t, err)

	_, err = f.Write(data)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// delivered is a state object as Omni delivers it.
func delivered(t *testing.T, spec []byte, annotations map[string]string) *protobuf.Resource {
	t.Helper()

	r, err := protobuf.Unmarshal(&v1alpha1.Resource{
		Metadata: &v1alpha1.Metadata{
			Namespace: recordNamespace("test"), Type: recordType("test"), Id: "pool-a", Version: "1",
			Owner: "test.ProvisionController", Phase: "running", Annotations: annotations,
		},
		Spec: &v1alpha1.Spec{ProtoSpec: spec},
	})
	require.NoError(t, err)

	return r
}

// States of other libraries say nothing to this one, whatever their bytes happen to look like.
func TestStateOfAnotherLibraryIsNoRecord(t *testing.T) {
	own, err := (&recordSpec{Version: recordVersion, UUID: "b2a7e0f1-3a52-5d2c-9c57-04d4f3b9a3a0", Lost: "gone"}).MarshalProto()
	require.NoError(t, err)

	for name, tt := range map[string]struct {
		spec        []byte
		annotations map[string]string
	}{
		// A UUID in field 1, a schematic in 2, a Talos version in 3: the state of several official providers.
		"a string where the version is":      {spec: []byte("\x0a\x04uuid\x12\x09schematic\x1a\x061.13.5")},
		"strings behind an absent version":   {spec: []byte("\x12\x09schematic\x2a\x04lost")},
		"nothing":                            {},
		"no protobuf":                        {spec: []byte("{\"uuid\":1}\xff\xff")},
		"our form, with a step of another's": {spec: own, annotations: map[string]string{stepAnnotation: "create-vm"}},
	} {
		r, ok, err := decodeRecord(delivered(t, tt.spec, tt.annotations))
		require.NoError(t, err, name)
		require.True(t, ok, name)
		assert.Equal(t, recordSpec{}, r.spec, name)
		assert.False(t, r.ours(), name)
		assert.Equal(t, resource.ID("pool-a"), r.Metadata().ID(), name)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte("\x0a\x04uuid"), true)
	f.Add([]byte("\x08\x01\x12\x04uuid"), false)

	f.Fuzz(func(t *testing.T, spec []byte, step bool) {
		var annotations map[string]string
		if step {
			annotations = map[string]string{stepAnnotation: "x"}
		}

		r, ok, err := decodeRecord(delivered(t, spec, annotations))
		require.NoError(t, err)
		require.True(t, ok)

		if step {
			require.False(t, r.ours())
		}

		if !r.ours() {
			require.Equal(t, recordSpec{}, r.spec)
		}
	})
}
