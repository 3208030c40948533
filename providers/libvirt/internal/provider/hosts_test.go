package provider

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connectiontest"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

// rack is some simulated hosts with a driver for all of them.
type rack struct {
	t       *testing.T
	names   []string
	hosts   map[string]*sim.Hypervisor
	configs []hypervisor.Config
	d       *Driver
}

// inRack runs a test on the fake clock. Each host is as options say, and is called by its Hostname.
func inRack(t *testing.T, options []sim.Options, test func(*testing.T, *rack)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rack{t: t, hosts: map[string]*sim.Hypervisor{}}

		for _, opts := range options {
			h := sim.New(opts)
			t.Cleanup(h.Close)

			r.names = append(r.names, opts.Hostname)
			r.hosts[opts.Hostname] = h
			r.configs = append(r.configs, hypervisor.Config{
				Config: connection.Config{Open: connectiontest.Open(h.Client()), URI: "qemu+tls://" + opts.Hostname + "/system"}, Name: opts.Hostname,
			})
		}

		r.d = r.driver()
		test(t, r)
	})
}

// driver is the driver of another process.
func (r *rack) driver() *Driver {
	d := New(Config{Hosts: r.configs})
	r.t.Cleanup(d.Close)

	return d
}

// three are three hosts alike.
func three() []sim.Options {
	return []sim.Options{{Hostname: "a"}, {Hostname: "b"}, {Hostname: "c"}}
}

func wish(id, more string) driver.Request {
	ref := driver.Ref{ProviderID: "libvirt", RequestID: id}

	return driver.Request{
		Ref: ref, Identity: driver.NewIdentity(ref), Set: "set", TalosVersion: "v1.13.5",
		ClassData: "{cores: 1, memory: 2048, disk_size: 10" + more + "}",
	}
}

// tinyImage is a boot image of a few bytes.
type tinyImage struct{}

func (tinyImage) Key() string { return "0123-v1.13.5-nocloud-amd64.raw" }
func (tinyImage) URL() string { return "https://factory.example/image" }
func (tinyImage) Open(context.Context) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(bytes.Repeat([]byte("x"), 4096))), nil
}

// make makes a request's machine where it is placed.
func (r *rack) make(d *Driver, req driver.Request) (place string, err error) {
	if req.Place, err = d.Place(r.t.Context(), req); err != nil {
		return "", fmt.Errorf("place: %w", err)
	}

	return req.Place, build(r.t.Context(), d, req)
}

func build(ctx context.Context, d *Driver, req driver.Request) error {
	plan, err := d.Plan(ctx, req)
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}

	for _, phase := range plan.Phases {
		if err := phase.Ensure(ctx, driver.Task{
			Request: req, Join: driver.Join{UserData: "apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: grpc://omni.example\n"},
			Image: tinyImage{}, Progress: func(string) {},
		}); err != nil {
			return fmt.Errorf("%s: %w", phase.Name, err)
		}
	}

	return nil
}

// machines counts the machines at each host.
func (r *rack) machines() map[string]int {
	count := map[string]int{}

	for name, h := range r.hosts {
		if n := len(h.Machines()); n > 0 {
			count[name] = n
		}
	}

	return count
}

// took measures f.
func took(f func()) time.Duration {
	start := time.Now()

	f()

	return time.Since(start)
}

func TestMachineGoesWhereMostMemoryIsLeft(t *testing.T) {
	inRack(t, []sim.Options{
		{Hostname: "small", Host: sim.Host{Memory: 8 << 10}}, {Hostname: "large", Host: sim.Host{Memory: 16 << 10}},
	}, func(t *testing.T, r *rack) {
		for i := range 6 {
			_, err := r.make(r.d, wish(fmt.Sprint("m-", i), ""))
			require.NoError(t, err)
		}

		// Four fit before there is as much on the small one.
		require.Equal(t, map[string]int{"large": 5, "small": 1}, r.machines())
	})
}

func TestMachinesThatAreBeingMadeCount(t *testing.T) {
	inRack(t, three(), func(t *testing.T, r *rack) {
		places := map[string]int{}

		for i := range 9 {
			place, err := r.d.Place(t.Context(), wish(fmt.Sprint("m-", i), ""))
			require.NoError(t, err)

			places[place]++
		}

		require.Equal(t, map[string]int{"a": 3, "b": 3, "c": 3}, places)

		// A request that is placed again, as its place was not recorded, counts once; one that is gone does not count.
		for range 3 {
			_, err := r.d.Place(t.Context(), wish("m-0", ""))
			require.NoError(t, err)
		}

		require.Len(t, r.d.promised, 9)

		for i := range 9 {
			done, err := r.d.Remove(t.Context(), wish(fmt.Sprint("m-", i), "").Ref)
			require.NoError(t, err)
			require.True(t, done)
		}

		require.Empty(t, r.d.promised)
	})
}

