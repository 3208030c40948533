// Package control is the simulated Omni's own controllers: what the real server does by itself when resources change. It
// runs over any COSI state as Omni's internal actor. Package omni imports it.
//
// The controllers are written anew from the observed behaviour of Omni v1.9.3, with its controller names, owners and
// finalizers, as far as providers, operators and tests can see them. Modelled are: request sets and requests, matching,
// links, registrations, machines and their statuses, config patches, provider registration, health and removal, join
// tokens, pending machines, and of clusters what asks for machines and what holds them. As the real server is, it is
// level-based: it may be stopped at any point and started again over the same state.
//
// Finalizers of these are put and removed as the real ones are, without their outputs: MachineJoinConfigController,
// MaintenanceConfigStatusController, MachineStatusLinkController, MachineConfigGenOptionsController,
// MachineConfigExtractionController, KernelArgsStatusController, SchematicConfigurationController,
// MachineUpgradeStatusController.
//
// Not modelled:
//   - Kubernetes, Talos configuration, upgrades, backups, metrics and everything else that needs a running cluster. A node
//     of a machine set is a ClusterMachine at once and stays one.
//   - The other finalizers on Clusters and MachineSets, MachineSetStatuses, and allocation by label selectors. A
//     machine set with a machine class that has machines made takes those, oldest id first, whatever their Talos version.
//   - Of static providers, BMC configs, extensions and install events of InfraMachines, and that a machine has to be accepted
//     before it is a Machine.
//   - MachineLabels of users on machines, image labels, security state and platform metadata.
//   - Warnings in JoinTokenStatuses, NodeUniqueTokenStatuses, link counters, last endpoints.
//   - Rate limits of the store, and the pauses that the real server needs for its work: it answers at once.
package control

import (
	"context"
	"fmt"

	"github.com/cosi-project/runtime/pkg/controller"
	"github.com/cosi-project/runtime/pkg/controller/runtime"
	"github.com/cosi-project/runtime/pkg/controller/runtime/options"
	"github.com/cosi-project/runtime/pkg/state"
	"golang.org/x/sync/errgroup"
)

// Run does the work of Omni's controllers on st until ctx ends, and returns nil then. It calls Bootstrap first. All
// goroutines that it started have ended when it returns. Time is that of package time, so a test may fake it.
func Run(ctx context.Context, st state.State, opts Options) error {
	opts = opts.withDefaults()

	if err := Bootstrap(ctx, st, opts); err != nil {
		return ignoreEnd(ctx, err)
	}

	st = withTunnels(st)

	omni, err := runtime.NewRuntime(st, withoutTokens(opts.Logger), options.WithMetrics(false))
	if err != nil {
		return fmt.Errorf("make controller runtime: %w", err)
	}

	for _, group := range [][]controller.QController{
		providerControllers(opts), requestControllers(opts), linkControllers(), pendingControllers(opts),
		machineControllers(opts), clusterControllers(opts), tokenControllers(),
	} {
		for _, c := range group {
			if err := omni.RegisterQController(c); err != nil {
				return fmt.Errorf("register controller %q: %w", c.Name(), err)
			}
		}
	}

	work, ctx := errgroup.WithContext(ctx)

	if opts.Log != nil {
		events, err := watchStory(ctx, st)
		if err != nil {
			return ignoreEnd(ctx, err)
		}

		work.Go(func() error {
			tell(ctx, events, opts.Log)

			return nil
		})
	}

	work.Go(func() error { return omni.Run(ctx) })
	work.Go(func() error { return followTunnels(ctx, st, opts.Machines) })
	work.Go(func() error { return pollLinks(ctx, st, opts.Timing) })

	return work.Wait()
}
