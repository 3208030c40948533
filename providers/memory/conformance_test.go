package memory_test

import (
	"context"
	"testing"
	"time"

	"github.com/omni-infra/omni-infra-providers/conformance"
	provider "github.com/omni-infra/omni-infra-providers/providers/memory"
	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
)

func TestConformance(t *testing.T)             { conform(t, nil) }
func TestConformanceOfASlowCloud(t *testing.T) { conform(t, slow) }

func conform(t *testing.T, durations map[cloud.Op]time.Duration) {
	t.Helper()

	conformance.Run(t, conformance.Options{
		Provider: "memory",
		Claims:   []conformance.Feature{conformance.DerivedUUID, conformance.Power, conformance.Reboot, conformance.Replace},
		New: func(t *testing.T, w *conformance.World) conformance.Subject {
			c := cloud.New(cloud.Options{Durations: durations, Boot: func(ctx context.Context, vm cloud.VM) {
				w.Boot(ctx, conformance.Guest{UUID: vm.UUID, UserData: vm.UserData})
			}})
			t.Cleanup(c.Close)

			return conformance.Subject{Cloud: c, Data: "{cores: 2}", Run: func(ctx context.Context, p conformance.Process) error {
				images, err := bootasset.New(bootasset.Config{Schematics: bootasset.OmniSchematics{Management: p.Client.Management()}})
				if err != nil {
					return err
				}

				engine, err := lifecycle.New(lifecycle.Config{
					ID: p.ProviderID, Driver: provider.New(c.Client()), Schema: provider.Schema(), Images: images, Logger: p.Logger,
				})
				if err != nil {
					return err
				}

				return engine.Run(ctx, p.State)
			}}
		},
	})
}