func TestSetIsSpreadOverTheHosts(t *testing.T) {
	options := three()
	options[0].Host.Memory = 1 << 20

	inRack(t, options, func(t *testing.T, r *rack) {
		// Another set has filled one host.
		for i := range 3 {
			other := wish(fmt.Sprint("other-", i), "")
			other.Set = "other"

			place, err := r.make(r.d, other)
			require.NoError(t, err)
			require.Equal(t, "a", place)
		}

		for i := range 6 {
			_, err := r.make(r.d, wish(fmt.Sprint("m-", i), ", placement: spread"))
			require.NoError(t, err)
		}

		require.Equal(t, map[string]int{"a": 5, "b": 2, "c": 2}, r.machines())

		// Another process sees them as well.
		place, err := r.driver().Place(t.Context(), wish("m-6", ", placement: spread"))
		require.NoError(t, err)
		require.Equal(t, "a", place)
	})
}

func TestClassNamesTheHost(t *testing.T) {
	inRack(t, three(), func(t *testing.T, r *rack) {
		for i := range 3 {
			place, err := r.make(r.d, wish(fmt.Sprint("m-", i), ", host: b"))
			require.NoError(t, err)
			require.Equal(t, "b", place)
		}

		_, err := r.d.Place(t.Context(), wish("x", ", host: d"))
		require.EqualError(t, err, `host: got "d", which this provider does not have: want one of a, b, c, or leave it out`)
		require.Equal(t, driver.KindTerminal, driver.KindOf(err))
	})
}

func TestHostThatCannotMakeTheMachineIsLeftOut(t *testing.T) {
	inRack(t, []sim.Options{
		{Hostname: "a", Pools: []sim.Pool{{Name: "other"}}},
		{Hostname: "b", Host: sim.Host{NoUEFI: true}},
		{Hostname: "c", Host: sim.Host{Memory: 9 << 10}},
	}, func(t *testing.T, r *rack) {
		place, err := r.make(r.d, wish("m", ", firmware: uefi"))
		require.NoError(t, err)
		require.Equal(t, "c", place)

		// One that is only full may have room later.
		big := wish("big", ", firmware: uefi")
		big.ClassData = "{cores: 1, memory: 8192, disk_size: 10, firmware: uefi}"
		_, err = r.d.Place(t.Context(), big)
		require.Equal(t, driver.KindCapacity, driver.KindOf(err))
		require.ErrorContains(t, err, `a: storage_pool: libvirt has no pool "default"; it has other`)
		require.ErrorContains(t, err, "b: firmware: the host has no UEFI firmware")
		require.ErrorContains(t, err, "c: the machine needs 8192 MiB of memory")

		// No host ever can.
		_, err = r.d.Place(t.Context(), wish("n", ", storage_pool: nowhere"))
		require.Equal(t, driver.KindTerminal, driver.KindOf(err))
		require.ErrorContains(t, err, `b: storage_pool: libvirt has no pool "nowhere"; it has default`)

		// One that cannot be asked might.
		r.hosts["c"].StopDaemon()

		_, err = r.d.Place(t.Context(), wish("n", ", storage_pool: nowhere"))
		require.Equal(t, driver.KindTransient, driver.KindOf(err))
		require.ErrorContains(t, err, `c: `)
		require.ErrorContains(t, err, `connect to libvirt at "qemu+tls://c/system"`)
		require.Equal(t, map[string]int{"c": 1}, r.machines())
	})
}

