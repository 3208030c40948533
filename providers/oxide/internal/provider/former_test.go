package provider

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/rack"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	sim "github.com/omni-infra/omni-infra-providers/sim/oxide"
)

var twoProjects = sim.Options{Durations: durations, Projects: []string{"default", "other"}}

func only(projects ...string) func(*Config) { return func(c *Config) { c.Projects = projects } }

// made lets a process make the machine of r-1 in the project default, or begin with it.
func (b *bench) made(how string) {
	b.t.Helper()

	b.run(func(p *process) {
		if how == "an import" {
			time.AfterFunc(30*time.Second, func() { b.rack.Ledger().Disconnect(); p.die() })

			defer b.inject(hang("disk_bulk_write_import", 2))()

			_, err := p.make(requestOf("r-1", crashClass))
			require.Error(b.t, err)

			return
		}

		_, err := p.make(requestOf("r-1", crashClass))
		require.NoError(b.t, err)

		if how == "what is left of a machine" {
			require.NoError(b.t, b.rack.DeleteMachine(b.rack.Machines()[0].ID))
			time.Sleep(time.Minute)
		}
	}, only("default", "other"))
}

func TestWhatAProjectHasIsLookedAfterWhenItIsTakenOutOfTheConfiguration(t *testing.T) {
	for _, how := range []string{"a machine", "what is left of a machine", "an import"} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, twoProjects, func(b *bench) {
				b.made(how)

				b.run(func(p *process) {
					list, err := p.List(p.ctx, provider)
					require.NoError(t, err)
					require.Len(t, list, 1)
					require.Equal(t, request("r-1").Ref, list[0].Ref)
					require.Equal(t, how != "a machine", list[0].Incomplete)

					_, err = p.Find(p.ctx, request("r-1").Ref)
					require.Equal(t, how != "a machine", driver.IsNotFound(err), "%v", err)

					_, err = p.try(request("r-2"))
					require.ErrorContains(t, err, "configuration allows other alone", "nothing new is made there")

					require.NoError(t, p.remove("r-1"))
					b.imageOnly()

					for range 26 * 60 {
						_, err := p.List(p.ctx, provider)
						require.NoError(t, err)
						time.Sleep(time.Minute)
					}

					require.Empty(t, b.kinds(), "the image goes by its age")
				}, only("other"))
			})
		})
	}
}

func TestProjectsOutsideOfTheConfigurationAreNotAskedAllTheTime(t *testing.T) {
	inBubble(t, twoProjects, func(b *bench) {
		b.run(func(p *process) {
			for range 30 {
				_, err := p.List(p.ctx, provider)
				require.NoError(t, err)
				time.Sleep(time.Minute)
			}

			require.Equal(t, 30+1, b.rack.Ledger().CallsOf("floating_ip_list"), "once in the other project")
		}, only("other"))
	})
}

func TestAClassThatNamesAnotherProjectMakesNoSecondMachine(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		inBubble(t, twoProjects, func(b *bench) {
			p := b.process()

			for b.rack.Ledger().CallsOf("instance_create") == 0 {
				_, _ = p.try(requestOf("r-1", "{project: default, boot_disk_size: 2}"))
			}

			if restarted {
				p.end()
				p = b.process()
			}

			defer func() { p.end() }()

			_, err := p.make(requestOf("r-1", "{project: other, boot_disk_size: 2}"))
			require.NoError(t, err)
			require.Len(t, b.rack.Machines(), 1)
			require.NoError(t, p.remove("r-1"))
			require.Empty(t, b.rack.Machines())
			b.imageOnly()
		})
	}
}

// confined lets a process have the token of a user with a role in one project alone.
func (b *bench) confined(to string) func(*Config) {
	b.t.Helper()

	token, err := b.rack.AddUser("confined", sim.None, map[string]sim.Role{to: sim.Collaborator})
	require.NoError(b.t, err)

	client, err := rack.New(rack.Config{
		Credentials: rack.Credentials{Host: "https://rack.test", Token: token}, Transport: b.rack.Transport(nil),
	})
	require.NoError(b.t, err)

	return func(c *Config) { c.Rack = client }
}

func TestACollaboratorOfTheProjectIsEnough(t *testing.T) {
	inBubble(t, twoProjects, func(b *bench) {
		confined := b.confined("default")

		b.run(func(p *process) {
			_, err := p.make(requestOf("r-1", crashClass))
			require.NoError(t, err)

			list, err := p.List(p.ctx, provider)
			require.NoError(t, err)
			require.Len(t, list, 1)

			require.NoError(t, p.remove("r-1"))

			for range 26 * 60 {
				_, err := p.List(p.ctx, provider)
				require.NoError(t, err)
				time.Sleep(time.Minute)
			}

			require.Empty(t, b.kinds(), "the image goes by its age")
		}, confined, only("default"))

		b.run(func(p *process) {
			_, err := p.List(p.ctx, provider)
			require.ErrorContains(t, err, "name the projects in the provider's configuration")
		}, confined)
	})
}

func TestAnImageThatCannotBeGivenToTheSiloIsImportedOnce(t *testing.T) {
	inBubble(t, twoProjects, func(b *bench) {
		b.run(func(p *process) {
			for range 30 {
				_, err := p.try(requestOf("r-1", "{project: default, boot_disk_size: 2, image_scope: silo}"))
				require.ErrorContains(t, err, "promote image")
				require.ErrorContains(t, err, "403")

				_, err = p.List(p.ctx, provider)
				require.NoError(t, err)
				time.Sleep(time.Hour)
			}

			require.Equal(t, 1, b.rack.Ledger().CallsOf("disk_create"))
			require.NoError(t, p.remove("r-1"))
		}, b.confined("default"), only("default"))
	})
}
