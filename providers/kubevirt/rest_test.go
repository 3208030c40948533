//go:build !real

package kubevirt_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/client"
	omniclient "github.com/siderolabs/omni/client/pkg/client/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	resources "github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/deploy"
	sim "github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
	"github.com/omni-infra/omni-infra-providers/sim/talos"
	"github.com/omni-infra/omni-infra-providers/sim/talos/meta"
)

// mostWatches is how often watches are opened in a day: one kind each 15 seconds, as that shows that the cluster can be reached, and four
// kinds each six minutes.
const mostWatches = 24 * (3600/15 + 4*3600/360)

// tally counts calls by what they do.
type tally struct {
	mu    sync.Mutex
	calls map[string]int
}

func (t *tally) count(op string) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.calls == nil {
		t.calls = map[string]int{}
	}

	t.calls[op]++
}

// take returns what was counted, and begins anew.
func (t *tally) take() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()

	calls := t.calls
	t.calls = nil

	return calls
}

// TestADayAtRestIsWatchesAlone counts what fifty machines that have joined cost in a day, with the configuration that is the default, and
// with the library's looks and health reports. An image is due in it: its sweep is all that is asked besides.
func TestADayAtRestIsWatchesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			id   = "rest"
			many = 50
		)

		asked := &tally{}

		o, err := omni.New(omni.Options{})
		require.NoError(t, err)

		c, err := sim.New(sim.Options{
			ControllerOptions: sim.ControllerOptions{
				Namespaces: []string{deploy.Namespace},
				Virt: virt.Options{Times: virt.Times{Pull: time.Second, Start: 2 * time.Second}, Boot: func(ctx context.Context, g virt.Guest) {
					// Whatever keeps a machine from joining is seen in Omni.
					_ = (&talos.Machine{
						UUID: g.UUID, UserData: g.UserData, Meta: &meta.Memory{}, Hostname: g.Hostname, BootTime: time.Second,
						Dial: func(context.Context, string, []string) (*grpc.ClientConn, error) { return o.DialMachineAPI() },
					}).Run(ctx)
				}},
			},
			NamespaceRules: map[string][]rbacv1.PolicyRule{deploy.Namespace: rights(t)},
			Latency: func(op string) time.Duration {
				asked.count(op)

				return 5 * time.Millisecond
			},
		})
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)

		go func() { ended <- o.Run(ctx) }()

		key, err := o.CreateProvider(ctx, id)
		require.NoError(t, err)

		omniClient, err := o.Client(key, client.WithOmniClientOptions(omniclient.WithProviderID(id)))
		require.NoError(t, err)

		s := &site{c}

		go func() {
			ended <- s.run("v1.0.0")(ctx, conformance.Process{
				ProviderID: id, Key: key, Client: omniClient, State: omniClient.Omni().State(), Logger: zap.NewNop(),
			})
		}()

		defer func() {
			cancel()
			assert.NoError(t, <-ended)
			assert.NoError(t, <-ended)
			assert.NoError(t, omniClient.Close())
			c.Close()
		}()

		for i := range many {
			r := infra.NewMachineRequest(fmt.Sprintf("m-%d", i))
			r.Metadata().Labels().Set(resources.LabelInfraProviderID, id)
			r.TypedSpec().Value.TalosVersion, r.TypedSpec().Value.ProviderData = "v1.13.5", data
			require.NoError(t, o.State().Create(ctx, r))
		}

		for i := range many {
			_, err := o.State().WatchFor(ctx, infra.NewMachineRequestStatus(fmt.Sprintf("m-%d", i)).Metadata(),
				state.WithCondition(func(r resource.Resource) (bool, error) {
					status, ok := r.(*infra.MachineRequestStatus)

					return ok && status.TypedSpec().Value.Stage == specs.MachineRequestStatusSpec_PROVISIONED, nil
				}))
			require.NoError(t, err, "machine %d", i)
		}

		time.Sleep(30 * time.Minute)
		synctest.Wait()
		require.Len(t, c.Machines(), many)

		asked.take()

		time.Sleep(24 * time.Hour)
		synctest.Wait()

		calls, watches := asked.take(), 0

		for op, n := range calls {
			if strings.HasPrefix(op, "watch ") {
				watches += n
				delete(calls, op)
			}
		}

		t.Logf("%d watches; besides: %v", watches, calls)
		assert.LessOrEqual(t, watches, mostWatches)
		assert.Equal(t, 1, calls["delete datavolumes"], "one image is swept")

		// A sweep looks at what may still be made from an image, and it may look twice.
		for op, n := range calls {
			assert.Contains(t, []string{"list datavolumes", "list virtualmachines", "get volumesnapshots", "delete datavolumes"}, op, "a call at rest")
			assert.LessOrEqual(t, n, 2, op)
		}

		require.Len(t, c.Machines(), many)
	})
}