func TestDeadHostHoldsNobodyUp(t *testing.T) {
	for name, kill := range map[string]func(*sim.Hypervisor){"stopped": (*sim.Hypervisor).StopDaemon, "frozen": (*sim.Hypervisor).Freeze} {
		t.Run(name, func(t *testing.T) {
			inRack(t, three(), func(t *testing.T, r *rack) {
				for _, host := range r.names {
					_, err := r.make(r.d, wish("on-"+host, ", host: "+host))
					require.NoError(t, err)
				}

				kill(r.hosts["b"])

				for round := range 6 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)

					limit := briefly + time.Second
					if round == 0 {
						limit = patience + time.Second
					}

					require.LessOrEqual(t, took(func() {
						all, err := r.d.List(ctx, "libvirt")
						require.Len(t, all, 2)

						unseen := driver.UnseenOf(err)
						require.NotNil(t, unseen)
						require.Len(t, unseen.Places, 1)
						require.Error(t, unseen.Places["b"])
					}), limit)
					cancel()
				}

				ref := wish("on-a", "").Ref

				// What one has is found without the others.
				require.Less(t, took(func() {
					found, err := r.d.Find(t.Context(), ref)
					require.NoError(t, err)
					require.Equal(t, "a", found.Place)
				}), time.Second)

				_, err := r.d.Find(t.Context(), wish("on-b", "").Ref)
				require.NotNil(t, driver.UnseenOf(err), "it may be there: %v", err)
				require.False(t, driver.IsNotFound(err))

				require.NotNil(t, driver.UnseenOf(r.d.Check(t.Context())))

				place, err := r.make(r.d, wish("new", ""))
				require.NoError(t, err)
				require.NotEqual(t, "b", place)

				// Removal asks the recorded place alone.
				require.Less(t, took(func() {
					done, err := r.d.RemoveFrom(t.Context(), ref, "a")
					require.NoError(t, err)
					require.True(t, done)
				}), time.Second)

				done, err := r.d.Remove(t.Context(), wish("on-c", "").Ref)
				require.False(t, done)
				require.NotNil(t, driver.UnseenOf(err))
				require.Contains(t, r.machines(), "b", "its machine runs on")
			})
		})
	}
}

func TestHostThatAnswersAgainIsAskedPatiently(t *testing.T) {
	inRack(t, three(), func(t *testing.T, r *rack) {
		r.hosts["b"].Freeze()

		_, err := r.d.List(t.Context(), "libvirt")
		require.NotNil(t, driver.UnseenOf(err))

		r.hosts["b"].Thaw()
		time.Sleep(time.Minute)

		_, err = r.d.List(t.Context(), "libvirt")
		require.NoError(t, err)
		require.Zero(t, r.d.hosts[1].doubted.Load())

		// One that is slow, but alive, gets its time again.
		defer r.hosts["b"].Ledger().Inject(ledger.Fault{Kind: ledger.Slow, For: 2 * time.Second, Times: -1})()

		for range 3 {
			_, err = r.d.List(t.Context(), "libvirt")
			require.NoError(t, err)
		}
	})
}

func TestNoHostAtAllIsAnotherErrorThanSome(t *testing.T) {
	inRack(t, three(), func(t *testing.T, r *rack) {
		require.NoError(t, r.d.Check(t.Context()))

		for _, h := range r.hosts {
			h.StopDaemon()
		}

		err := r.d.Check(t.Context())
		require.Error(t, err)
		require.Nil(t, driver.UnseenOf(err), "nothing works: %v", err)
	})
}

func TestMachineOfAHostThatIsNotConfiguredIsNotMadeElsewhere(t *testing.T) {
	inRack(t, three(), func(t *testing.T, r *rack) {
		req := wish("m", "")
		req.Place = "d"

		_, err := r.d.Plan(t.Context(), req)
		require.ErrorContains(t, err, `host "d"`)
		require.ErrorContains(t, err, "it has a, b, c")
		require.Equal(t, driver.KindTransient, driver.KindOf(err))

		_, err = r.d.RemoveFrom(t.Context(), req.Ref, "d")
		require.ErrorContains(t, err, `host "d"`)
		require.Empty(t, r.machines())
	})
}

func TestOnlyHostNeedsNoName(t *testing.T) {
	inRack(t, []sim.Options{{}}, func(t *testing.T, r *rack) {
		require.Equal(t, []string{DefaultHost}, r.d.Places())

		place, err := r.d.Place(t.Context(), wish("m", ""))
		require.NoError(t, err)
		require.Equal(t, DefaultHost, place)

		// A release that knew no places has recorded none.
		require.NoError(t, build(t.Context(), r.d, wish("m", "")))

		found, err := r.d.Find(t.Context(), wish("m", "").Ref)
		require.NoError(t, err)
		require.Equal(t, DefaultHost, found.Place)

		// An error of the only host is said as it is.
		r.hosts[""].StopDaemon()

		_, err = r.d.List(t.Context(), "libvirt")
		require.Error(t, err)
		require.Nil(t, driver.UnseenOf(err))
	})
}

func TestHostsThatGetNamesKeepTheMachinesOfTheOnlyHost(t *testing.T) {
	inRack(t, three(), func(t *testing.T, r *rack) {
		single := New(Config{Hosts: []hypervisor.Config{{Config: r.configs[1].Config}}})
		t.Cleanup(single.Close)

		_, err := r.make(single, wish("old", ""))
		require.NoError(t, err)

		// Whatever the host is called now, the machine says where it is.
		found, err := r.d.Find(t.Context(), wish("old", "").Ref)
		require.NoError(t, err)
		require.Equal(t, "b", found.Place)

		done, err := r.d.Remove(t.Context(), wish("old", "").Ref)
		require.NoError(t, err)
		require.True(t, done)
	})
}

