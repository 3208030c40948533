package apiserver

import (
	"strings"
	"sync"

	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// adminToken is that of Server.Admin, who may do everything.
const adminToken = "administrator of the simulation"

// User is somebody who may call the server.
type User struct {
	// Name is the one in texts ("system:serviceaccount:omni:provider"); Groups are those beside system:authenticated.
	Name   string
	Groups []string
	// Token is the bearer token.
	Token string
	// Rules are what the user may do in all namespaces, and in one, by its name. Who has none at all may do everything.
	Rules          []rbac.PolicyRule
	NamespaceRules map[string][]rbac.PolicyRule
}

func (u User) unlimited() bool { return u.Rules == nil && u.NamespaceRules == nil }

type users struct {
	mu  sync.RWMutex
	all map[string]User
}

func newUsers() *users {
	return &users{all: map[string]User{"system:admin": {Name: "system:admin", Groups: []string{user.SystemPrivilegedGroup}, Token: adminToken}}}
}

// SetUser adds a user, or replaces the one of the same name. A token that is replaced is refused from then on.
func (s *Server) SetUser(u User) {
	s.users.mu.Lock()
	defer s.users.mu.Unlock()

	s.users.all[u.Name] = u
}

// RemoveUser makes a user's token worthless: calls get 401 Unauthorized.
func (s *Server) RemoveUser(name string) {
	s.users.mu.Lock()
	defer s.users.mu.Unlock()

	delete(s.users.all, name)
}

// RotateToken gives a user another token. It returns false if there is no such user.
func (s *Server) RotateToken(name, token string) bool {
	s.users.mu.Lock()
	defer s.users.mu.Unlock()

	u, ok := s.users.all[name]
	if ok {
		u.Token = token
		s.users.all[name] = u
	}

	return ok
}

// byHeader returns the user whose bearer token is in an Authorization header.
func (u *users) byHeader(header string) (user.Info, bool) {
	scheme, token, _ := strings.Cut(strings.TrimSpace(header), " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return nil, false
	}

	u.mu.RLock()
	defer u.mu.RUnlock()

	for _, one := range u.all {
		if one.Token == token {
			return &user.DefaultInfo{Name: one.Name, UID: one.Name, Groups: append([]string{user.AllAuthenticated}, one.Groups...)}, true
		}
	}

	return nil, false
}

func (u *users) byName(name string) (User, bool) {
	u.mu.RLock()
	defer u.mu.RUnlock()

	found, ok := u.all[name]

	return found, ok
}
