package lifecycle_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

const (
	recordType   = "Machines.test.infraprovider.sidero.dev"
	officialType = "Machine.test.infraprovider.sidero.dev"
	owner        = "test.ProvisionController"
)

// inherit gives the provider that starts next a request that another one was at work on: it has the finalizer and a status.
func (w *world) inherit(id string, stage specs.MachineRequestStatusSpec_Stage, change ...func(*infra.MachineRequest)) {
	w.request(id, append(change, func(r *infra.MachineRequest) { r.Metadata().Finalizers().Add(owner) })...)

	status := infra.NewMachineRequestStatus(id)
	status.Metadata().Labels().Set(omni.LabelInfraProviderID, providerID)
	status.TypedSpec().Value.Stage = stage
	status.TypedSpec().Value.Id = driver.NewIdentity(driver.Ref{ProviderID: providerID, RequestID: id}).UUID
	require.NoError(w.t, w.st.Create(w.ctx, status, state.WithCreateOwner(owner)))
}

// store puts a state object into Omni as it came over the wire from another program.
func (w *world) store(kind resource.Type, id string, spec []byte, annotations map[string]string) {
	r, err := protobuf.Unmarshal(&v1alpha1.Resource{
		Metadata: &v1alpha1.Metadata{
			Namespace: "infra-provider:test", Type: kind, Id: id, Version: "undefined", Phase: "running", Annotations: annotations,
		},
		Spec: &v1alpha1.Spec{ProtoSpec: spec},
	})
	require.NoError(w.t, err)
	require.NoError(w.t, w.st.Create(w.ctx, r, state.WithCreateOwner(owner)))
}

// running puts the machine of a request into the cloud, with its mark.
func (w *world) running(id string) {
	ref := driver.Ref{ProviderID: providerID, RequestID: id}
	w.cloud.change(ref, func(m *driver.Machine) {
		*m = driver.Machine{Ref: ref, ID: "vm-" + id, UUID: driver.NewIdentity(ref).UUID, Power: driver.PowerOn, Boot: "1"}
	})
}

func (w *world) endsWithoutTrace(id string) {
	w.teardown(id)
	w.wait(time.Minute)
	assert.Empty(w.t, w.finalizers(id))
	assert.Empty(w.t, w.left())
}

func TestMachineOfEveryReleaseIsCaredForAndNotMadeAgain(t *testing.T) {
	files, err := filepath.Glob("testdata/state/v*/*.pb")
	require.NoError(t, err)
	require.NotEmpty(t, files)

	for _, file := range files {
		stored, err := os.ReadFile(file)
		require.NoError(t, err)

		lost := strings.Contains(file, "lost")

		t.Run(strings.TrimPrefix(file, "testdata/state/"), func(t *testing.T) {
			run(t, func(w *world) {
				w.stop()
				w.store(recordType, "pool-a", stored, nil)

				if lost {
					w.inherit("pool-a", specs.MachineRequestStatusSpec_FAILED, ofNoSet)
				} else {
					w.inherit("pool-a", specs.MachineRequestStatusSpec_PROVISIONED)
					w.running("pool-a")
				}

				uuid := driver.NewIdentity(driver.Ref{ProviderID: providerID, RequestID: "pool-a"}).UUID
				if !lost {
					w.join("pool-a", uuid)
				}

				w.start()
				w.wait(5 * time.Minute)
				assert.Zero(t, w.cloud.count("create pool-a"))
				assert.Equal(t, strings.Contains(file, "wish-reboot"), w.cloud.count("reboot pool-a") == 1)
				assert.Equal(t, strings.Contains(file, "wish-power"), w.cloud.count("power pool-a off") == 1)

				if lost {
					assert.Contains(t, w.failure("pool-a"), "machine was removed from Omni")
				} else {
					assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a"))

					_, err := w.st.Get(w.ctx, infra.NewMachineStatus(uuid).Metadata())
					require.NoError(t, err, "it is observed")

					status, _ := w.status("pool-a")
					w.setHeld(status.Metadata(), true)
					w.cloud.drop("pool-a")
					w.wait(5 * time.Minute)
					assert.Contains(t, w.failure("pool-a"), "vanished from the cloud")
					w.setHeld(status.Metadata(), false)
				}

				w.endsWithoutTrace("pool-a")
			})
		})
	}
}

