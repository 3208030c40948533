// Package provider makes Talos machines in a Kubernetes cluster with KubeVirt: it implements the driver contract. The provider's command
// imports it.
//
//	driver.go    what the driver is made of, and whether the cluster can be used
//	plan.go      what is made for a request, and what is checked before
//	image.go     one image for all machines that boot from it
//	machine.go   the virtual machine and its Secret
//	start.go     from a machine that is made to one that runs
//	seen.go      what the watches show
//	find.go      Find and List
//	strangers.go what somebody else has under the names of a machine's disks
//	remove.go    from anything to nothing
//	power.go     switching and rebooting
//	sweep.go     images that nothing uses any more
package provider

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// The defaults of Config.
const (
	DefaultNamespace     = "default"
	DefaultImageMaxAge   = 24 * time.Hour
	DefaultSweepInterval = 10 * time.Minute
)

// Config is how the driver works. The zero value of each field is its default.
type Config struct {
	Cluster cluster.Config
	// Operator is what holds for all classes; its first namespace is DefaultNamespace when it has none.
	Operator machine.Operator
	// Version is that of the provider, which objects carry.
	Version string
	// KeepImages keeps images for good, though no machine is made from them.
	KeepImages bool
	// ImageMaxAge is how long an image stays after a machine was last made from it; negative for not at all.
	ImageMaxAge time.Duration
	// SweepInterval is the pause between two looks for such images.
	SweepInterval time.Duration
	// Logger gets what no error can carry; nil for none.
	Logger *zap.Logger
}

// Driver makes machines in a cluster. It keeps nothing that a restart would miss. Close has to be called at the end.
type Driver struct {
	cluster *cluster.Cluster
	config  Config
	log     *zap.Logger

	seen     seen
	looked   lookups
	images   imageUse
	told     told
	progress progresses

	life       context.Context //nolint:containedctx // the driver's own life, for its sweeps
	end        context.CancelFunc
	background sync.WaitGroup

	mu     sync.Mutex
	closed bool
	// swept is when the last sweep of images began.
	swept time.Time
}

var (
	_ driver.Driver      = (*Driver)(nil)
	_ driver.PowerSwitch = (*Driver)(nil)
	_ driver.Watcher     = (*Driver)(nil)
	_ driver.Addresser   = (*Driver)(nil)
)

// New returns the driver. Nothing is asked of the cluster yet.
func New(config Config) (*Driver, error) {
	if len(config.Operator.Namespaces) == 0 {
		config.Operator.Namespaces = []string{DefaultNamespace}
	}

	if config.ImageMaxAge == 0 {
		config.ImageMaxAge = DefaultImageMaxAge
	}

	if config.SweepInterval == 0 {
		config.SweepInterval = DefaultSweepInterval
	}

	if config.Logger == nil {
		config.Logger = zap.NewNop()
	}

	k, err := cluster.New(config.Cluster)
	if err != nil {
		return nil, err
	}

	d := &Driver{cluster: k, config: config, log: config.Logger, swept: time.Now()}
	d.life, d.end = context.WithCancel(context.Background())

	return d, nil
}

// Close ends what the driver does by itself, and its connections.
func (d *Driver) Close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()

	d.end()
	d.background.Wait()
	d.cluster.Close()
}

// Check says whether the cluster answers, knows us, and serves what machines are made of. While its watches tell what happens, and
// the last call went well, nothing is asked.
func (d *Driver) Check(ctx context.Context) error {
	if d.cluster.Trusted() && d.seen.live() {
		return nil
	}

	ctx, cancel := context.WithTimeoutCause(ctx, checkTime, fmt.Errorf("the Kubernetes API has not answered within %s", checkTime))
	defer cancel()

	one := metav1.ListOptions{Limit: 1}

	return d.each(ctx, func(ctx context.Context, namespace string) error {
		_, vmErr := d.cluster.VirtualMachines().List(ctx, namespace, one)
		if vmErr != nil {
			return vmErr
		}

		_, err := d.cluster.DataVolumes().List(ctx, namespace, one)

		return err
	})
}

// each calls f for every namespace at once. It returns the first error in the order of the namespaces.
func (d *Driver) each(ctx context.Context, f func(ctx context.Context, namespace string) error) error {
	namespaces := d.config.Operator.Namespaces
	if len(namespaces) == 1 {
		return f(ctx, namespaces[0])
	}

	errs := make([]error, len(namespaces))

	var wg sync.WaitGroup

	for i, namespace := range namespaces {
		wg.Go(func() { errs[i] = f(ctx, namespace) })
	}

	wg.Wait()

	return worst(errs)
}

// worst returns the error that says most: one that asks for a pause, else the first that is a failure, else what is waited for.
func worst(errs []error) error {
	var first, pending error

	for _, err := range errs {
		switch {
		case err == nil:
		case driver.KindOf(err) == driver.KindThrottled:
			return err
		case driver.KindOf(err) == driver.KindPending:
			pending = errors.Join(pending, err)
		case first == nil:
			first = err
		}
	}

	if first != nil {
		return first
	}

	return pending
}

// foreign is the error for an object that has the name of one of ours and is somebody else's.
func foreign(kind string, o metav1.Object) error {
	return driver.Terminalf("%s %q in namespace %q is not this provider's: it has no mark of the request, so it is left as it is; rename or remove it",
		kind, o.GetName(), o.GetNamespace())
}

// pause is how long the cluster is left alone while it works.
const pause = 5 * time.Second

// checkTime limits Check, for which health reports have little time.
const checkTime = 8 * time.Second

// phaseTime limits a phase. Each only asks the cluster, which does by itself what takes longer.
const phaseTime = 2 * time.Minute

// brief ends a phase whose calls get no answer, so that it holds nothing up for long.
func brief(ensure func(context.Context, driver.Task) error) func(context.Context, driver.Task) error {
	return func(ctx context.Context, t driver.Task) error {
		ctx, cancel := context.WithTimeoutCause(ctx, phaseTime, fmt.Errorf("the cluster has not answered within %s", phaseTime))
		defer cancel()

		return ensure(ctx, t)
	}
}
