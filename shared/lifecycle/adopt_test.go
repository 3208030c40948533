package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/protoenc"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

// The golden states are of this request.
const (
	officialRequest = "workers-x7k2p9"
	officialUUID    = "8a4b7c1e-5a3d-4a0e-9d43-2f0c6b1e7a55"
)

// adopting is a cloud in which a provider on the official library has made machines, and a driver that takes them over.
type adopting struct {
	*cloud
	// theirs are the objects without a mark, by what the official provider called them: machines with their UUID, volumes with "".
	theirs map[string]string
	power  driver.Power
}

// libvirtState is what the official libvirt provider stores, as far as the cloud here cares.
type libvirtState struct {
	UUID   string `protobuf:"1"`
	Volume string `protobuf:"10"`
	Name   string `protobuf:"21"`
}

func (a *adopting) Adopt(ctx context.Context, f driver.Foreign) (driver.Adoption, error) {
	if err := a.called(ctx, "adopt", f.RequestID); err != nil {
		return driver.Adoption{}, err
	}

	var s libvirtState
	if err := protoenc.Unmarshal(f.State, &s); err != nil {
		return driver.Adoption{}, driver.Terminalf("read the state: %w", err)
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	uuid, ok := a.theirs[f.RequestID]

	switch {
	case !ok:
		return driver.Adoption{}, driver.NotFound("no machine %s", s.UUID)
	case uuid != s.UUID:
		return driver.Adoption{}, driver.Terminalf("machine %q has UUID %s, not %s as the state says", f.RequestID, uuid, s.UUID)
	}

	if f.Unfinished {
		a.power = driver.PowerOn
	}

	machine := driver.Machine{Ref: f.Ref, ID: f.RequestID, UUID: uuid, Power: a.power, Boot: "1"}
	a.machines[f.RequestID] = machine

	return driver.Adoption{Machine: machine, Names: map[string]string{"domain": f.RequestID, "volume": s.Volume}}, nil
}

func (a *adopting) Discard(ctx context.Context, f driver.Foreign) (bool, error) {
	if err := a.called(ctx, "discard", f.RequestID); err != nil {
		return false, err
	}

	var s libvirtState
	if err := protoenc.Unmarshal(f.State, &s); err != nil {
		return false, fmt.Errorf("read the state: %w", err)
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	if a.theirs[f.RequestID] == s.UUID {
		delete(a.theirs, f.RequestID)
	}

	delete(a.theirs, s.Volume)

	return true, nil
}

func (a *adopting) Remove(ctx context.Context, ref driver.Ref) (bool, error) {
	a.mu.Lock()
	if machine, ok := a.machines[ref.RequestID]; ok && machine.ID == ref.RequestID {
		delete(a.theirs, ref.RequestID)
	}
	a.mu.Unlock()

	return a.cloud.Remove(ctx, ref)
}

func (a *adopting) objects() int {
	a.mu.Lock()
	defer a.mu.Unlock()

	return len(a.theirs) + len(a.machines)
}

// succeeds starts a provider whose driver adopts, after an official one.
func (w *world) succeeds(stored string, stage specs.MachineRequestStatusSpec_Stage, change ...func(*infra.MachineRequest)) *adopting {
	w.stop()

	spec, err := os.ReadFile("testdata/official/" + stored)
	require.NoError(w.t, err)

	a := &adopting{cloud: w.cloud, theirs: map[string]string{officialRequest: officialUUID, officialRequest + ".qcow2": ""}, power: driver.PowerOn}
	w.driver = a
	w.store(officialType, officialRequest, spec, map[string]string{"infra.omni.sidero.dev/step": "startVM"})
	w.inherit(officialRequest, stage, change...)

	_, err = w.st.UpdateWithConflicts(w.ctx, infra.NewMachineRequestStatus(officialRequest).Metadata(), func(r resource.Resource) error {
		r.(*infra.MachineRequestStatus).TypedSpec().Value.Id = officialUUID //nolint:forcetypeassert,errcheck // read by its id

		return nil
	}, state.WithUpdateOwner(owner))
	require.NoError(w.t, err)

	return a
}

func (w *world) hasOfficialState() bool {
	_, err := w.st.Get(w.ctx, resource.NewMetadata("infra-provider:test", officialType, officialRequest, resource.VersionUndefined))
	if !state.IsNotFoundError(err) {
		require.NoError(w.t, err)
	}

	return err == nil
}

func TestMachineOfAnOfficialProviderIsAdoptedAsItIs(t *testing.T) {
	run(t, func(w *world) {
		a := w.succeeds("libvirt.pb", specs.MachineRequestStatusSpec_PROVISIONED)
		w.join(officialRequest, officialUUID)
		w.start()
		w.wait(10 * time.Minute)

		status, _ := w.status(officialRequest)
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, status.TypedSpec().Value.Stage)
		assert.Equal(t, officialUUID, status.TypedSpec().Value.Id)
		assert.Empty(t, status.TypedSpec().Value.Error)
		assert.Zero(t, w.cloud.count("create "+officialRequest), "it is not made again")
		assert.Zero(t, w.cloud.count("reboot "+officialRequest), "it is not restarted")
		assert.True(t, w.hasOfficialState(), "the state is kept, for the way back")

		told := w.logs.FilterMessage("machine of an official provider adopted").All()
		require.Len(t, told, 1)
		assert.Equal(t, map[string]any{
			"request": officialRequest, "machine": officialRequest, "uuid": officialUUID,
			"objects": map[string]string{"domain": officialRequest, "volume": officialRequest + ".qcow2"},
		}, told[0].ContextMap(), "the log says exactly what was adopted")

		w.stop()
		w.start()
		w.wait(10 * time.Minute)
		assert.Zero(t, w.logs.FilterMessage("machine of an official provider adopted").Len(), "it is adopted once")

		w.annotate(officialRequest, lifecycle.PowerAnnotation, "off")
		w.wait(time.Minute)
		assert.Equal(t, 1, w.cloud.count("power "+officialRequest+" off"), "power works as for one of its own")

		w.endsWithoutTrace(officialRequest)
		assert.Zero(t, a.objects())
		assert.False(t, w.hasOfficialState())
	})
}

func TestOldWishesDoNotRebootAnAdoptedMachine(t *testing.T) {
	run(t, func(w *world) {
		w.succeeds("libvirt.pb", specs.MachineRequestStatusSpec_PROVISIONED, func(r *infra.MachineRequest) {
			r.Metadata().Annotations().Set(lifecycle.RebootAnnotation, "of last year")
		})
		w.join(officialRequest, officialUUID)
		w.start()
		w.wait(10 * time.Minute)
		assert.Zero(t, w.cloud.count("reboot "+officialRequest))

		w.annotate(officialRequest, lifecycle.RebootAnnotation, "now")
		w.wait(time.Minute)
		assert.Equal(t, 1, w.cloud.count("reboot "+officialRequest))
	})
}

func TestMachineThatVanishesAfterItsAdoptionIsReplacedWithoutALeftOver(t *testing.T) {
	run(t, func(w *world) {
		a := w.succeeds("libvirt.pb", specs.MachineRequestStatusSpec_PROVISIONED)
		w.join(officialRequest, officialUUID)
		w.start()
		w.wait(10 * time.Minute)

		w.cloud.drop(officialRequest)
		a.mu.Lock()
		delete(a.theirs, officialRequest) // its volume is still there
		a.mu.Unlock()
		w.wait(10 * time.Minute)

		w.endsWithoutTrace(officialRequest)
		assert.Zero(t, a.objects())
		assert.False(t, w.hasOfficialState())
	})
}

func TestWhatIsNotAsTheStateSaysIsLeftAloneWithAReason(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(a *adopting)
		reason string
	}{
		"another UUID": {func(a *adopting) { a.theirs[officialRequest] = "4e8b30f7-0d7f-4b0e-9f39-0f1f7c5f5b11" }, "not 8a4b7c1e-5a3d-4a0e-9d43-2f0c6b1e7a55 as the state says"},
		"no machine":   {func(a *adopting) { delete(a.theirs, officialRequest) }, "no machine 8a4b7c1e"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				a := w.succeeds("libvirt.pb", specs.MachineRequestStatusSpec_PROVISIONED)
				tt.change(a)
				w.join(officialRequest, officialUUID)
				w.start()
				w.wait(time.Hour)

				assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage(officialRequest), "Omni loses no node by it")
				assert.Contains(t, w.failure(officialRequest), "take over the official provider's machine: ")
				assert.Contains(t, w.failure(officialRequest), tt.reason)
				assert.NotZero(t, w.logs.FilterMessage("machine of an official provider is not adopted").Len())
				assert.Empty(t, w.cloud.names(), "nothing is marked or made")
				assert.Zero(t, w.cloud.count("create "+officialRequest))

				before := a.theirs[officialRequest]
				w.endsWithoutTrace(officialRequest)
				assert.Equal(t, before, a.theirs[officialRequest], "what is not its machine outlives it")
				assert.NotContains(t, a.theirs, officialRequest+".qcow2")
			})
		})
	}
}

