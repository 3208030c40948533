package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

var omniCases = []testCase{
	{
		id: "OM-01", name: "omni/restart-at-each-call", uses: []means{cloudView, simulatedOmni, simulatedCloud},
		rule: "Omni may restart at any time in a machine's life, and forget what it has in memory only.",
		run:  (*env).lifeOfOneMachine,
		troubles: every(2, atEachCloudCall("restart", func(e *env) ledger.Fault {
			return ledger.Fault{Then: func() { e.beside(func() { e.restartOmni(30 * time.Second) }) }}
		})),
	},
	{
		id: "OM-02", name: "omni/partition-at-each-call", uses: []means{cloudView, simulatedOmni, simulatedCloud},
		rule: "Omni may be out of reach for minutes at any time in a machine's life.",
		run:  (*env).lifeOfOneMachine,
		troubles: every(2, atEachCloudCall("partition", func(e *env) ledger.Fault {
			return ledger.Fault{Then: func() { e.beside(func() { e.partitionFor(3 * time.Minute) }) }}
		})),
	},
	{
		id: "OM-03", name: "omni/all-watches-cut", uses: []means{cloudView, simulatedOmni},
		rule: "Watches that Omni ends because they were too slow are opened again, with nothing lost and nothing done twice.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			for n := range 5 {
				e.cutWatches()
				e.request(fmt.Sprintf("new-%d", n))
				e.cutWatches()
			}

			e.remove("r-1")
			e.cutWatches()
			e.awaitGone("r-1")

			for n := range 5 {
				e.awaitJoined(fmt.Sprintf("new-%d", n))
			}

			e.distinct(5)
		},
	},
	{
		id: "OM-04", name: "omni/burst-while-nobody-watches", uses: []means{cloudView, simulatedOmni},
		rule: "What happened while no watch could be opened is seen when one can: every request that came gets a machine, every one that went loses it.",
		run: func(e *env) {
			e.set("old", 5)
			e.awaitSet("old", 5)

			undo := e.disturbOmni(omni.Fault{Method: "Watch", Times: -1, Err: omni.ErrUnavailable})
			e.cutWatches()
			e.set("old", 0)
			e.set("new", 5)
			e.burst(500)
			e.sleep(2 * time.Minute)
			undo()
			e.awaitSet("new", 5)
			e.distinct(5)
		},
	},
	{
		id: "OM-05", name: "omni/key-replaced", uses: []means{cloudView, simulatedOmni},
		rule: "A provider whose key is void harms no machine, and goes on when it is started with a new one.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			machine := e.machine()

			e.replaceKey()
			e.sleep(calm)
			e.process().kill()
			<-e.process().done
			e.start()
			e.request("r-2")
			e.awaitJoined("r-2")
			e.remove("r-2")
			e.awaitGone("r-2")
			equal(e, "machine and its boots", fmt.Sprint(machine.ID, machine.Boots), fmt.Sprint(e.machine().ID, e.machine().Boots))
		},
	},
	{
		id: "OM-06", name: "omni/default-join-token-revoked", uses: []means{simulatedOmni},
		rule: "Machines join with the provider's own token, whatever becomes of the default one.",
		run: func(e *env) {
			e.revokeDefaultToken()
			e.request("r-1")
			e.awaitJoined("r-1")
		},
	},
	{
		id: "OM-07", name: "omni/join-token-replaced", uses: []means{cloudView, simulatedOmni},
		rule: "A new join token of the provider is what the next machines get, and is nothing to those that have joined.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			before := e.machine()

			e.replaceJoinToken()
			e.sleep(time.Minute)
			equal(e, "boots of the machine that has joined", before.Boots, e.machine().Boots)
			e.request("r-2")
			e.awaitJoined("r-2")
		},
	},
}

// restartOmni restarts Omni, which is down for d.
func (e *env) restartOmni(d time.Duration) {
	e.note("Omni restarts")

	if err := e.omni.Restart(e.ctx, e.pace.cut(d)); err != nil && e.ctx.Err() == nil {
		panic(fmt.Errorf("restart Omni: %w", err))
	}
}

// partitionFor keeps the provider from reaching Omni for d.
func (e *env) partitionFor(d time.Duration) {
	e.partition(true)
	_ = sleep(e.ctx, e.pace.cut(d))
	e.partition(false)
}

// cutWatches ends all watches of the provider with the error of one that was too slow.
func (e *env) cutWatches() {
	e.note("all watches are cut")
	e.omni.BreakWatches("")
}

// burst makes n changes of requests of another provider, which crowd the history of requests.
func (e *env) burst(n int) {
	e.note("%d changes of other requests", n)
	e.requestFrom(e.provider+"-other", "other", e.data)

	for i := range n {
		e.annotate("other", "change", fmt.Sprint(i))
	}

	e.remove("other")
	e.awaitGone("other")
}

// replaceKey makes the provider's key void. Its next process gets the new one.
func (e *env) replaceKey() {
	e.do("replace the provider's key", func(ctx context.Context) (err error) {
		e.key, err = e.omni.ReplaceProviderKey(ctx, e.provider)

		return err
	})
	e.watchSecret("service account key", e.key)
	e.note("operator replaces the provider's key")
}

// revokeDefaultToken revokes Omni's default join token.
func (e *env) revokeDefaultToken() {
	standard, err := safe.StateGetByID[*siderolink.DefaultJoinToken](e.ctx, e.state, siderolink.DefaultJoinTokenID)
	if err != nil {
		panic(fmt.Errorf("get the default join token: %w", err))
	}

	change(e, siderolink.NewJoinToken(standard.TypedSpec().Value.TokenId), func(r *siderolink.JoinToken) { r.TypedSpec().Value.Revoked = true })
	e.note("operator revokes the default join token")
}

// replaceJoinToken gives the provider another join token.
func (e *env) replaceJoinToken() {
	change(e, siderolink.NewProviderJoinConfig(e.provider), func(r *siderolink.ProviderJoinConfig) {
		r.TypedSpec().Value.JoinToken = "another-token-" + r.TypedSpec().Value.JoinToken[:8]
	})
	e.note("Omni replaces the provider's join token")
}

// change updates a resource of Omni, whoever owns it.
func change[T resource.Resource](e *env, ptr T, f func(T)) {
	e.do("change a resource of Omni", func(ctx context.Context) error {
		current, err := safe.StateGet[T](ctx, e.state, ptr.Metadata())
		if err != nil {
			return err
		}

		_, err = safe.StateUpdateWithConflicts(ctx, e.state, ptr.Metadata(), func(r T) error {
			f(r)

			return nil
		}, state.WithUpdateOwner(current.Metadata().Owner()))

		return err
	})
}