// What official providers store has any form. Their type is Machine; another library of the like may use ours.
func TestRequestThatAnOfficialProviderBeganIsTakenOver(t *testing.T) {
	step := map[string]string{"infra.omni.sidero.dev/step": "syncMachine"}
	// The string fields 1, 2, 3 and 10 of a libvirt machine.
	spec := []byte("\x0a\x04uuid\x12\x09schematic\x1a\x061.13.5\x52\x06volume")

	for name, kind := range map[string]resource.Type{"its type": officialType, "our type": recordType} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				w.stop()

				for _, id := range []string{"begun", "made", "torn"} {
					w.store(kind, id, spec, step)
				}

				w.store(kind, "gone", spec, step)
				w.inherit("begun", specs.MachineRequestStatusSpec_PROVISIONING)
				w.inherit("made", specs.MachineRequestStatusSpec_PROVISIONED)
				w.inherit("torn", specs.MachineRequestStatusSpec_PROVISIONING)
				w.join("made", "11111111-2222-3333-4444-555555555555")
				w.teardown("torn")
				w.start()
				w.wait(time.Hour)

				assert.Empty(t, w.finalizers("torn"))
				assert.Equal(t, []string{"begun"}, w.cloud.names(), "it is made from the first phase on")
				assert.Equal(t, 1, w.cloud.count("create begun"))
				assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("begun"))

				assert.Zero(t, w.cloud.count("create made"))
				assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("made"), "a machine without our mark is not missed")
				assert.Equal(t, 1, w.cloud.count("remove torn"))

				w.stop()
				w.start()
				w.teardown("made")
				w.wait(time.Minute)
				assert.Empty(t, w.finalizers("made"))
				assert.NotZero(t, w.logs.FilterMessageSnippet("made by a provider on the official library").Len())
				w.endsWithoutTrace("begun")
			})
		})
	}
}

func TestRecordOfALaterReleaseIsLeftAlone(t *testing.T) {
	// Version 2, a UUID, and field 200 that only it knows.
	later := []byte("\x08\x02\x12\x04uuid\xc2\x0c\x05later")

	for _, stage := range []specs.MachineRequestStatusSpec_Stage{
		specs.MachineRequestStatusSpec_PROVISIONING, specs.MachineRequestStatusSpec_PROVISIONED,
	} {
		for name, change := range map[string]func(*infra.MachineRequest){"of a set": func(*infra.MachineRequest) {}, "of no set": ofNoSet} {
			t.Run(stage.String()+" "+name, func(t *testing.T) {
				run(t, func(w *world) {
					w.stop()
					w.store(recordType, "pool-a", later, nil)
					w.inherit("pool-a", stage, change)
					w.running("pool-a")
					w.start()
					w.join("pool-a", driver.NewIdentity(driver.Ref{ProviderID: providerID, RequestID: "pool-a"}).UUID)
					w.wait(time.Hour)

					assert.Contains(t, w.failure("pool-a"), "the record of this machine has version 2, and this release of the provider knows up to 1")
					assert.Equal(t, stage == specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a") == specs.MachineRequestStatusSpec_PROVISIONED)
					assert.Zero(t, w.cloud.count("create pool-a"))

					res, err := w.st.Get(w.ctx, resource.NewMetadata("infra-provider:test", recordType, "pool-a", resource.VersionUndefined))
					require.NoError(t, err)
					assert.EqualValues(t, 1, res.Metadata().Version().Value(), "nobody has written it")

					w.endsWithoutTrace("pool-a")
					assert.Equal(t, 1, w.cloud.count("remove pool-a"))
				})
			})
		}
	}
}