func TestMachineThatWasOnlyBegunIsBegunAnew(t *testing.T) {
	run(t, func(w *world) {
		a := w.succeeds("libvirt-begun.pb", specs.MachineRequestStatusSpec_PROVISIONING)
		delete(a.theirs, officialRequest)
		w.start()
		w.wait(time.Minute)

		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage(officialRequest))
		assert.Equal(t, 1, w.cloud.count("create "+officialRequest))
		assert.Empty(t, a.theirs, "what the official provider had begun is gone")
		assert.False(t, w.hasOfficialState())
		assert.Equal(t, 1, w.logs.FilterMessageSnippet("only begun").Len())

		w.endsWithoutTrace(officialRequest)
		assert.Zero(t, a.objects())
	})
}

func TestMachineThatWasMadeButNotStartedIsAdoptedAndStarted(t *testing.T) {
	run(t, func(w *world) {
		a := w.succeeds("libvirt.pb", specs.MachineRequestStatusSpec_PROVISIONING)
		a.power = driver.PowerOff
		w.start()
		w.wait(time.Minute)

		status, _ := w.status(officialRequest)
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, status.TypedSpec().Value.Stage)
		assert.Equal(t, officialUUID, status.TypedSpec().Value.Id)
		assert.Zero(t, w.cloud.count("create "+officialRequest))
		assert.Equal(t, driver.PowerOn, a.power)
		w.endsWithoutTrace(officialRequest)
		assert.Zero(t, a.objects())
	})
}

