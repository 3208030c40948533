package apiserver

import (
	"context"
	"fmt"
	"strings"

	authorization "k8s.io/api/authorization/v1"
	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// review answers questions about what the caller may do. Nothing of it is kept.
type review struct {
	newObject func() runtime.Object
	answer    func(ctx context.Context, who user.Info, asked runtime.Object) error
}

// New implements rest.Storage.
func (r review) New() runtime.Object { return r.newObject() }

// Destroy implements rest.Storage.
func (r review) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (r review) NamespaceScoped() bool { return false }

// Create implements rest.Creater.
func (r review) Create(
	ctx context.Context, asked runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions,
) (runtime.Object, error) {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}

	if validate != nil {
		if err := validate(ctx, asked.DeepCopyObject()); err != nil {
			return nil, err
		}
	}

	return asked, r.answer(ctx, who, asked)
}

// addReviews adds the two kinds with which a client asks for its own rights.
func (s *Server) addReviews() error {
	for kind, r := range map[string]review{
		"SelfSubjectAccessReview": {newObject: object[authorization.SelfSubjectAccessReview], answer: s.reviewAccess},
		"SelfSubjectRulesReview":  {newObject: object[authorization.SelfSubjectRulesReview], answer: s.reviewRules},
	} {
		singular := strings.ToLower(kind)
		b := builtin{version: authorization.SchemeGroupVersion, kind: kind, singular: singular, plural: singular + "s", cluster: true}

		scope, err := builtinScope(s.rules, b, "", nil)
		if err != nil {
			return err
		}

		s.resources[b.resource()] = &resource{
			main: r, scope: scope,
			info: metav1.APIResource{Name: b.plural, SingularName: b.singular, Kind: kind, Verbs: metav1.Verbs{"create"}},
		}
	}

	return nil
}

func (s *Server) reviewAccess(ctx context.Context, who user.Info, asked runtime.Object) error {
	r, ok := asked.(*authorization.SelfSubjectAccessReview)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("not a SelfSubjectAccessReview: %T", asked))
	}

	a := authorizer.AttributesRecord{User: who}

	switch {
	case r.Spec.ResourceAttributes != nil:
		of := r.Spec.ResourceAttributes
		a.Verb, a.Namespace, a.APIGroup, a.APIVersion = of.Verb, of.Namespace, of.Group, of.Version
		a.Resource, a.Subresource, a.Name, a.ResourceRequest = of.Resource, of.Subresource, of.Name, true
	case r.Spec.NonResourceAttributes != nil:
		a.Verb, a.Path = r.Spec.NonResourceAttributes.Verb, r.Spec.NonResourceAttributes.Path
	}

	decision, reason, err := s.rules.Authorize(ctx, a)
	r.Status = authorization.SubjectAccessReviewStatus{Allowed: decision == authorizer.DecisionAllow, Reason: reason}

	return err
}

func (s *Server) reviewRules(_ context.Context, who user.Info, asked runtime.Object) error {
	r, ok := asked.(*authorization.SelfSubjectRulesReview)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("not a SelfSubjectRulesReview: %T", asked))
	}

	r.Status = authorization.SubjectRulesReviewStatus{ResourceRules: []authorization.ResourceRule{}, NonResourceRules: []authorization.NonResourceRule{}}

	u, _ := s.users.byName(who.GetName())

	all := append(append([]rbac.PolicyRule(nil), u.Rules...), u.NamespaceRules[r.Spec.Namespace]...)
	if u.Name != "" && u.unlimited() {
		all = append(all, rbac.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}})
	}

	for _, rule := range all {
		if len(rule.NonResourceURLs) > 0 {
			r.Status.NonResourceRules = append(r.Status.NonResourceRules, authorization.NonResourceRule{
				Verbs: rule.Verbs, NonResourceURLs: rule.NonResourceURLs,
			})
		}

		if len(rule.Resources) > 0 {
			r.Status.ResourceRules = append(r.Status.ResourceRules, authorization.ResourceRule{
				Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames,
			})
		}
	}

	return nil
}
