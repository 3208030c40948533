package oxide

import (
	"encoding/hex"
	"fmt"
	"net/http"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

// Role is what a user may do.
type Role int

// The roles, each of which includes those before it.
const (
	// None sees nothing.
	None Role = iota
	// Viewer sees everything and changes nothing.
	Viewer
	// Collaborator also makes, changes and deletes what is in projects, and makes projects.
	Collaborator
	// Admin may do everything.
	Admin
)

type silo struct{ meta }

type user struct {
	meta
	token string
	// role is that in the silo, which all projects inherit; roles are those in projects, by id.
	role  Role
	roles map[string]Role
}

// in returns the user's role in a project.
func (u *user) in(project string) Role { return max(u.role, u.roles[project]) }

func (r *Rack) newToken() string {
	var bytes [20]byte

	_, _ = r.random.Read(bytes[:]) // It never fails.

	return "oxide-token-" + hex.EncodeToString(bytes[:])
}

// Token returns the bearer token of the silo's administrator.
func (r *Rack) Token() string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.users[0].token
}

// RotateToken gives the silo's administrator a new token; the old one holds no longer.
func (r *Rack) RotateToken() string {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.users[0].token = r.newToken()

	return r.users[0].token
}

// AddUser makes a user with a role in the silo and others in projects by their names, and returns its token.
func (r *Rack) AddUser(name string, role Role, projects map[string]Role) (token string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	u := &user{meta: r.newMeta(name, "", ""), token: r.newToken(), role: role, roles: map[string]Role{}}

	for project, role := range projects {
		p, ok := r.projects.named("", project)
		if !ok {
			return "", fmt.Errorf("add user %q: no project %q", name, project)
		}

		u.roles[p.id] = role
	}

	r.users = append(r.users, u)

	return u.token, nil
}

func (c *call) ping() (int, any, error) {
	return http.StatusOK, api.Ping{Status: api.PingStatusOk}, nil
}

func (c *call) me() (int, any, error) {
	u := c.user

	return http.StatusOK, api.CurrentUser{
		DisplayName: u.name, Id: u.id, SiloId: c.silo.id, SiloName: api.Name(c.silo.name),
		FleetViewer: new(false), SiloAdmin: new(u.role == Admin), TimeCreated: took(u.created), TimeModified: took(u.modified),
	}, nil
}
