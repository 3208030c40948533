//go:build real

package provider

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
)

// reaper kills a provider at one of its changing calls to libvirt.
type reaper struct {
	// at is the number of that call, counted from 1; 0 lets the provider live.
	at int
	// loseCall kills it before the call rather than after it, so that the reply to the call before was the last it heard.
	loseCall bool

	mu    sync.Mutex
	calls int
	what  string
}

func (r *reaper) intercept(p *process, what string, next func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.what != "" {
		return errCrashed
	}

	if !changes(what) {
		return next()
	}

	if r.calls++; r.calls != r.at {
		return next()
	}

	r.what = what

	if !r.loseCall {
		_ = next() // Nobody hears the answer.
	}

	p.kill()

	return errCrashed
}

// killed returns the call at which the provider was killed, empty while it lives, and how many changing calls it has made.
func (r *reaper) killed() (what string, calls int) {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.what, r.calls
}

// changes says whether a call can change anything in libvirt.
func changes(what string) bool {
	return !slices.ContainsFunc([]string{"look", "list", "ask", "read", "refresh"}, func(verb string) bool { return strings.HasPrefix(what, verb) })
}

// TestKilledProviderLeavesOneMachineThenNone lets a whole provider make and remove a machine, and kills it at each call that
// changes something in libvirt, from the image's first volume to its last. The provider that is started after it has to end
// with exactly one machine, and then with nothing. virsh is the witness.
func TestKilledProviderLeavesOneMachineThenNone(t *testing.T) {
	for _, test := range []struct {
		name     string
		loseCall bool
		firmware string
	}{
		{"after the call", false, "uefi"},
		{"before the call", true, "bios"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			pool, dir := newPool(t)
			s := newSite(t, "killed-"+test.firmware)
			data := strings.ReplaceAll(classData(pool), "bios", test.firmware)

			sweeper := newDriver(t, hypervisor.Config{})

			nothingLeft := func(t *testing.T, id, at string) {
				t.Helper()

				sweepImages(t, sweeper, s.provider)

				require.Empty(t, containing(domainNames(t), test.firmware+"-"), at)
				require.Empty(t, volumeNames(t, pool), at)
				require.Empty(t, files(t, dir), at)
				require.Empty(t, containing(files(t, "/var/lib/libvirt/qemu/nvram"), id), at)
			}

			calls := 1
			for at := 0; at <= calls; at++ {
				id := fmt.Sprintf("%s-%d", test.firmware, at)
				req := s.request(id, data)
				r := &reaper{at: at, loseCall: test.loseCall}
				p := s.start(r.intercept)

				where := func() string {
					what, _ := r.killed()

					return fmt.Sprintf("killed at changing call %d: %s", at, what)
				}

				if !s.awaitProvisioned(id, p) {
					p.end()
					p = s.start(nil)
					require.True(t, s.awaitProvisioned(id, p), where())
				}

				n := machine.NamesOf(req.Ref)
				require.Equal(t, []string{n.Domain}, containing(domainNames(t), test.firmware+"-"), where())
				require.Equal(t, req.Identity.UUID, virsh(t, "domuuid", n.Domain), where())
				require.Len(t, volumeNames(t, pool), 4, "system disk, seed and two for the image: %s", where())

				s.delete(id)

				if !s.awaitGone(id, p) {
					p.end()
					p = s.start(nil)
					require.True(t, s.awaitGone(id, p), where())
				}

				p.end()
				nothingLeft(t, id, where())

				what, made := r.killed()
				if at == 0 {
					calls = made
					t.Logf("one life takes %d changing calls", calls)
				} else {
					require.NotEmpty(t, what, "call %d was not made", at)
					t.Log(where())
				}
			}
		})
	}
}

func containing(names []string, part string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return !strings.Contains(name, part) })
}
