package oxide

import (
	"net/http"
	"net/netip"
	"slices"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

// nic is a network interface of an instance.
type nic struct {
	meta
	vpc, subnet, mac   string
	v4, v6             netip.Addr
	transit4, transit6 []string
	primary            bool
}

func (n *nic) view() api.InstanceNetworkInterface {
	four := api.PrivateIpv4Stack{Ip: n.v4.String(), TransitIps: []api.Ipv4Net{}}
	for _, t := range n.transit4 {
		four.TransitIps = append(four.TransitIps, api.Ipv4Net(t))
	}

	six := api.PrivateIpv6Stack{Ip: n.v6.String(), TransitIps: []api.Ipv6Net{}}
	for _, t := range n.transit6 {
		six.TransitIps = append(six.TransitIps, api.Ipv6Net(t))
	}

	var stack api.PrivateIpStack

	switch {
	case n.v4.IsValid() && n.v6.IsValid():
		stack.Value = &api.PrivateIpStackDualStack{Value: api.PrivateIpStackDualStackValue{V4: four, V6: six}}
	case n.v6.IsValid():
		stack.Value = &api.PrivateIpStackV6{Value: six}
	default:
		stack.Value = &api.PrivateIpStackV4{Value: four}
	}

	return api.InstanceNetworkInterface{
		Id: n.id, Name: api.Name(n.name), Description: n.description, InstanceId: n.scope, Mac: api.MacAddr(n.mac), VpcId: n.vpc,
		SubnetId: n.subnet, Primary: new(n.primary), IpStack: stack, TimeCreated: took(n.created), TimeModified: took(n.modified),
	}
}

// nicsLocked are the interfaces of an instance, the primary one first.
func (r *Rack) nicsLocked(instance string) []*nic {
	nics := r.nics.in(instance)
	slices.SortStableFunc(nics, func(a, b *nic) int {
		switch {
		case a.primary == b.primary:
			return 0
		case a.primary:
			return -1
		default:
			return 1
		}
	})

	return nics
}

// makeNICs makes the interfaces of a new instance.
func (m *making) makeNICs() error {
	auto4 := api.PrivateIpv4StackCreate{Ip: api.Ipv4Assignment{Value: &api.Ipv4AssignmentAuto{}}}
	auto6 := api.PrivateIpv6StackCreate{Ip: api.Ipv6Assignment{Value: &api.Ipv6AssignmentAuto{}}}
	one := api.InstanceNetworkInterfaceCreate{
		Name: "net0", Description: "default primary interface for " + string(m.body.Name), VpcName: "default", SubnetName: "default",
	}

	switch a := m.body.NetworkInterfaces.Value.(type) {
	case *api.InstanceNetworkInterfaceAttachmentNone:
		return nil
	case *api.InstanceNetworkInterfaceAttachmentDefaultIpv4:
		one.IpConfig.Value = &api.PrivateIpStackCreateV4{Value: auto4}
	case *api.InstanceNetworkInterfaceAttachmentDefaultIpv6:
		one.IpConfig.Value = &api.PrivateIpStackCreateV6{Value: auto6}
	case *api.InstanceNetworkInterfaceAttachmentCreate:
		return m.makeNamedNICs(a.Params)
	}

	_, err := m.newNICLocked(m.in, m.made, one)

	return err
}

func (m *making) makeNamedNICs(all []api.InstanceNetworkInterfaceCreate) error {
	vpcs := map[api.Name]bool{}
	for _, n := range all {
		vpcs[n.VpcName] = true
	}

	switch {
	case len(all) > maxNICs:
		return invalidRequest("An instance may not have more than %d network interfaces", maxNICs)
	case len(vpcs) != 1:
		return invalidRequest("All interfaces must be in the same VPC")
	}

	for _, n := range all {
		if _, err := m.newNICLocked(m.in, m.made, n); err != nil {
			return err
		}
	}

	return nil
}

// newNICLocked gives an instance an interface; the first one is the primary one.
func (r *Rack) newNICLocked(in *project, i *instance, body api.InstanceNetworkInterfaceCreate) (*nic, error) {
	if err := checkName(string(body.Name)); err != nil {
		return nil, err
	}

	v, ok := r.vpcs.named(in.id, string(body.VpcName))
	if !ok {
		return nil, notFoundName("vpc", string(body.VpcName))
	}

	s, ok := r.subnets.named(v.id, string(body.SubnetName))
	if !ok {
		return nil, notFoundName("vpc-subnet", string(body.SubnetName))
	}

	others := r.nics.in(i.id)

	for _, n := range others {
		switch {
		case n.vpc != v.id:
			return nil, invalidRequest("The instance is already in another VPC")
		case n.subnet == s.id:
			return nil, invalidRequest("The instance already has an interface in VPC Subnet '%s'", s.id)
		}
	}

	if len(others) >= maxNICs {
		return nil, invalidRequest("Instances cannot have more than %d network interfaces", maxNICs)
	}

	if err := r.nics.free(i.id, string(body.Name), ""); err != nil {
		return nil, err
	}

	n := &nic{
		meta: r.newMeta(string(body.Name), body.Description, i.id), vpc: v.id, subnet: s.id, mac: r.newMAC(), primary: len(others) == 0,
	}

	if err := r.assignLocked(n, s, body.IpConfig); err != nil {
		return nil, err
	}

	r.nics.add(r.ledger, n, false)

	return n, nil
}

// assignLocked gives an interface its addresses.
func (r *Rack) assignLocked(n *nic, s *subnet, config api.PrivateIpStackCreate) (err error) {
	var (
		four *api.PrivateIpv4StackCreate
		six  *api.PrivateIpv6StackCreate
	)

	switch stack := config.Value.(type) {
	case *api.PrivateIpStackCreateV4:
		four = &stack.Value
	case *api.PrivateIpStackCreateV6:
		six = &stack.Value
	case *api.PrivateIpStackCreateDualStack:
		four, six = &stack.Value.V4, &stack.Value.V6
	default:
		four, six = &api.PrivateIpv4StackCreate{}, &api.PrivateIpv6StackCreate{}
	}

	if four != nil {
		if explicit, ok := four.Ip.Value.(*api.Ipv4AssignmentExplicit); ok {
			n.v4, err = r.explicitLocked(s, explicit.Value)
		} else {
			n.v4, err = r.freeLocked(s, true)
		}

		for _, t := range four.TransitIps {
			n.transit4 = append(n.transit4, string(t))
		}
	}

	if six != nil && err == nil {
		if explicit, ok := six.Ip.Value.(*api.Ipv6AssignmentExplicit); ok {
			n.v6, err = r.explicitLocked(s, explicit.Value)
		} else {
			n.v6, err = r.freeLocked(s, false)
		}

		for _, t := range six.TransitIps {
			n.transit6 = append(n.transit6, string(t))
		}
	}

	return err
}

// instanceOfQuery is the instance that the query names.
func (c *call) instanceOfQuery(changing bool) (*instance, error) {
	text := c.query.Get("instance")
	if text == "" {
		return nil, badQuery("missing field `instance`")
	}

	return find(c, &c.instances, text, changing)
}

func (c *call) listNICs() (int, any, error) {
	p, err := c.paging()
	if err != nil {
		return 0, nil, err
	}

	i, err := c.instanceOfQuery(false)
	if err != nil {
		return 0, nil, err
	}

	return listed(p, c.nics.in(i.id), (*nic).view)
}

// nicOf is the interface of the path, and its instance.
func (c *call) nicOf(changing bool) (n *nic, i *instance, err error) {
	text := c.path("interface")

	if isID(text) {
		if c.query.Get("instance") != "" {
			return nil, nil, invalidRequest("when providing network interface as an ID instance should not be specified")
		}

		n, ok := c.nics.byID(text)
		if !ok {
			return nil, nil, notFoundID("instance-network-interface", text)
		}

		i, _ := c.instances.byID(n.scope)

		switch {
		case c.user.in(i.scope) < Viewer:
			return nil, nil, notFoundID("instance-network-interface", text)
		case changing && c.user.in(i.scope) < Collaborator:
			return nil, nil, forbidden()
		}

		return n, i, nil
	}

	if i, err = c.instanceOfQuery(changing); err != nil {
		return nil, nil, err
	}

	n, ok := c.nics.named(i.id, text)
	if !ok {
		return nil, nil, notFoundName("instance-network-interface", text)
	}

	return n, i, nil
}

func (c *call) viewNIC() (int, any, error) {
	n, _, err := c.nicOf(false)
	if err != nil {
		return 0, nil, err
	}

	return http.StatusOK, n.view(), nil
}

// still says whether interfaces of the instance may change.
func (i *instance) still() error {
	if i.state != api.InstanceStateStopped && i.state != api.InstanceStateCreating {
		return invalidRequest("Instance must be stopped to attach or detach a network interface")
	}

	return nil
}

func (c *call) createNIC() (int, any, error) {
	body, err := decode[api.InstanceNetworkInterfaceCreate](c)
	if err != nil {
		return 0, nil, err
	}

	i, err := c.instanceOfQuery(true)
	if err != nil {
		return 0, nil, err
	}

	if err := i.still(); err != nil {
		return 0, nil, err
	}

	n, err := c.newNICLocked(&project{meta{id: i.scope}}, i, body)
	if err != nil {
		return 0, nil, err
	}

	return http.StatusCreated, n.view(), nil
}

func (c *call) updateNIC() (int, any, error) {
	body, err := decode[api.InstanceNetworkInterfaceUpdate](c)
	if err != nil {
		return 0, nil, err
	}

	n, i, err := c.nicOf(true)
	if err != nil {
		return 0, nil, err
	}

	promote := body.Primary != nil && *body.Primary && !n.primary
	if promote {
		if err := i.still(); err != nil {
			return 0, nil, err
		}
	}

	if err := rename(&c.nics, n, string(body.Name), body.Description); err != nil {
		return 0, nil, err
	}

	if promote {
		for _, other := range c.nics.in(i.id) {
			other.primary = other == n
		}
	}

	return http.StatusOK, n.view(), nil
}

func (c *call) deleteNIC() (int, any, error) {
	n, i, err := c.nicOf(true)
	if err != nil {
		return 0, nil, err
	}

	if err := i.still(); err != nil {
		return 0, nil, err
	}

	if n.primary && len(c.nics.in(i.id)) > 1 {
		return 0, nil, invalidRequest("The primary interface may not be deleted while secondary interfaces are still attached")
	}

	c.nics.drop(c.ledger, n)

	return http.StatusNoContent, nil, nil
}
