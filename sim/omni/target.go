package omni

import (
	"github.com/cosi-project/runtime/api/v1alpha1"
)

// verb is what a call does to a resource.
type verb int

const (
	verbOther verb = iota
	verbRead
	verbCreate
	verbUpdate
	verbDestroy
)

// target is what a call is about.
type target struct {
	verb verb
	typ  string
	id   string
}

// targetOf returns what a request of the COSI state service is about; other requests have no target.
func targetOf(req any) target {
	switch r := req.(type) {
	case *v1alpha1.GetRequest:
		return target{verbRead, r.GetType(), r.GetId()}
	case *v1alpha1.ListRequest:
		return target{verbRead, r.GetType(), ""}
	case *v1alpha1.WatchRequest:
		return target{verbRead, r.GetType(), r.GetId()}
	case *v1alpha1.CreateRequest:
		md := r.GetResource().GetMetadata()

		return target{verbCreate, md.GetType(), md.GetId()}
	case *v1alpha1.UpdateRequest:
		md := r.GetNewResource().GetMetadata()

		return target{verbUpdate, md.GetType(), md.GetId()}
	case *v1alpha1.DestroyRequest:
		return target{verbDestroy, r.GetType(), r.GetId()}
	case *v1alpha1.TeardownRequest:
		return target{verbDestroy, r.GetType(), r.GetId()}
	case *v1alpha1.TeardownAndDestroyRequest:
		return target{verbDestroy, r.GetType(), r.GetId()}
	default:
		return target{}
	}
}
