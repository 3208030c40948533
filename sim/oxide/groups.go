package oxide

import (
	"net/http"
	"slices"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

// group is an affinity or an anti-affinity group.
type group struct {
	meta
	policy  api.AffinityPolicy
	members []string // ids of instances
}

func (g *group) has(instance string) bool { return slices.Contains(g.members, instance) }

func (g *group) leave(instance string) {
	g.members = slices.DeleteFunc(g.members, func(id string) bool { return id == instance })
}

func (g *group) view() api.AntiAffinityGroup {
	return api.AntiAffinityGroup{
		Id: g.id, Name: api.Name(g.name), Description: g.description, ProjectId: g.scope, Policy: g.policy,
		FailureDomain: api.FailureDomainSled, TimeCreated: took(g.created), TimeModified: took(g.modified),
	}
}

func forbiddenMember(g *group) error {
	return invalidRequest("group %q has %d members, and may not have more", g.name, maxMembers)
}

// groups are the operations of one kind of groups, which are the same for both.
type groups struct {
	// param is the part of the path that names the group.
	param string
	of    func(c *call) *table[*group]
}

var (
	antiAffinity = groups{"anti_affinity_group", func(c *call) *table[*group] { return &c.antiGroup }}
	affinity     = groups{"affinity_group", func(c *call) *table[*group] { return &c.affGroup }}
)

// routes are the operations below that path.
func (g groups) routes(path string) routes {
	named := path + "/{" + g.param + "}"
	member := named + "/members/instance/{instance}"

	all := routes{
		op(g.param+"_list", get, path, g.list),
		op(g.param+"_create", post, path, g.create),
		op(g.param+"_view", get, named, g.view),
		op(g.param+"_update", put, named, g.update),
		op(g.param+"_delete", remove, named, g.remove),
		op(g.param+"_member_list", get, named+"/members", g.listMembers),
		op(g.param+"_member_instance_view", get, member, g.viewMember),
		op(g.param+"_member_instance_add", post, member, g.addMember),
		op(g.param+"_member_instance_delete", remove, member, g.dropMember),
		op("instance_"+g.param+"_list", get, "/v1/instances/{instance}/"+path[len("/v1/"):], g.listOfInstance),
	}

	return all
}

func (g groups) find(c *call, changing bool) (*group, error) {
	return find(c, g.of(c), c.path(g.param), changing)
}

func (g groups) list(c *call) (int, any, error) {
	p, in, err := c.listOf()
	if err != nil {
		return 0, nil, err
	}

	return listed(p, g.of(c).in(in.id), (*group).view)
}

func (g groups) view(c *call) (int, any, error) {
	found, err := g.find(c, false)
	if err != nil {
		return 0, nil, err
	}

	return http.StatusOK, found.view(), nil
}

func (g groups) create(c *call) (int, any, error) {
	body, err := decode[api.AntiAffinityGroupCreate](c)
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

	switch {
	case body.Policy != api.AffinityPolicyAllow && body.Policy != api.AffinityPolicyFail:
		return 0, nil, badBody("unknown variant `" + string(body.Policy) + "`, expected `allow` or `fail`")
	case body.FailureDomain != api.FailureDomainSled:
		return 0, nil, badBody("unknown variant `" + string(body.FailureDomain) + "`, expected `sled`")
	}

	if err := g.of(c).free(in.id, string(body.Name), ""); err != nil {
		return 0, nil, err
	}

	made := &group{meta: c.newMeta(string(body.Name), body.Description, in.id), policy: body.Policy}
	g.of(c).add(c.ledger, made, false)

	return http.StatusCreated, made.view(), nil
}

func (g groups) update(c *call) (int, any, error) {
	body, err := decode[api.AntiAffinityGroupUpdate](c)
	if err != nil {
		return 0, nil, err
	}

	found, err := g.find(c, true)
	if err != nil {
		return 0, nil, err
	}

	if err := rename(g.of(c), found, string(body.Name), body.Description); err != nil {
		return 0, nil, err
	}

	return http.StatusOK, found.view(), nil
}

func (g groups) remove(c *call) (int, any, error) {
	found, err := g.find(c, true)
	if err != nil {
		return 0, nil, err
	}

	g.of(c).drop(c.ledger, found)

	return http.StatusNoContent, nil, nil
}

func memberView(i *instance) api.AntiAffinityGroupMember {
	return api.AntiAffinityGroupMember{Value: &api.AntiAffinityGroupMemberInstance{
		Value: api.AntiAffinityGroupMemberInstanceValue{Id: i.id, Name: api.Name(i.name), RunState: i.state},
	}}
}

func (g groups) listMembers(c *call) (int, any, error) {
	p, err := c.paging()
	if err != nil {
		return 0, nil, err
	}

	found, err := g.find(c, false)
	if err != nil {
		return 0, nil, err
	}

	return listed(p, c.instances.where(func(i *instance) bool { return found.has(i.id) }), memberView)
}

// member is the group and the instance of the path.
func (g groups) member(c *call, changing bool) (*group, *instance, error) {
	found, err := g.find(c, changing)
	if err != nil {
		return nil, nil, err
	}

	i, err := within(&c.instances, &project{meta{id: found.scope}}, c.path("instance"))

	return found, i, err
}

func notMember(i *instance) error {
	return notFoundID("instance", i.id)
}

func (g groups) viewMember(c *call) (int, any, error) {
	found, i, err := g.member(c, false)

	switch {
	case err != nil:
		return 0, nil, err
	case !found.has(i.id):
		return 0, nil, notMember(i)
	}

	return http.StatusOK, memberView(i), nil
}

func (g groups) addMember(c *call) (int, any, error) {
	found, i, err := g.member(c, true)

	switch {
	case err != nil:
		return 0, nil, err
	case found.has(i.id):
		return 0, nil, alreadyExists(g.of(c).noun+"-member", i.id)
	case i.active():
		return 0, nil, invalidRequest("Instance cannot be added to %s group in state: %s", g.of(c).noun[:len(g.of(c).noun)-len("-group")], i.state)
	case len(found.members) >= maxMembers:
		return 0, nil, forbiddenMember(found)
	case len(g.of(c).where(func(g *group) bool { return g.has(i.id) })) >= maxGroups:
		return 0, nil, invalidRequest("An instance may not be in more than %d groups", maxGroups)
	}

	found.members = append(found.members, i.id)

	return http.StatusCreated, memberView(i), nil
}

func (g groups) dropMember(c *call) (int, any, error) {
	found, i, err := g.member(c, true)

	switch {
	case err != nil:
		return 0, nil, err
	case !found.has(i.id):
		return 0, nil, notMember(i)
	}

	found.leave(i.id)

	return http.StatusNoContent, nil, nil
}

func (g groups) listOfInstance(c *call) (int, any, error) {
	p, err := c.paging()
	if err != nil {
		return 0, nil, err
	}

	i, err := c.instanceOf(false)
	if err != nil {
		return 0, nil, err
	}

	return listed(p, g.of(c).where(func(g *group) bool { return g.has(i.id) }), (*group).view)
}
