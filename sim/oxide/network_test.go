package oxide_test

import (
	"net/netip"
	"testing"

	api "github.com/oxidecomputer/oxide.go/oxide"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/oxide"
)

func TestInterfacesHaveAddressesOfTheirSubnet(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		body := spec("one", "")
		body.Start = new(false)
		i := b.instance(body)
		of := func() []api.InstanceNetworkInterface {
			all, err := b.InstanceNetworkInterfaceListAllPages(b.ctx(), api.InstanceNetworkInterfaceListParams{Instance: api.NameOrId(i.Id)})
			require.NoError(t, err)

			return all
		}

		all := of()
		require.Len(t, all, 1)

		stack, ok := all[0].IpStack.AsDualStack()
		require.True(t, ok)
		require.Equal(t, "172.30.0.5", stack.Value.V4.Ip, "the first five are the rack's")
		require.True(t, *all[0].Primary)
		require.Regexp(t, "^A8:40:25:F[0-7]:", string(all[0].Mac))

		subnets, err := b.VpcSubnetListAllPages(b.ctx(), api.VpcSubnetListParams{Project: project, Vpc: "default"})
		require.NoError(t, err)
		require.Len(t, subnets, 1)
		require.True(t, netip.MustParsePrefix(string(subnets[0].Ipv6Block)).Contains(netip.MustParseAddr(stack.Value.V6.Ip)))

		_, err = b.VpcSubnetView(b.ctx(), api.VpcSubnetViewParams{Project: project, Vpc: "default", Subnet: "default"})
		require.NoError(t, err)

		require.NoError(t, b.InstanceNetworkInterfaceDelete(b.ctx(), api.InstanceNetworkInterfaceDeleteParams{Interface: api.NameOrId(all[0].Id)}))
		require.Empty(t, of())

		create := func(ip string) error {
			_, err := b.InstanceNetworkInterfaceCreate(b.ctx(), api.InstanceNetworkInterfaceCreateParams{
				Instance: api.NameOrId(i.Id), Body: &api.InstanceNetworkInterfaceCreate{
					Name: "eth", Description: "d", VpcName: "default", SubnetName: "default",
					IpConfig: api.PrivateIpStackCreate{Value: &api.PrivateIpStackCreateV4{Value: api.PrivateIpv4StackCreate{
						Ip: api.Ipv4Assignment{Value: &api.Ipv4AssignmentExplicit{Value: ip}},
					}}},
				},
			})

			return err
		}

		requireNo(t, create("10.0.0.1"), api.ErrInvalidRequest, "is not in the VPC subnet")
		require.NoError(t, create("172.30.0.99"))

		renamed, err := b.InstanceNetworkInterfaceUpdate(b.ctx(), api.InstanceNetworkInterfaceUpdateParams{
			Interface: "eth", Instance: "one", Project: project, Body: &api.InstanceNetworkInterfaceUpdate{Name: "lan"},
		})
		require.NoError(t, err)
		require.Equal(t, api.Name("lan"), renamed.Name)

		require.NoError(t, b.start(i.Id))
		requireNo(t, b.InstanceNetworkInterfaceDelete(b.ctx(), api.InstanceNetworkInterfaceDeleteParams{Interface: api.NameOrId(renamed.Id)}),
			api.ErrInvalidRequest, "Instance must be stopped")
	})
}

