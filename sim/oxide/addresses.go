package oxide

import (
	"net/http"
	"net/netip"
	"slices"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

// Pool is a range of external addresses that the silo may use.
type Pool struct {
	Name string
	// First and Last are its first and its last address, of one version.
	First, Last netip.Addr
	// Default says that it is the one of its version that is used when none is named.
	Default bool
}

// defaultPools are of the ranges for documentation.
func defaultPools() []Pool {
	return []Pool{
		{Name: "default", First: netip.MustParseAddr("203.0.113.10"), Last: netip.MustParseAddr("203.0.113.250"), Default: true},
		{Name: "default-v6", First: netip.MustParseAddr("2001:db8::10"), Last: netip.MustParseAddr("2001:db8::ff"), Default: true},
	}
}

type pool struct {
	meta
	Pool
}

// address is an external address of an instance.
type address struct {
	ip   netip.Addr
	pool string
}

// snat is a part of the ports of an address.
type snat struct {
	address
	port int
}

// snatPorts is how many ports of an address an instance gets.
const snatPorts = 1 << 14

func (r *Rack) addPool(p Pool) {
	r.pools.add(r.ledger, &pool{meta: r.newMeta(p.Name, p.Name+" IP pool", ""), Pool: p}, true)
}

func (p *pool) version() api.IpVersion {
	if p.First.Is4() {
		return api.IpVersionV4
	}

	return api.IpVersionV6
}

func (p *pool) view() api.SiloIpPool {
	return api.SiloIpPool{
		Id: p.id, Name: api.Name(p.meta.name), Description: p.description, IpVersion: p.version(), IsDefault: new(p.Default),
		PoolType: api.IpPoolTypeUnicast, TimeCreated: took(p.created), TimeModified: took(p.modified),
	}
}

func (c *call) listPools() (int, any, error) {
	p, err := c.paging()
	if err != nil {
		return 0, nil, err
	}

	return listed(p, c.pools.rows, (*pool).view)
}

func (c *call) poolOf(text string) (*pool, error) { return within(&c.pools, &project{}, text) }

func (c *call) viewPool() (int, any, error) {
	p, err := c.poolOf(c.path("pool"))
	if err != nil {
		return 0, nil, err
	}

	return http.StatusOK, p.view(), nil
}

// choose is the pool that a selector names, or the default one.
func (c *call) choose(selector api.PoolSelector) (*pool, error) {
	version := api.IpVersion("")

	switch s := selector.Value.(type) {
	case *api.PoolSelectorExplicit:
		return c.poolOf(string(s.Pool))
	case *api.PoolSelectorAuto:
		version = s.IpVersion
	}

	found := c.pools.where(func(p *pool) bool { return p.Default && (version == "" || p.version() == version) })

	switch {
	case len(found) == 0:
		return nil, notFound("default IP pool for current silo")
	case len(found) > 1:
		return nil, invalidRequest("Multiple default IP pools exist for this silo; specify an IP version or pool explicitly")
	}

	return found[0], nil
}

// takeLocked is a free address of a pool.
func (r *Rack) takeLocked(p *pool) (address, error) {
	taken := r.takenLocked()

	for a := p.First; a.Compare(p.Last) <= 0; a = a.Next() {
		if !taken[a] {
			return address{a, p.id}, nil
		}
	}

	return address{}, insufficient("No external IP addresses available")
}

func (r *Rack) takenLocked() map[netip.Addr]bool {
	taken := map[netip.Addr]bool{}

	for _, f := range r.floating.rows {
		taken[f.ip] = true
	}

	for _, i := range r.instances.rows {
		for _, a := range i.ephemeral {
			taken[a.ip] = true
		}

		if i.snat != nil {
			taken[i.snat.ip] = true
		}
	}

	return taken
}

// snatLocked gives an instance a part of the ports of an address, which it shares with others.
func (r *Rack) snatLocked(i *instance) {
	for _, p := range r.pools.rows {
		if !p.Default || !p.First.Is4() {
			continue
		}

		used := map[netip.Addr]map[int]bool{}

		for _, other := range r.instances.rows {
			if s := other.snat; s != nil {
				if used[s.ip] == nil {
					used[s.ip] = map[int]bool{}
				}

				used[s.ip][s.port] = true
			}
		}

		for ip, ports := range used {
			for port := 0; port < 1<<16; port += snatPorts {
				if !ports[port] {
					i.snat = &snat{address{ip, p.id}, port}

					return
				}
			}
		}

		if a, err := r.takeLocked(p); err == nil {
			i.snat = &snat{a, 0}
		}

		return
	}
}

// addresses gives a new instance its external addresses.
func (m *making) addresses() error {
	m.snatLocked(m.made)

	for _, e := range m.body.ExternalIps {
		switch e := e.Value.(type) {
		case *api.ExternalIpCreateEphemeral:
			if _, err := m.ephemeral(m.made, e.PoolSelector); err != nil {
				return err
			}
		case *api.ExternalIpCreateFloating:
			f, err := within(&m.floating, m.in, string(e.FloatingIp))
			if err != nil {
				return err
			}

			if err := m.attach(f, m.made); err != nil {
				return err
			}
		default:
			return badBody("missing field `type`")
		}
	}

	return nil
}

// ephemeral gives an instance an ephemeral address.
func (c *call) ephemeral(i *instance, selector api.PoolSelector) (address, error) {
	p, err := c.choose(selector)
	if err != nil {
		return address{}, err
	}

	for _, a := range i.ephemeral {
		if a.ip.Is4() == p.First.Is4() {
			return a, invalidRequest("An instance may not have more than 1 ephemeral IP address of IP%s", p.version())
		}
	}

	if err := c.family(i, p.First.Is4()); err != nil {
		return address{}, err
	}

	if c.externalCount(i) >= maxExternal {
		return address{}, invalidRequest("An instance may not have more than %d external IP addresses", maxExternal)
	}

	a, err := c.takeLocked(p)
	if err == nil {
		i.ephemeral = append(i.ephemeral, a)
	}

	return a, err
}

// family says whether an interface of the instance has addresses of that version.
func (c *call) family(i *instance, v4 bool) error {
	for _, n := range c.nics.in(i.id) {
		if v4 && n.v4.IsValid() || !v4 && n.v6.IsValid() {
			return nil
		}
	}

	return invalidRequest("The external IP cannot be attached: the instance has no network interface with an address of its IP version")
}

func (c *call) externalCount(i *instance) int {
	return len(i.ephemeral) + len(c.floating.where(func(f *floatingIP) bool { return f.instance == i.id }))
}

func (a address) view() api.ExternalIp {
	return api.ExternalIp{Value: &api.ExternalIpEphemeral{Ip: a.ip.String(), IpPoolId: a.pool}}
}

func (c *call) listExternalIPs() (int, any, error) {
	i, err := c.instanceOf(false)
	if err != nil {
		return 0, nil, err
	}

	page := results[api.ExternalIp]{Items: []api.ExternalIp{}}

	if i.snat != nil {
		page.Items = append(page.Items, api.ExternalIp{Value: &api.ExternalIpSnat{
			Ip: i.snat.ip.String(), IpPoolId: i.snat.pool, FirstPort: new(i.snat.port), LastPort: new(i.snat.port + snatPorts - 1),
		}})
	}

	for _, a := range i.ephemeral {
		page.Items = append(page.Items, a.view())
	}

	for _, f := range c.floating.rows {
		if f.instance == i.id {
			one := api.ExternalIpFloating(f.view())
			page.Items = append(page.Items, api.ExternalIp{Value: &one})
		}
	}

	return http.StatusOK, page, nil
}

func (c *call) attachEphemeral() (int, any, error) {
	body, err := decode[api.EphemeralIpCreate](c)
	if err != nil {
		return 0, nil, err
	}

	i, err := c.instanceOf(true)
	if err != nil {
		return 0, nil, err
	}

	a, err := c.ephemeral(i, body.PoolSelector)
	if err != nil {
		return 0, nil, err
	}

	return http.StatusAccepted, a.view(), nil
}

func (c *call) detachEphemeral() (int, any, error) {
	i, err := c.instanceOf(true)
	if err != nil {
		return 0, nil, err
	}

	version := api.IpVersion(c.query.Get("ip_version"))

	switch {
	case len(i.ephemeral) == 0:
		return 0, nil, invalidRequest("instance does not have an ephemeral IP attached")
	case len(i.ephemeral) > 1 && version == "":
		return 0, nil, invalidRequest("instance has multiple ephemeral IPs; specify an IP version")
	}

	left := slices.DeleteFunc(slices.Clone(i.ephemeral), func(a address) bool {
		return version == "" || (version == api.IpVersionV4) == a.ip.Is4()
	})
	if len(left) == len(i.ephemeral) {
		return 0, nil, invalidRequest("instance does not have an ephemeral IP attached")
	}

	i.ephemeral = left

	return http.StatusNoContent, nil, nil
}

type floatingIP struct {
	meta
	address
	// instance is the id of the one that has it, empty for none.
	instance string
}

func (f *floatingIP) view() api.FloatingIp {
	return api.FloatingIp{
		Id: f.id, Name: api.Name(f.name), Description: f.description, ProjectId: f.scope, InstanceId: f.instance, Ip: f.ip.String(),
		IpPoolId: f.pool, TimeCreated: took(f.created), TimeModified: took(f.modified),
	}
}

func (c *call) listFloatingIPs() (int, any, error) {
	p, in, err := c.listOf()
	if err != nil {
		return 0, nil, err
	}

	return listed(p, c.floating.in(in.id), (*floatingIP).view)
}

func (c *call) floatingOf(changing bool) (*floatingIP, error) {
	return find(c, &c.floating, c.path("floating_ip"), changing)
}

func (c *call) viewFloatingIP() (int, any, error) {
	f, err := c.floatingOf(false)
	if err != nil {
		return 0, nil, err
	}

	return http.StatusOK, f.view(), nil
}

func (c *call) createFloatingIP() (int, any, error) {
	body, err := decode[api.FloatingIpCreate](c)
	if err != nil {
		return 0, nil, err
	}

	in, err := c.inProject(true)
	if err != nil {
		return 0, nil, err
	}

	if err := checkName(string(body.Name)); err != nil {
		return 0, nil, err
	}

	if err := c.floating.free(in.id, string(body.Name), ""); err != nil {
		return 0, nil, err
	}

	a, err := c.allocate(body.AddressAllocator)
	if err != nil {
		return 0, nil, err
	}

	f := &floatingIP{meta: c.newMeta(string(body.Name), body.Description, in.id), address: a}
	c.floating.add(c.ledger, f, false)

	return http.StatusCreated, f.view(), nil
}

// allocate finds an address as an allocator says.
func (c *call) allocate(allocator api.AddressAllocator) (address, error) {
	explicit, ok := allocator.Value.(*api.AddressAllocatorExplicit)
	if !ok {
		selector := api.PoolSelector{}
		if auto, ok := allocator.Value.(*api.AddressAllocatorAuto); ok {
			selector = auto.PoolSelector
		}

		p, err := c.choose(selector)
		if err != nil {
			return address{}, err
		}

		return c.takeLocked(p)
	}

	ip, err := netip.ParseAddr(explicit.Ip)
	if err != nil {
		return address{}, badBody("invalid IP address syntax")
	}

	for _, p := range c.pools.rows {
		if p.First.Is4() == ip.Is4() && p.First.Compare(ip) <= 0 && ip.Compare(p.Last) <= 0 {
			if c.takenLocked()[ip] {
				return address{}, invalidRequest("Requested external IP address not available")
			}

			return address{ip, p.id}, nil
		}
	}

	return address{}, invalidRequest("The requested external IP is not in an IP pool that is linked to this silo")
}

func (c *call) updateFloatingIP() (int, any, error) {
	body, err := decode[api.FloatingIpUpdate](c)
	if err != nil {
		return 0, nil, err
	}

	f, err := c.floatingOf(true)
	if err != nil {
		return 0, nil, err
	}

	if err := rename(&c.floating, f, string(body.Name), body.Description); err != nil {
		return 0, nil, err
	}

	return http.StatusOK, f.view(), nil
}

func (c *call) deleteFloatingIP() (int, any, error) {
	f, err := c.floatingOf(true)

	switch {
	case err != nil:
		return 0, nil, err
	case f.instance != "":
		return 0, nil, invalidRequest("Floating IP cannot be deleted while attached to an instance")
	}

	c.floating.drop(c.ledger, f)

	return http.StatusNoContent, nil, nil
}

func (c *call) attachFloatingIP() (int, any, error) {
	body, err := decode[api.FloatingIpAttach](c)
	if err != nil {
		return 0, nil, err
	}

	f, err := c.floatingOf(true)
	if err != nil {
		return 0, nil, err
	}

	if body.Kind != api.FloatingIpParentKindInstance {
		return 0, nil, badBody("unknown variant `" + string(body.Kind) + "`, expected `instance`")
	}

	i, err := within(&c.instances, &project{meta{id: f.scope}}, string(body.Parent))
	if err != nil {
		return 0, nil, err
	}

	if err := c.attach(f, i); err != nil {
		return 0, nil, err
	}

	return http.StatusAccepted, f.view(), nil
}

// attach gives an instance a floating address.
func (c *call) attach(f *floatingIP, i *instance) error {
	switch {
	case f.instance == i.id:
		return nil
	case f.instance != "":
		return invalidRequest("floating IP cannot be attached to one instance while still attached to another")
	case c.externalCount(i) >= maxExternal:
		return invalidRequest("An instance may not have more than %d external IP addresses", maxExternal)
	}

	if err := c.family(i, f.ip.Is4()); err != nil {
		return err
	}

	f.instance = i.id
	f.touch()

	return nil
}

func (c *call) detachFloatingIP() (int, any, error) {
	f, err := c.floatingOf(true)

	switch {
	case err != nil:
		return 0, nil, err
	case f.instance == "":
		return 0, nil, invalidRequest("Floating IP is not attached to an instance")
	}

	f.instance = ""
	f.touch()

	return http.StatusAccepted, f.view(), nil
}
