package apiserver

import (
	"context"
	"slices"
	"strings"

	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// rules decides who may do what, from the rules of the users. Roles and bindings that clients make are kept, but grant nothing.
type rules struct{ server *Server }

// public is what everybody may read.
var public = []string{"/healthz", "/livez", "/readyz", "/version", "/version/"}

// discoverable is what everybody who has a name may read.
var discoverable = []string{"/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"}

// Authorize implements authorizer.Authorizer.
func (r *rules) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if r.allows(a) {
		return authorizer.DecisionAllow, "", nil
	}

	return authorizer.DecisionNoOpinion, "", nil
}

func (r *rules) allows(a authorizer.Attributes) bool {
	who := a.GetUser()
	if who == nil {
		return false
	}

	named := slices.Contains(who.GetGroups(), user.AllAuthenticated)

	switch {
	case slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup):
		return true
	case !a.IsResourceRequest() && a.GetVerb() == "get" && (pathMatches(public, a.GetPath()) || named && pathMatches(discoverable, a.GetPath())):
		return true
	case named && a.GetAPIGroup() == "authorization.k8s.io" && strings.HasPrefix(a.GetResource(), "selfsubject") && a.GetVerb() == "create":
		return true
	}

	u, ok := r.server.users.byName(who.GetName())

	switch {
	case !ok:
		return false
	case u.unlimited():
		return true
	}

	fits := func(rule rbac.PolicyRule) bool { return ruleAllows(rule, a) }

	return slices.ContainsFunc(u.Rules, fits) ||
		a.GetNamespace() != "" && slices.ContainsFunc(u.NamespaceRules[a.GetNamespace()], fits)
}

func ruleAllows(rule rbac.PolicyRule, a authorizer.Attributes) bool {
	has := func(list []string, value string) bool {
		return slices.Contains(list, value) || slices.Contains(list, "*")
	}

	if !has(rule.Verbs, a.GetVerb()) {
		return false
	}

	if !a.IsResourceRequest() {
		return pathMatches(rule.NonResourceURLs, a.GetPath())
	}

	resource := a.GetResource()
	if a.GetSubresource() != "" {
		resource += "/" + a.GetSubresource()
	}

	return has(rule.APIGroups, a.GetAPIGroup()) &&
		(has(rule.Resources, resource) || a.GetSubresource() != "" && slices.Contains(rule.Resources, "*/"+a.GetSubresource())) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.GetName()))
}

func pathMatches(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		prefix, wild := strings.CutSuffix(pattern, "*")

		return pattern == path || wild && strings.HasPrefix(path, prefix)
	})
}