func TestFloatingAddressesAreAttachedToOneInstance(t *testing.T) {
	pools := []oxide.Pool{
		{Name: "small", First: netip.MustParseAddr("203.0.113.1"), Last: netip.MustParseAddr("203.0.113.3"), Default: true},
		{Name: "six", First: netip.MustParseAddr("2001:db8::1"), Last: netip.MustParseAddr("2001:db8::2"), Default: true},
	}

	inBubble(t, oxide.Options{Pools: pools}, func(b *bench) {
		create := func(name string, allocator api.AddressAllocator) (*api.FloatingIp, error) {
			return b.FloatingIpCreate(b.ctx(), api.FloatingIpCreateParams{Project: project, Body: &api.FloatingIpCreate{
				Name: api.Name(name), Description: "d", AddressAllocator: allocator,
			}})
		}
		auto := func(version api.IpVersion) api.AddressAllocator {
			return api.AddressAllocator{Value: &api.AddressAllocatorAuto{PoolSelector: api.PoolSelector{Value: &api.PoolSelectorAuto{IpVersion: version}}}}
		}
		exactly := func(ip string) api.AddressAllocator {
			return api.AddressAllocator{Value: &api.AddressAllocatorExplicit{Ip: ip}}
		}

		one, two := b.instance(spec("one", "")), b.instance(spec("two", ""))

		f, err := create("web", auto(api.IpVersionV4))
		require.NoError(t, err)
		require.Equal(t, "203.0.113.2", f.Ip, "the first one is for traffic that leaves")

		_, err = create("web", auto(api.IpVersionV4))
		require.ErrorIs(t, err, api.ErrObjectAlreadyExists)
		_, err = create("taken", exactly("203.0.113.2"))
		requireNo(t, err, api.ErrInvalidRequest, "not available")
		_, err = create("outside", exactly("198.51.100.1"))
		requireNo(t, err, api.ErrInvalidRequest, "not in an IP pool")
		_, err = create("ambiguous", api.AddressAllocator{Value: &api.AddressAllocatorAuto{}})
		requireNo(t, err, api.ErrInvalidRequest, "Multiple default IP pools")
		_, err = create("last", auto(api.IpVersionV4))
		require.NoError(t, err)
		_, err = create("full", auto(api.IpVersionV4))
		requireNo(t, err, api.ErrInsufficientCapacity, "No external IP addresses available")

		attach := func(to *api.Instance) error {
			_, err := b.FloatingIpAttach(b.ctx(), api.FloatingIpAttachParams{
				FloatingIp: api.NameOrId(f.Id), Body: &api.FloatingIpAttach{Kind: api.FloatingIpParentKindInstance, Parent: api.NameOrId(to.Id)},
			})

			return err
		}

		require.NoError(t, attach(one))
		requireNo(t, attach(two), api.ErrInvalidRequest, "still attached to another")
		requireNo(t, b.FloatingIpDelete(b.ctx(), api.FloatingIpDeleteParams{FloatingIp: "web", Project: project}), api.ErrInvalidRequest,
			"Floating IP cannot be deleted while attached to an instance")

		external, err := b.InstanceExternalIpList(b.ctx(), api.InstanceExternalIpListParams{Instance: api.NameOrId(one.Id)})
		require.NoError(t, err)
		require.Len(t, external.Items, 2)

		// It stays when its instance goes.
		require.NoError(t, b.stop(one.Id))
		require.NoError(t, b.delete(one.Id))
		require.NoError(t, attach(two))

		_, err = b.FloatingIpDetach(b.ctx(), api.FloatingIpDetachParams{FloatingIp: "web", Project: project})
		require.NoError(t, err)
		_, err = b.FloatingIpUpdate(b.ctx(), api.FloatingIpUpdateParams{
			FloatingIp: "web", Project: project, Body: &api.FloatingIpUpdate{Description: "other"},
		})
		require.NoError(t, err)
		require.NoError(t, b.FloatingIpDelete(b.ctx(), api.FloatingIpDeleteParams{FloatingIp: "web", Project: project}))

		pools, err := b.IpPoolListAllPages(b.ctx(), api.IpPoolListParams{})
		require.NoError(t, err)
		require.Len(t, pools, 2)
		_, err = b.IpPoolView(b.ctx(), api.IpPoolViewParams{Pool: "small"})
		require.NoError(t, err)
	})
}

func TestEphemeralAddressIsOneOfEachVersion(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		i := b.instance(spec("one", ""))
		id := api.NameOrId(i.Id)
		attach := func(version api.IpVersion) error {
			_, err := b.InstanceEphemeralIpAttach(b.ctx(), api.InstanceEphemeralIpAttachParams{
				Instance: id, Body: &api.EphemeralIpCreate{PoolSelector: api.PoolSelector{Value: &api.PoolSelectorAuto{IpVersion: version}}},
			})

			return err
		}
		detach := func(version api.IpVersion) error {
			return b.InstanceEphemeralIpDetach(b.ctx(), api.InstanceEphemeralIpDetachParams{Instance: id, IpVersion: version})
		}

		requireNo(t, detach(""), api.ErrInvalidRequest, "does not have an ephemeral IP")
		require.NoError(t, attach(api.IpVersionV4))
		requireNo(t, attach(api.IpVersionV4), api.ErrInvalidRequest, "may not have more than 1 ephemeral IP")
		require.NoError(t, attach(api.IpVersionV6))
		requireNo(t, detach(""), api.ErrInvalidRequest, "specify an IP version")
		require.NoError(t, detach(api.IpVersionV4))
		require.NoError(t, detach(""))
	})
}

