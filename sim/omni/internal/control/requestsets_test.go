package control_test

import (
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/require"
)

func TestSetMakesRequestsOfItsName(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.requestSet("pool", 2)
		w.settle()

		requests := list[*infra.MachineRequest](w)
		require.Len(t, requests, 2)

		for _, request := range requests {
			require.Regexp(t, `^pool-[a-z0-9]{6}$`, request.Metadata().ID())
			require.Empty(t, request.Metadata().Owner())
			require.Equal(t, map[string]string{
				omni.LabelInfraProviderID: cloud, omni.LabelMachineRequestSet: "pool",
			}, request.Metadata().Labels().Raw())
			require.Equal(t, "1.13.5", request.TypedSpec().Value.TalosVersion)
			require.Equal(t, "size: small", request.TypedSpec().Value.ProviderData)
		}

		require.Equal(t, "MachineRequestSetStatusController", get[*omni.MachineRequestSetStatus](w, "pool").Metadata().Owner())
	})
}

// ids returns the ids of the requests that are not in teardown.
func (w *world) ids() []string {
	w.t.Helper()

	var ids []string

	for _, request := range list[*infra.MachineRequest](w) {
		if request.Metadata().Phase().String() == "running" {
			ids = append(ids, request.Metadata().ID())
		}
	}

	return ids
}

func TestReplacementIsMadeWhileTheOldRequestIsHeld(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.requestSet("pool", 1)
		w.settle()

		old := infra.NewMachineRequest(w.ids()[0]).Metadata()
		require.NoError(t, w.st.AddFinalizer(w.ctx, old, provisioner))
		w.teardown(old, "")
		w.settle()

		require.Len(t, list[*infra.MachineRequest](w), 2)
		require.Len(t, w.ids(), 1)
		require.Equal(t, []string{"ClusterMachineRequestStatusController", provisioner},
			[]string(*get[*infra.MachineRequest](w, old.ID()).Metadata().Finalizers()))

		require.NoError(t, w.st.RemoveFinalizer(w.ctx, old, provisioner))
		w.settle()
		require.Len(t, list[*infra.MachineRequest](w), 1)
		require.NotEqual(t, old.ID(), w.ids()[0])
	})
}

func TestRequestThatNoProviderSawGoesAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.requestSet("pool", 1)
		w.settle()

		edit(w, "pool", func(set *omni.MachineRequestSet) { set.TypedSpec().Value.MachineCount = 0 })
		w.settle()
		require.Empty(t, list[*infra.MachineRequest](w))
	})
}

func TestSmallerSetLosesUnusedThenWorkersThenOldest(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide()

		count := int32(0)
		grow := func() string {
			known := strings.Join(w.ids(), " ")
			count++

			if count == 1 {
				w.requestSet("pool", 1)
			} else {
				edit(w, "pool", func(set *omni.MachineRequestSet) { set.TypedSpec().Value.MachineCount = count })
			}

			time.Sleep(time.Second)

			for _, id := range w.ids() {
				if !strings.Contains(known, id) {
					return id
				}
			}

			return ""
		}

		controlPlane, worker, oldest, newest := grow(), grow(), grow(), grow()

		for request, role := range map[string]string{controlPlane: omni.LabelControlPlaneRole, worker: omni.LabelWorkerRole} {
			id := get[*infra.MachineRequestStatus](w, request).TypedSpec().Value.Id
			w.join(id, request)

			set := omni.NewMachineSet("demo")
			set.Metadata().Labels().Set(omni.LabelCluster, "demo")
			set.Metadata().Labels().Set(role, "")
			w.create(omni.NewMachineSetNode(id, set))
		}

		w.settle()

		for _, want := range []string{oldest, newest, worker, controlPlane} {
			count--
			edit(w, "pool", func(set *omni.MachineRequestSet) { set.TypedSpec().Value.MachineCount = count })
			w.settle()
			require.NotContains(t, w.ids(), want)
			require.Len(t, w.ids(), int(count))
		}
	})
}

func TestChangedDataIsForNewRequests(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.requestSet("pool", 1)
		w.settle()

		old := w.ids()[0]
		edit(w, "pool", func(set *omni.MachineRequestSet) {
			set.TypedSpec().Value.ProviderData = "size: large"
			set.TypedSpec().Value.MachineCount = 2
		})
		w.settle()

		for _, id := range w.ids() {
			want := "size: large"
			if id == old {
				want = "size: small"
			}

			require.Equal(t, want, get[*infra.MachineRequest](w, id).TypedSpec().Value.ProviderData)
		}
	})
}

func TestSetStaysUntilItsRequestsAreGone(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.requestSet("pool", 1)
		w.settle()

		request := infra.NewMachineRequest(w.ids()[0]).Metadata()
		require.NoError(t, w.st.AddFinalizer(w.ctx, request, provisioner))

		w.teardown(omni.NewMachineRequestSet("pool").Metadata(), "")
		w.settle()
		require.Empty(t, w.ids())
		require.False(t, get[*omni.MachineRequestSet](w, "pool").Metadata().Finalizers().Empty())

		require.NoError(t, w.st.RemoveFinalizer(w.ctx, request, provisioner))
		w.settle()
		require.Empty(t, list[*infra.MachineRequest](w))
		require.True(t, get[*omni.MachineRequestSet](w, "pool").Metadata().Finalizers().Empty())
		require.False(t, has[*omni.MachineRequestSetStatus](w, "pool"))
	})
}

func TestRequestsOfMissingProviderAreLetGo(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.requestSet("pool", 1)
		w.settle()

		require.NoError(t, w.st.AddFinalizer(w.ctx, infra.NewMachineRequest(w.ids()[0]).Metadata(), provisioner))
		w.teardown(infra.NewProvider(cloud).Metadata(), "")
		w.settle()

		require.Empty(t, list[*infra.MachineRequest](w))
		require.True(t, get[*infra.Provider](w, cloud).Metadata().Finalizers().Empty())
	})
}