func TestPowerIsSwitchedWhereTheMachineIs(t *testing.T) {
	inRack(t, three(), func(t *testing.T, r *rack) {
		_, err := r.make(r.d, wish("m", ", host: c"))
		require.NoError(t, err)

		// The process that switches it has never seen it.
		d := r.driver()
		require.NoError(t, untilDone(func() error { return d.SetPower(t.Context(), wish("m", "").Ref, driver.PowerOff) }))
		require.False(t, r.hosts["c"].Machines()[0].On)
		require.NoError(t, d.SetPower(t.Context(), wish("m", "").Ref, driver.PowerOn))
		require.True(t, r.hosts["c"].Machines()[0].On)

		// It knows now where the machine is, and needs nobody else.
		r.hosts["a"].Freeze()
		require.Less(t, took(func() {
			require.NoError(t, untilDone(func() error { return d.Reboot(t.Context(), wish("m", "").Ref) }))
		}), 10*time.Second)
		require.Equal(t, 3, r.hosts["c"].Machines()[0].Boots)
	})
}

// untilDone repeats f while it is pending.
func untilDone(f func() error) error {
	for {
		err := f()
		if driver.KindOf(err) != driver.KindPending {
			return err
		}

		time.Sleep(driver.PauseOf(err))
	}
}

func TestBrokenEventsOfOneHostDoNotEndThoseOfTheOthers(t *testing.T) {
	inRack(t, three(), func(t *testing.T, r *rack) {
		for _, host := range r.names {
			_, err := r.make(r.d, wish("on-"+host, ", host: "+host))
			require.NoError(t, err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		changed, ended := make(chan driver.Ref, 100), make(chan error, 1)

		go func() { ended <- r.d.Watch(ctx, "libvirt", func(ref driver.Ref) { changed <- ref }) }()

		drain := func() (refs map[string]bool) {
			refs = map[string]bool{}

			for {
				synctest.Wait()

				select {
				case ref := <-changed:
					refs[ref.RequestID] = true
				default:
					return refs
				}
			}
		}

		drain()

		for _, host := range []string{"a", "b", "c"} {
			require.NoError(t, r.hosts[host].SwitchOff(r.hosts[host].Machines()[0].ID))
			require.Equal(t, map[string]bool{"on-" + host: true}, drain())
		}

		r.hosts["b"].StopDaemon()
		require.Empty(t, drain())

		require.NoError(t, r.hosts["a"].SwitchOn(r.hosts["a"].Machines()[0].ID))
		require.Equal(t, map[string]bool{"on-a": true}, drain(), "the others' events go on")

		require.NoError(t, r.hosts["b"].SwitchOn(r.hosts["b"].Machines()[0].ID))
		r.hosts["b"].StartDaemon()
		time.Sleep(2 * lastWatchPause)
		require.Equal(t, map[string]bool{"": true}, drain(), "a full look shows what happened meanwhile")

		require.NoError(t, r.hosts["b"].SwitchOff(r.hosts["b"].Machines()[0].ID))
		require.Equal(t, map[string]bool{"on-b": true}, drain())

		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

func TestLabelsSayWhereTheMachineIs(t *testing.T) {
	inRack(t, three(), func(t *testing.T, r *rack) {
		r.configs[0].Labels = map[string]string{"rack": "r1", "host": "not this one"}
		d := r.driver()

		_, err := r.make(d, wish("m", ", host: a"))
		require.NoError(t, err)

		found, err := d.Find(t.Context(), wish("m", "").Ref)
		require.NoError(t, err)
		require.Equal(t, "r1", found.Labels["rack"])
		require.Equal(t, "a", found.Labels["host"])
		require.Equal(t, "default", found.Labels["pool"])
	})
}

func TestHostsShareNoImagesAndNoLocks(t *testing.T) {
	options := three()
	// One host takes its time for its image.
	options[0].Durations = map[string]time.Duration{"Stream.Finish": 50 * time.Second}

	inRack(t, options, func(t *testing.T, r *rack) {
		slow := make(chan error, 1)

		go func() {
			_, err := r.make(r.d, wish("slow", ", host: a"))
			slow <- err
		}()

		synctest.Wait()
		require.Less(t, took(func() {
			_, err := r.make(r.d, wish("quick", ", host: b"))
			require.NoError(t, err)
		}), time.Second)
		require.NoError(t, <-slow)
	})
}
