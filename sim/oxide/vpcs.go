package oxide

import (
	"fmt"
	"net/http"
	"net/netip"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

// vpc is in a project.
type vpc struct {
	meta
	dns, router string
	prefix      netip.Prefix
}

// subnet is in a VPC.
type subnet struct {
	meta
	v4, v6 netip.Prefix
}

func (v *vpc) view() api.Vpc {
	return api.Vpc{
		Id: v.id, Name: api.Name(v.name), Description: v.description, ProjectId: v.scope, DnsName: api.Name(v.dns),
		Ipv6Prefix: api.Ipv6Net(v.prefix.String()), SystemRouterId: v.router, TimeCreated: took(v.created), TimeModified: took(v.modified),
	}
}

func (s *subnet) view() api.VpcSubnet {
	return api.VpcSubnet{
		Id: s.id, Name: api.Name(s.name), Description: s.description, VpcId: s.scope, Ipv4Block: api.Ipv4Net(s.v4.String()),
		Ipv6Block: api.Ipv6Net(s.v6.String()), TimeCreated: took(s.created), TimeModified: took(s.modified),
	}
}

// makeVPCLocked makes a VPC with its default subnet, as the control plane does. The books do not have what goes with a project.
func (r *Rack) makeVPCLocked(in *project, name, description, dns string, entered bool) *vpc {
	prefix := [16]byte{0xfd}
	_, _ = r.random.Read(prefix[1:6]) // It never fails.

	v := &vpc{
		meta: r.newMeta(name, description, in.id), dns: dns, router: r.newID(),
		prefix: netip.PrefixFrom(netip.AddrFrom16(prefix), 48),
	}

	if entered {
		r.vpcs.add(r.ledger, v, false)
	} else {
		r.vpcs.rows = append(r.vpcs.rows, v)
	}

	s := &subnet{
		meta: r.newMeta("default", "The default subnet for "+name, v.id),
		v4:   netip.MustParsePrefix("172.30.0.0/22"), v6: netip.PrefixFrom(v.prefix.Addr(), 64),
	}
	r.subnets.rows = append(r.subnets.rows, s)

	return v
}

func (r *Rack) dropVPCLocked(v *vpc) {
	for _, s := range r.subnets.in(v.id) {
		r.subnets.drop(r.ledger, s)
	}

	r.vpcs.drop(r.ledger, v)
}

func (c *call) listVPCs() (int, any, error) {
	p, in, err := c.listOf()
	if err != nil {
		return 0, nil, err
	}

	return listed(p, c.vpcs.in(in.id), (*vpc).view)
}

func (c *call) viewVPC() (int, any, error) {
	v, err := find(c, &c.vpcs, c.path("vpc"), false)
	if err != nil {
		return 0, nil, err
	}

	return http.StatusOK, v.view(), nil
}

func (c *call) createVPC() (int, any, error) {
	body, err := decode[api.VpcCreate](c)
	if err != nil {
		return 0, nil, err
	}

	in, err := c.inProject(true)
	if err != nil {
		return 0, nil, err
	}

	for _, name := range []api.Name{body.Name, body.DnsName} {
		if err := checkName(string(name)); err != nil {
			return 0, nil, err
		}
	}

	if err := c.vpcs.free(in.id, string(body.Name), ""); err != nil {
		return 0, nil, err
	}

	return http.StatusCreated, c.makeVPCLocked(in, string(body.Name), body.Description, string(body.DnsName), true).view(), nil
}

func (c *call) deleteVPC() (int, any, error) {
	v, err := find(c, &c.vpcs, c.path("vpc"), true)
	if err != nil {
		return 0, nil, err
	}

	if len(c.subnets.in(v.id)) > 1 || len(c.nics.where(func(n *nic) bool { return n.vpc == v.id })) > 0 {
		return 0, nil, invalidRequest("VPC cannot be deleted while VPC Subnets exist")
	}

	c.dropVPCLocked(v)

	return http.StatusNoContent, nil, nil
}

// vpcOfQuery is the VPC that the query names.
func (c *call) vpcOfQuery(text string, changing bool) (*vpc, error) {
	if text == "" {
		return nil, badQuery("missing field `vpc`")
	}

	return find(c, &c.vpcs, text, changing)
}

func (c *call) listSubnets() (int, any, error) {
	p, err := c.paging()
	if err != nil {
		return 0, nil, err
	}

	v, err := c.vpcOfQuery(c.query.Get("vpc"), false)
	if err != nil {
		return 0, nil, err
	}

	return listed(p, c.subnets.in(v.id), (*subnet).view)
}

func (c *call) viewSubnet() (int, any, error) {
	text := c.path("subnet")

	if isID(text) {
		s, ok := c.subnets.byID(text)
		if ok {
			if v, there := c.vpcs.byID(s.scope); there && c.user.in(v.scope) >= Viewer {
				return http.StatusOK, s.view(), nil
			}
		}

		return 0, nil, notFoundID("vpc-subnet", text)
	}

	v, err := c.vpcOfQuery(c.query.Get("vpc"), false)
	if err != nil {
		return 0, nil, err
	}

	s, ok := c.subnets.named(v.id, text)
	if !ok {
		return 0, nil, notFoundName("vpc-subnet", text)
	}

	return http.StatusOK, s.view(), nil
}

// freeLocked is the lowest free address of a subnet. The first few of each are the control plane's.
func (r *Rack) freeLocked(s *subnet, v4 bool) (netip.Addr, error) {
	block := s.v6
	if v4 {
		block = s.v4
	}

	taken := map[netip.Addr]bool{}

	for _, n := range r.nics.where(func(n *nic) bool { return n.subnet == s.id }) {
		taken[n.v4], taken[n.v6] = true, true
	}

	a := block.Addr()
	for range reserved {
		a = a.Next()
	}

	for ; block.Contains(a); a = a.Next() {
		if !taken[a] {
			return a, nil
		}
	}

	return a, insufficient("No available IP addresses for interface")
}

// reserved is how many addresses at the start of a subnet no instance gets.
const reserved = 5

// explicitLocked checks an address that a client asks for.
func (r *Rack) explicitLocked(s *subnet, text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, badBody("invalid IP address syntax")
	}

	if !s.v4.Contains(a) && !s.v6.Contains(a) {
		return a, invalidRequest("The IP address %q is not in the VPC subnet", text)
	}

	for _, n := range r.nics.where(func(n *nic) bool { return n.subnet == s.id }) {
		if n.v4 == a || n.v6 == a {
			return a, invalidRequest("The IP address '%s' is not available", text)
		}
	}

	return a, nil
}

// newMAC is a hardware address of Oxide's range for guests.
func (r *Rack) newMAC() string {
	var b [3]byte

	_, _ = r.random.Read(b[:]) // It never fails.

	return fmt.Sprintf("A8:40:25:F%X:%02X:%02X", b[0]&0x7, b[1], b[2])
}
