package conformance

import (
	"fmt"

	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

var neighbourCases = []testCase{
	{
		id: "NB-01", name: "ownership/same-request-id", uses: []means{simulatedOmni, cloudView, simulatedCloud},
		rule: "Two providers of two Omnis that share a cloud leave each other's machines alone, also if their requests have the same id.",
		run: func(e *env) {
			n := e.neighbour()

			e.request("r-1")
			e.awaitJoined("r-1")
			n.request("r-1")
			n.awaitJoined("r-1")

			theirs := n.machine()

			e.restart()
			n.inPeace(calm, theirs)
			e.remove("r-1")
			e.awaitGone("r-1")
			n.inPeace(calm, theirs)
			e.request("r-1")
			e.awaitJoined("r-1")
			n.remove("r-1")
			n.awaitGone("r-1")
			e.inPeace(calm, e.machine())
		},
	},
	{
		id: "NB-02", name: "ownership/same-request-id-vanished", needs: []Feature{Replace}, uses: []means{simulatedOmni, cloudView, cloudHand, simulatedCloud},
		rule: "A machine that vanished is missed though a neighbour has one of the same request id, which is left in peace.",
		run: func(e *env) {
			n := e.neighbour()

			e.request("r-1")
			e.awaitJoined("r-1")
			n.request("r-1")
			n.awaitJoined("r-1")

			theirs := n.machine()

			e.deleteMachine()
			e.awaitError("r-1", replaceAnnotation)
			n.inPeace(calm, theirs)
			e.annotate("r-1", replaceAnnotation, "once more")
			e.awaitProvisioned("r-1")
			e.awaitJoined("r-1")
			n.inPeace(calm, theirs)
		},
	},
}

// neighboursMachineAPI is where the machines of a neighbour's Omni join.
const neighboursMachineAPI = "grpc://127.0.0.2:8090"

// neighbour starts another provider on the same cloud, with an Omni of its own. What the case asks of it is taken back as well.
func (e *env) neighbour() *env {
	n := newEnv(e.provider + "-2")
	n.bench, n.pace = simulator{n}, e.pace
	n.simulation = e.simulation
	n.foreign, n.writes, n.schematics = map[string]bool{}, ledger.New(), &schematics{}
	n.neighbours, e.neighbours = []*env{e}, append(e.neighbours, n)
	n.open(e.history())

	var err error

	if n.omni, err = omni.New(omni.Options{
		MachineAPIURL: neighboursMachineAPI, Factory: n.schematics, Log: func(text string) { e.note("neighbour's omni: %s", text) },
	}); err != nil {
		panic(fmt.Errorf("make the neighbour's Omni: %w", err))
	}

	e.tasks.Go(func() {
		<-e.ctx.Done()
		n.end()
	})
	n.tasks.Go(func() {
		if err := n.omni.Run(n.ctx); err != nil {
			panic(err)
		}
	})

	n.world.settle(neighboursMachineAPI, n.omni)
	n.state, n.cloud, n.data = n.omni.State(), e.cloud, e.data
	n.key = n.createProvider(n.provider)
	n.start()

	return n
}

// clearNeighbours takes back what was asked of the neighbours, and names what is left.
func (e *env) clearNeighbours() (left []string) {
	for _, n := range e.neighbours {
		n.removeAll()
		n.stop()
		left = append(left, n.leftInOmni()...)
	}

	return left
}

// isNeighbours reports whether a machine is a neighbour's, by what its requests tell.
func (e *env) isNeighbours(m ledger.Machine) bool {
	for _, n := range e.neighbours {
		for _, s := range list[*infra.MachineRequestStatus](n) {
			if s.TypedSpec().Value.GetId() == lower(m.UUID) {
				return true
			}
		}
	}

	return false
}
