package conformance

import (
	"context"
	"fmt"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
)

// upgradeCases let one release, or one library, go on where another has begun.
var upgradeCases = []testCase{
	{
		id: "UP-01", name: "upgrade/unreadable-record", uses: []means{simulatedOmni, cloudView},
		rule: "A machine whose record in Omni cannot be read is left in peace, and goes with its request.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			machine := e.machine()

			e.stop()
			e.scramble("r-1")
			e.start()
			e.inPeace(calm, machine)
			e.remove("r-1")
			e.awaitGone("r-1")
		},
	},
	{
		id: "UP-02", name: "upgrade/provisioned-by-another-library", uses: []means{simulatedOmni, cloudView},
		rule: "A request that the official library has provisioned is left as it is, without a second machine, and ends when it is torn down.",
		run: func(e *env) {
			const uuid = "5721a1ba-0000-4000-8000-000000000002"

			e.stop()
			e.adopt("r-1", uuid)
			e.start()
			e.throughout(calm, "the request stays provisioned, and nothing is made", func() (string, bool) {
				s := e.status("r-1")

				return fmt.Sprintf("%v, %s", s, describe(e.machines())),
					s.GetId() == uuid && s.GetStage() == specs.MachineRequestStatusSpec_PROVISIONED && len(e.machines()) == 0
			})
			e.remove("r-1")
			e.awaitGone("r-1")
		},
	},
	{
		id: "UP-03", name: "upgrade/next-release", needs: []Feature{NextRelease}, uses: []means{ownProcess, cloudView},
		rule: "The next release of the provider finds the machines of the last one, leaves them in peace, makes others, and takes all of them away.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			machine := e.machine()

			e.stop()
			e.upgrade()
			e.start()
			e.inPeace(calm, machine)
			e.request("r-2")
			e.awaitJoined("r-2")
			e.remove("r-1")
			e.awaitGone("r-1")
		},
	},
}

// upgrade makes the next process that of the next release.
func (e *env) upgrade() {
	if e.subject.Next == nil {
		panic(fmt.Sprintf("feature %q is claimed, and the subject has no Next", NextRelease))
	}

	e.subject.Run = e.subject.Next
	e.note("provider %s is upgraded", e.provider)
}

// scramble writes something into the records of a request that no provider has written.
func (e *env) scramble(id string) {
	e.eachRecord(func(ctx context.Context, record resource.Resource) error {
		if record.Metadata().ID() != e.full(id) {
			return nil
		}

		// Field 1, of a length that there is not.
		spec := &v1alpha1.Spec{ProtoSpec: []byte{0x0a, 0xff, 0x01, 'x'}}

		wire, err := protobuf.FromResource(record)
		if err != nil {
			return err
		}

		message, err := wire.Marshal()
		if err != nil {
			return err
		}

		message.Spec = spec

		garbled, err := protobuf.Unmarshal(message)
		if err != nil {
			return err
		}

		return e.omni.State().Update(ctx, garbled, state.WithUpdateOwner(record.Metadata().Owner()))
	})
	e.note("what the provider stored of %s is scrambled", id)
}

// adopt leaves in Omni what a provider on the official library leaves there of a machine that it has made.
func (e *env) adopt(id, uuid string) {
	owner := e.provider + ".ProvisionController"

	e.request(id)
	e.do("write what another library writes", func(ctx context.Context) error {
		st := e.omni.State()

		if err := st.AddFinalizer(ctx, infra.NewMachineRequest(e.full(id)).Metadata(), owner); err != nil {
			return err
		}

		status := infra.NewMachineRequestStatus(e.full(id))
		status.Metadata().Labels().Set(omni.LabelInfraProviderID, e.provider)
		status.TypedSpec().Value.Id = uuid
		status.TypedSpec().Value.Stage = specs.MachineRequestStatusSpec_PROVISIONED
		status.TypedSpec().Value.Status = "Provision Complete"

		return st.Create(ctx, status, state.WithCreateOwner(owner))
	})
	e.note("another library has provisioned %s with UUID %s", id, uuid)
}
