package provider

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connectiontest"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

// A request may go, or another process make its machine, without a word to this one.
func TestRoomIsPromisedAsLongAsSomebodyTriesToMakeTheMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{Hosts: []hypervisor.Config{{Name: "a"}, {Name: "b"}}})
		defer d.Close()

		data := machine.ClassData{Memory: 1024}
		place := func(id string) (string, error) {
			loads := make([]answer[hypervisor.Load], len(d.hosts))
			for i, h := range d.hosts {
				loads[i] = answer[hypervisor.Load]{host: h, value: hypervisor.Load{Free: 1 << 30, Unclaimed: 1 << 30}}
			}

			return d.choose(driver.Request{Ref: driver.Ref{ProviderID: "libvirt", RequestID: id}}, data, loads)
		}

		for _, id := range []string{"one", "two"} {
			_, err := place(id)
			require.NoError(t, err)
		}

		_, err := place("three")
		require.Equal(t, driver.KindCapacity, driver.KindOf(err), "%v", err)

		time.Sleep(promiseLimit)

		at, err := place("one")
		require.NoError(t, err)

		time.Sleep(time.Minute)

		other, err := place("three")
		require.NoError(t, err)
		require.NotEqual(t, at, other)
	})
}

func TestLeftOversAtOneHostSayNothingOfAHostThatIsOutOfReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := sim.New(sim.Options{Hostname: "a"}), sim.New(sim.Options{Hostname: "b"})
		defer a.Close()
		defer b.Close()

		var hosts []hypervisor.Config
		for name, s := range map[string]*sim.Hypervisor{"a": a, "b": b} {
			hosts = append(hosts, hypervisor.Config{Name: name, Config: connection.Config{Open: connectiontest.Open(s.Client()), CallTimeout: 10 * time.Second}})
		}

		d := New(Config{Hosts: hosts})
		defer d.Close()

		ref := driver.Ref{ProviderID: "libvirt", RequestID: "m"}
		data := machine.ClassData{Memory: 1024, StoragePool: "default", Arch: driver.AMD64}
		req := driver.Request{Ref: ref, Identity: driver.NewIdentity(ref)}
		mark := machine.NewMark(req, data, "devel", time.Now())
		mark.Making = true

		claim, err := machine.ClaimXML(req, data, machine.Host{Type: "kvm"}, mark)
		require.NoError(t, err)

		c, err := a.Connect()
		require.NoError(t, err)

		_, err = c.DomainDefineXML(claim)
		require.NoError(t, err)

		found, err := d.Find(t.Context(), ref)
		require.NoError(t, err)
		require.True(t, found.Incomplete)

		b.StopDaemon()

		_, err = d.Find(t.Context(), ref)
		require.NotNil(t, driver.UnseenOf(err), "%v", err)

		_, err = c.Close()
		require.NoError(t, err)
	})
}
