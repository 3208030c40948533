//go:build real

package provider

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

var errCrashed = errors.New("the provider is dead")

// crasher lets calls through up to one, whose call or reply is lost; no call after it is made.
type crasher struct {
	at        int
	loseReply bool
	calls     int
	what      string
}

func (c *crasher) intercept(what string, next func() error) error {
	if c.calls >= c.at {
		return errCrashed
	}

	c.calls++

	if c.calls < c.at {
		return next()
	}

	c.what = what

	if c.loseReply {
		_ = next()
	}

	return errCrashed
}

// crashEverywhere runs make and take with a provider that dies at each call in turn, and then as many times as it takes with one
// that lives; check sees what there is after each.
func crashEverywhere(t *testing.T, config hypervisor.Config, loseReply bool, req driver.Request, check func(t *testing.T, made bool, at string)) {
	t.Helper()

	for _, part := range []struct {
		name string
		made bool
		run  func(d *Driver) error
	}{
		{"provision", true, func(d *Driver) error { return provision(t.Context(), d, req, new(testImage)) }},
		{"remove", false, func(d *Driver) error {
			done, err := d.Remove(t.Context(), req.Ref)
			if err == nil && !done {
				err = errors.New("not done")
			}

			return err
		}},
	} {
		for at := 1; ; at++ {
			alive := newOf(config)

			// Start from the other end.
			if part.made {
				remove(t, alive, req.Ref)
			} else {
				require.NoError(t, provision(t.Context(), alive, req, new(testImage)))
			}

			c := &crasher{at: at, loseReply: loseReply}
			dying := config
			dying.Intercept = c.intercept
			dead := newOf(dying)
			err := part.run(dead)
			dead.Close()

			if c.calls < at {
				require.NoError(t, err)

				if !part.made {
					remove(t, alive, req.Ref)
				}

				check(t, part.made, "the end")
				alive.Close()
				t.Logf("%s: %d calls", part.name, c.calls)

				break
			}

			where := fmt.Sprintf("%s, call %d: %s", part.name, at, c.what)

			for try := 1; ; try++ {
				if err = part.run(alive); err == nil || try == 5 {
					break
				}
			}

			require.NoError(t, err, where)

			if part.made {
				check(t, true, where)
			}

			remove(t, alive, req.Ref)
			check(t, false, where)

			alive.Close()
		}
	}

	alive := newOf(config)
	defer alive.Close()

	remove(t, alive, req.Ref)
}

func TestCrashAtAnyCallOnSimulatedHypervisor(t *testing.T) {
	const uri, pool = "test:///default", "default-pool"

	// The simulation lives as long as a connection to it.
	keeper, err := libvirt.NewConnect(uri)
	require.NoError(t, err)

	defer func() { _, _ = keeper.Close() }()

	see := func() (domains, volumes []string) {
		p, err := keeper.LookupStoragePoolByName(pool)
		require.NoError(t, err)

		volumes, err = p.ListStorageVolumes()
		require.NoError(t, err)
		require.NoError(t, p.Free())

		all, err := keeper.ListAllDomains(0)
		require.NoError(t, err)

		for i := range all {
			name, err := all[i].GetName()
			require.NoError(t, err)
			require.NoError(t, all[i].Free())

			domains = append(domains, name)
		}

		slices.Sort(domains)
		slices.Sort(volumes)

		return domains, volumes
	}

	before, volumesBefore := see()
	data := strings.Replace(classData(pool, "additional_disks: [{size: 1}]"), "type: user", "type: network", 1)
	req := newRequest(t, "crash", data)
	n := machine.NamesOf(req.Ref)

	for _, loseReply := range []bool{false, true} {
		t.Run(fmt.Sprintf("lose reply %v", loseReply), func(t *testing.T) {
			crashEverywhere(t, hypervisor.Config{Config: connection.Config{URI: uri}}, loseReply, req, func(t *testing.T, made bool, at string) {
				t.Helper()

				domains, volumes := see()

				if made {
					require.ElementsMatch(t, append([]string{n.Domain}, before...), domains, at)
					require.Len(t, volumes, len(volumesBefore)+5, "%s: system disk, seed, additional disk and two for the image: %s", at, volumes)
				} else {
					require.Equal(t, before, domains, at)
					require.Equal(t, volumesBefore, volumes, at)
				}
			})
		})
	}
}
