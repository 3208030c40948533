package apiserver

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// quotas refuses new objects, and claims that grow, that a ResourceQuota of their namespace has no room for. Counts of objects ("pods",
// "count/virtualmachines.kubevirt.io") and the storage of claims are modelled; the cpu and memory of pods are not. What is used is
// counted anew each time, and not written to the quota's status.
type quotas struct {
	server *Server
	// locks keep what is asked for in one namespace apart, from the check until it is stored. A few namespaces share one.
	locks [64]sync.Mutex
	seed  maphash.Seed
}

// creates returns a storage that keeps to the quotas. Nil quotas limit nothing.
func (q *quotas) creates(of schema.GroupVersionResource, c rest.Creater) rest.Creater {
	if q == nil {
		return c
	}

	return limitedCreater{Creater: c, quotas: q, of: of}
}

// updates returns a storage that keeps to the quotas, also with what an update creates. Nil quotas limit nothing.
func (q *quotas) updates(of schema.GroupVersionResource, p rest.Patcher) rest.Patcher {
	if q == nil {
		return p
	}

	return limitedUpdater{Patcher: p, quotas: q, of: of}
}

type limitedCreater struct {
	rest.Creater
	quotas *quotas
	of     schema.GroupVersionResource
}

// Create implements rest.Creater.
func (l limitedCreater) Create(
	ctx context.Context, object runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (runtime.Object, error) {
	r := reservation{quotas: l.quotas, of: l.of}
	defer r.end()

	return l.Creater.Create(ctx, object, r.creates(validate), options)
}

type limitedUpdater struct {
	rest.Patcher
	quotas *quotas
	of     schema.GroupVersionResource
}

// Update implements rest.Updater.
func (l limitedUpdater) Update(
	ctx context.Context, name string, object rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc,
	mayCreate bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	r := reservation{quotas: l.quotas, of: l.of}
	defer r.end()

	return l.Patcher.Update(ctx, name, object, r.creates(create), r.updates(update), mayCreate, options)
}

// reservation is one request's hold on the quotas of its namespace. It begins with the check, behind all other validation, which may
// come several times, and ends when the object is stored or is not to be.
type reservation struct {
	quotas *quotas
	of     schema.GroupVersionResource
	held   *sync.Mutex
}

func (r *reservation) end() {
	if r.held != nil {
		r.held.Unlock()
	}
}

func (r *reservation) creates(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, object runtime.Object) error {
		if err := validate(ctx, object); err != nil {
			return err
		}

		return r.check(ctx, object, usage(r.of.GroupResource(), object))
	}
}

func (r *reservation) updates(validate rest.ValidateObjectUpdateFunc) rest.ValidateObjectUpdateFunc {
	return func(ctx context.Context, object, old runtime.Object) error {
		if err := validate(ctx, object, old); err != nil {
			return err
		}

		if _, ok := object.(*core.PersistentVolumeClaim); !ok {
			return nil // It takes what it took.
		}

		asked := usage(r.of.GroupResource(), object)
		for name, had := range usage(r.of.GroupResource(), old) {
			more := asked[name].DeepCopy()
			more.Sub(had)
			asked[name] = more
		}

		return r.check(ctx, object, asked)
	}
}

// check refuses what an object asks for in addition, if that is more than nothing and a quota has no room for it.
func (r *reservation) check(ctx context.Context, object runtime.Object, asked core.ResourceList) error {
	namespace := request.NamespaceValue(ctx)

	for name, more := range asked {
		if more.Sign() <= 0 {
			delete(asked, name)
		}
	}

	if namespace == "" || len(asked) == 0 {
		return nil
	}

	ctx = request.WithNamespace(context.WithoutCancel(ctx), namespace)

	all, err := r.quotas.server.list(ctx, core.SchemeGroupVersion.WithResource("resourcequotas"))
	if err != nil || len(all) == 0 {
		return err
	}

	if r.held == nil {
		r.held = &r.quotas.locks[maphash.String(r.quotas.seed, namespace)%uint64(len(r.quotas.locks))]
		r.held.Lock()
	}

	used, err := r.used(ctx)
	if err != nil {
		return err
	}

	for _, quota := range all {
		if err := r.within(quota.(*core.ResourceQuota), object, used, asked); err != nil {
			return err
		}
	}

	return nil
}

// used returns what the objects of the kind take in the namespace of ctx.
func (r *reservation) used(ctx context.Context) (core.ResourceList, error) {
	existing, err := r.quotas.server.list(ctx, r.of)
	if err != nil {
		return nil, err
	}

	sum := core.ResourceList{}

	for _, o := range existing {
		for name, takes := range usage(r.of.GroupResource(), o) {
			total := sum[name]
			total.Add(takes)
			sum[name] = total
		}
	}

	return sum, nil
}

func (r *reservation) within(quota *core.ResourceQuota, object runtime.Object, has, asked core.ResourceList) error {
	var requested, used, limited []string

	for _, name := range slices.Sorted(func(yield func(core.ResourceName) bool) {
		for name := range asked {
			if !yield(name) {
				return
			}
		}
	}) {
		hard, ok := quota.Spec.Hard[name]
		if !ok {
			continue
		}

		wanted, takes := asked[name], has[name]

		total := takes.DeepCopy()
		total.Add(wanted)

		if total.Cmp(hard) > 0 {
			requested = append(requested, fmt.Sprintf("%s=%s", name, wanted.String()))
			used = append(used, fmt.Sprintf("%s=%s", name, takes.String()))
			limited = append(limited, fmt.Sprintf("%s=%s", name, hard.String()))
		}
	}

	if len(requested) == 0 {
		return nil
	}

	accessor, err := meta.Accessor(object)
	if err != nil {
		return apierrors.NewInternalError(err)
	}

	return apierrors.NewForbidden(r.of.GroupResource(), accessor.GetName(), fmt.Errorf(
		"exceeded quota: %s, requested: %s, used: %s, limited: %s",
		quota.Name, strings.Join(requested, ","), strings.Join(used, ","), strings.Join(limited, ","),
	))
}

// usage returns what an object takes of a quota.
func usage(of schema.GroupResource, o runtime.Object) core.ResourceList {
	one := *quantity.NewQuantity(1, quantity.DecimalSI)
	list := core.ResourceList{core.ResourceName("count/" + of.String()): one}

	if of.Group == "" {
		switch of.Resource {
		case "pods", "services", "secrets", "configmaps", "persistentvolumeclaims", "resourcequotas":
			list[core.ResourceName(of.Resource)] = one
		}
	}

	if claim, ok := o.(*core.PersistentVolumeClaim); ok {
		size := claim.Spec.Resources.Requests[core.ResourceStorage]
		list[core.ResourceRequestsStorage] = size

		if class := claim.Spec.StorageClassName; class != nil && *class != "" {
			ofClass := *class + ".storageclass.storage.k8s.io/"
			list[core.ResourceName(ofClass)+core.ResourceRequestsStorage] = size
			list[core.ResourceName(ofClass)+core.ResourcePersistentVolumeClaims] = one
		}
	}

	return list
}

// list returns the objects of the context's namespace.
func (s *Server) list(ctx context.Context, of schema.GroupVersionResource) ([]runtime.Object, error) {
	got, err := s.resource(of).main.(rest.Lister).List(ctx, &internalversion.ListOptions{})
	if err != nil {
		return nil, err
	}

	return meta.ExtractList(got)
}
