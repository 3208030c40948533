package oxide

import (
	"net/http"
	"slices"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

// sshKey is in the profile of a user.
type sshKey struct {
	meta
	public string
}

func (k *sshKey) view() api.SshKey {
	return api.SshKey{
		Id: k.id, Name: api.Name(k.name), Description: k.description, PublicKey: k.public, SiloUserId: k.scope,
		TimeCreated: took(k.created), TimeModified: took(k.modified),
	}
}

func (c *call) listKeys() (int, any, error) {
	p, err := c.paging()
	if err != nil {
		return 0, nil, err
	}

	return listed(p, c.sshKeys.in(c.user.id), (*sshKey).view)
}

func (c *call) keyOf() (*sshKey, error) {
	return within(&c.sshKeys, &project{meta{id: c.user.id}}, c.path("ssh_key"))
}

func (c *call) viewKey() (int, any, error) {
	k, err := c.keyOf()
	if err != nil {
		return 0, nil, err
	}

	return http.StatusOK, k.view(), nil
}

func (c *call) createKey() (int, any, error) {
	body, err := decode[api.SshKeyCreate](c)
	if err != nil {
		return 0, nil, err
	}

	if err := checkName(string(body.Name)); err != nil {
		return 0, nil, err
	}

	if err := c.sshKeys.free(c.user.id, string(body.Name), ""); err != nil {
		return 0, nil, err
	}

	k := &sshKey{meta: c.newMeta(string(body.Name), body.Description, c.user.id), public: body.PublicKey}
	c.sshKeys.add(c.ledger, k, false)

	return http.StatusCreated, k.view(), nil
}

func (c *call) deleteKey() (int, any, error) {
	k, err := c.keyOf()
	if err != nil {
		return 0, nil, err
	}

	c.sshKeys.drop(c.ledger, k)

	return http.StatusNoContent, nil, nil
}

func (c *call) listInstanceKeys() (int, any, error) {
	p, err := c.paging()
	if err != nil {
		return 0, nil, err
	}

	i, err := c.instanceOf(false)
	if err != nil {
		return 0, nil, err
	}

	return listed(p, c.sshKeys.where(func(k *sshKey) bool { return slices.Contains(i.keys, k.id) }), (*sshKey).view)
}
