package apiserver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// withinQuota refuses a new object that a ResourceQuota of its namespace has no room for. Counts of objects ("pods",
// "count/virtualmachines.kubevirt.io") and the storage of claims are modelled; the cpu and memory of pods are not. What is used is
// counted anew each time, and not written to the quota's status.
func (h *hooks) withinQuota(ctx context.Context, a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" || a.GetNamespace() == "" {
		return nil
	}

	ctx = request.WithNamespace(context.WithoutCancel(ctx), a.GetNamespace())

	quotas, err := h.server.list(ctx, core.SchemeGroupVersion.WithResource("resourcequotas"))
	if err != nil || len(quotas) == 0 {
		return err
	}

	var existing []runtime.Object

	asked := usage(a, a.GetObject())
	for _, q := range quotas {
		quota := q.(*core.ResourceQuota)

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

			if existing == nil {
				if existing, err = h.server.list(ctx, a.GetResource()); err != nil {
					return err
				}
			}

			var sum quantity.Quantity

			for _, o := range existing {
				sum.Add(usage(a, o)[name])
			}

			total := sum.DeepCopy()
			total.Add(asked[name])

			if total.Cmp(hard) > 0 {
				wanted := asked[name]
				requested = append(requested, fmt.Sprintf("%s=%s", name, wanted.String()))
				used = append(used, fmt.Sprintf("%s=%s", name, sum.String()))
				limited = append(limited, fmt.Sprintf("%s=%s", name, hard.String()))
			}
		}

		if len(requested) > 0 {
			return apierrors.NewForbidden(a.GetResource().GroupResource(), nameOf(a), fmt.Errorf(
				"exceeded quota: %s, requested: %s, used: %s, limited: %s",
				quota.Name, strings.Join(requested, ","), strings.Join(used, ","), strings.Join(limited, ","),
			))
		}
	}

	return nil
}

// nameOf returns the name of what is created, also where the server generated it.
func nameOf(a admission.Attributes) string {
	if accessor, err := meta.Accessor(a.GetObject()); err == nil && a.GetName() == "" {
		return accessor.GetName()
	}

	return a.GetName()
}

// usage returns what an object takes of a quota.
func usage(a admission.Attributes, o runtime.Object) core.ResourceList {
	of, one := a.GetResource().GroupResource(), quantity.MustParse("1")
	list := core.ResourceList{core.ResourceName("count/" + of.String()): one}

	if of.Group == "" {
		switch of.Resource {
		case "pods", "services", "secrets", "configmaps", "persistentvolumeclaims", "resourcequotas":
			list[core.ResourceName(of.Resource)] = one
		}
	}

	if claim, ok := o.(*core.PersistentVolumeClaim); ok {
		list[core.ResourceRequestsStorage] = claim.Spec.Resources.Requests[core.ResourceStorage]
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