func TestTeardownTakesAwayWhatWasNeverAdopted(t *testing.T) {
	run(t, func(w *world) {
		a := w.succeeds("libvirt.pb", specs.MachineRequestStatusSpec_PROVISIONED)
		w.teardown(officialRequest)
		w.start()
		w.wait(time.Minute)
		assert.Zero(t, a.objects())
		assert.Empty(t, w.finalizers(officialRequest))
		assert.Empty(t, w.left())
		assert.False(t, w.hasOfficialState())
		assert.Zero(t, w.logs.FilterMessageSnippet("not ours to remove").Len())
	})
}

// A crash before any call of the provider, to Omni or to the cloud, leads to one adoption, and never to a second machine or to
// another word to Omni than that the machine is there.
func TestCrashAtAnyPointOfAnAdoptionLeadsToOneMachine(t *testing.T) {
	for _, tt := range []struct {
		state string
		stage specs.MachineRequestStatusSpec_Stage
	}{
		{"libvirt.pb", specs.MachineRequestStatusSpec_PROVISIONED},
		{"libvirt.pb", specs.MachineRequestStatusSpec_PROVISIONING},
		{"libvirt-begun.pb", specs.MachineRequestStatusSpec_PROVISIONING},
	} {
		for point := 1; ; point++ {
			crashed := false

			name := fmt.Sprintf("%s %s %d", strings.TrimSuffix(tt.state, ".pb"), tt.stage, point)
			ok := t.Run(name, func(t *testing.T) {
				run(t, func(w *world) { crashed = w.crashOfAdoption(tt.state, tt.stage, point) })
			})

			if !ok || !crashed {
				require.Greater(t, point, 3, "there are calls to crash at")

				break
			}
		}
	}
}

// crashOfAdoption kills the provider before the call with a number, starts another one, and reports whether it came to that.
func (w *world) crashOfAdoption(stored string, stage specs.MachineRequestStatusSpec_Stage, point int) bool {
	begun := stored == "libvirt-begun.pb"

	a := w.succeeds(stored, stage)
	if begun {
		delete(a.theirs, officialRequest)
	}

	stages := w.stagesOf(officialRequest)
	dead, calls := errors.New("the process is dead"), 0

	var mu sync.Mutex

	count := func() error {
		mu.Lock()
		defer mu.Unlock()

		if calls++; calls >= point {
			return dead
		}

		return nil
	}

	w.setDeadAt(func(kind string) error {
		if kind == "Leases" || kind == "InfraProviderStatuses" {
			return nil
		}

		return count()
	})
	w.cloud.set(func(_ context.Context, call, _ string) error {
		if call == "list" || call == "check" {
			return nil
		}

		return count()
	})

	w.start()
	w.wait(5 * time.Second)
	w.stop()

	crashed := calls >= point

	w.setDeadAt(nil)
	w.cloud.set(nil)
	w.start()
	w.wait(5 * time.Minute)

	status, _ := w.status(officialRequest)
	assert.Equal(w.t, specs.MachineRequestStatusSpec_PROVISIONED, status.TypedSpec().Value.Stage)
	assert.Empty(w.t, status.TypedSpec().Value.Error)
	assert.Equal(w.t, []string{officialRequest}, w.cloud.names())

	if begun {
		assert.Empty(w.t, a.theirs)
	} else {
		assert.Equal(w.t, officialUUID, status.TypedSpec().Value.Id)
		assert.Zero(w.t, w.cloud.count("create "+officialRequest))
		assert.Len(w.t, a.theirs, 2)
	}

	if stage == specs.MachineRequestStatusSpec_PROVISIONED {
		assert.Equal(w.t, []specs.MachineRequestStatusSpec_Stage{stage}, stages(), "Omni is told nothing else meanwhile")
	}

	w.endsWithoutTrace(officialRequest)
	assert.Zero(w.t, a.objects())

	return crashed
}

// stagesOf follows the stages that a request's status goes through.
func (w *world) stagesOf(id string) func() []specs.MachineRequestStatusSpec_Stage {
	var stages []specs.MachineRequestStatusSpec_Stage

	ch := make(chan state.Event)
	require.NoError(w.t, w.st.Watch(w.ctx, infra.NewMachineRequestStatus(id).Metadata(), ch))

	go func() {
		for {
			select {
			case <-w.ctx.Done():
				return
			case event := <-ch:
				if s, ok := event.Resource.(*infra.MachineRequestStatus); ok {
					w.mu.Lock()
					stages = append(stages, s.TypedSpec().Value.Stage)
					w.mu.Unlock()
				}
			}
		}
	}()

	return func() []specs.MachineRequestStatusSpec_Stage {
		w.mu.Lock()
		defer w.mu.Unlock()

		return slices.Compact(slices.Clone(stages))
	}
}
