package oxide

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// meta is what all resources have.
type meta struct {
	id, name, description string
	// scope is the id of what the name is unique in: a project, a VPC, an instance, a user; empty for the silo.
	scope             string
	created, modified time.Time
}

func (m *meta) base() *meta { return m }

type resource interface{ base() *meta }

// table has the resources of one kind, the oldest first.
type table[T resource] struct {
	// noun is the kind in "not found" and "already exists", title in the rules about ids and names.
	noun, title string
	// kind is that in the books, empty for what is not entered there.
	kind string
	rows []T
}

func (t *table[T]) byID(id string) (row T, ok bool) {
	for _, row := range t.rows {
		if row.base().id == id {
			return row, true
		}
	}

	return row, false
}

func (t *table[T]) named(scope, name string) (row T, ok bool) {
	for _, row := range t.rows {
		if b := row.base(); b.scope == scope && b.name == name {
			return row, true
		}
	}

	return row, false
}

// in returns those of a scope.
func (t *table[T]) in(scope string) []T {
	return t.where(func(row T) bool { return row.base().scope == scope })
}

func (t *table[T]) where(keep func(T) bool) []T {
	var rows []T

	for _, row := range t.rows {
		if keep(row) {
			rows = append(rows, row)
		}
	}

	return rows
}

func (t *table[T]) selector() string { return cmp.Or(t.title, t.noun) }

// free says whether the name may be given to a new resource, or to that one.
func (t *table[T]) free(scope, name, id string) error {
	if row, taken := t.named(scope, name); taken && row.base().id != id {
		return alreadyExists(t.noun, name)
	}

	return nil
}

// add enters a new resource, also in the books.
func (t *table[T]) add(l *ledger.Ledger, row T, keep bool) {
	t.rows = append(t.rows, row)

	if b := row.base(); t.kind != "" {
		l.Made(ledger.Object{Kind: t.kind, ID: b.id, Name: b.name, Keep: keep})
	}
}

// drop takes a resource away, also from the books.
func (t *table[T]) drop(l *ledger.Ledger, row T) {
	b := row.base()

	t.rows = slices.DeleteFunc(t.rows, func(r T) bool { return r.base() == b })

	if t.kind != "" {
		l.Gone(t.kind, b.id)
	}
}

func (r *Rack) newMeta(name, description, scope string) meta {
	now := time.Now().UTC()

	return meta{id: r.newID(), name: name, description: description, scope: scope, created: now, modified: now}
}

// keepLocked enters an object as one that may stay.
func (r *Rack) keepLocked(kind, id string) {
	for _, o := range r.ledger.Objects() {
		if o.Kind == kind && o.ID == id {
			r.ledger.Gone(kind, id)

			o.Keep = true
			r.ledger.Made(o)
		}
	}
}

func notFoundID(noun, id string) error { return notFound(fmt.Sprintf("%s with id %q", noun, id)) }

func notFoundName(noun, name string) error {
	return notFound(fmt.Sprintf("%s with name %q", noun, name))
}