func TestGroupsHaveMembers(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		_, err := b.AntiAffinityGroupCreate(b.ctx(), api.AntiAffinityGroupCreateParams{Project: project, Body: &api.AntiAffinityGroupCreate{
			Name: "apart", Description: "d", Policy: api.AffinityPolicyAllow, FailureDomain: api.FailureDomainSled,
		}})
		require.NoError(t, err)

		body := spec("one", "")
		body.Start = new(false)
		i := b.instance(body)
		add := func() error {
			_, err := b.AntiAffinityGroupMemberInstanceAdd(b.ctx(), api.AntiAffinityGroupMemberInstanceAddParams{
				Project: project, AntiAffinityGroup: "apart", Instance: "one",
			})

			return err
		}

		require.NoError(t, add())
		require.ErrorIs(t, add(), api.ErrObjectAlreadyExists)

		members, err := b.AntiAffinityGroupMemberListAllPages(b.ctx(), api.AntiAffinityGroupMemberListParams{Project: project, AntiAffinityGroup: "apart"})
		require.NoError(t, err)
		require.Len(t, members, 1)

		groups, err := b.InstanceAntiAffinityGroupListAllPages(b.ctx(), api.InstanceAntiAffinityGroupListParams{Instance: api.NameOrId(i.Id)})
		require.NoError(t, err)
		require.Len(t, groups, 1)

		leave := func() error {
			return b.AntiAffinityGroupMemberInstanceDelete(b.ctx(), api.AntiAffinityGroupMemberInstanceDeleteParams{
				Project: project, AntiAffinityGroup: "apart", Instance: "one",
			})
		}

		require.NoError(t, leave())
		require.ErrorIs(t, leave(), api.ErrObjectNotFound)
		require.NoError(t, b.start(i.Id))
		requireNo(t, add(), api.ErrInvalidRequest, "Instance cannot be added to anti-affinity group in state: running")
		require.NoError(t, b.AntiAffinityGroupDelete(b.ctx(), api.AntiAffinityGroupDeleteParams{Project: project, AntiAffinityGroup: "apart"}))
	})
}

func TestInstanceHasTheKeysThatAreNamed(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		for _, name := range []api.Name{"one", "two"} {
			_, err := b.CurrentUserSshKeyCreate(b.ctx(), api.CurrentUserSshKeyCreateParams{Body: &api.SshKeyCreate{
				Name: name, Description: "d", PublicKey: "ssh-ed25519 AAAA " + string(name),
			}})
			require.NoError(t, err)
		}

		for name, tt := range map[string]struct {
			keys []api.NameOrId
			want int
		}{"all": {nil, 2}, "none": {[]api.NameOrId{}, 0}, "named": {[]api.NameOrId{"two"}, 1}} {
			body := spec(name, "")
			body.SshPublicKeys = tt.keys
			i := b.instance(body)

			keys, err := b.InstanceSshPublicKeyListAllPages(b.ctx(), api.InstanceSshPublicKeyListParams{Instance: api.NameOrId(i.Id)})
			require.NoError(t, err)
			require.Len(t, keys, tt.want, name)
		}

		_, err := b.CurrentUserSshKeyView(b.ctx(), api.CurrentUserSshKeyViewParams{SshKey: "one"})
		require.NoError(t, err)
		require.NoError(t, b.CurrentUserSshKeyDelete(b.ctx(), api.CurrentUserSshKeyDeleteParams{SshKey: "one"}))

		all, err := b.CurrentUserSshKeyListAllPages(b.ctx(), api.CurrentUserSshKeyListParams{})
		require.NoError(t, err)
		require.Len(t, all, 1)
	})
}
