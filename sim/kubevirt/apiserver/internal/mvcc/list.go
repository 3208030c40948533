package mvcc

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// What the real server says of a state that is compacted.
const (
	listExpired     = "The resourceVersion for the provided list is too old."
	watchExpired    = "The resourceVersion for the provided watch is too old."
	continueExpired = "The provided continue parameter is too old to display a consistent list result. You can start a new list " +
		"without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. " +
		"Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted " +
		"between the time the first chunk was returned and now may show up in the list."
)

// GetList implements storage.Interface.
func (s *Storage) GetList(ctx context.Context, key string, options storage.ListOptions, listObject runtime.Object) error {
	prefix, err := storage.PrepareKey(s.prefix, key, options.Recursive)
	if err != nil {
		return err
	}

	items, err := meta.GetItemsPtr(listObject)
	if err != nil {
		return err
	}

	out, err := conversion.EnforcePtr(items)
	if err != nil || out.Kind() != reflect.Slice {
		return fmt.Errorf("items of %T are no slice: %w", listObject, err)
	}

	at, from, err := storage.ValidateListOptions(prefix, s.versioner, options)
	if err != nil {
		return err
	}

	pairs, revision, err := s.pairs(ctx, prefix, options, at, from)
	if err != nil {
		return err
	}

	if at == 0 {
		at = revision
	}

	last, evaluated := "", 0

	for _, p := range pairs {
		if options.Predicate.Limit > 0 && int64(out.Len()) >= options.Predicate.Limit {
			break
		}

		last, evaluated = p.key, evaluated+1

		found, err := s.read(p.item)
		if err != nil {
			return err
		}

		if matched, err := options.Predicate.Matches(found.object); err == nil && matched {
			out.Set(reflect.Append(out, reflect.ValueOf(found.GetObject()).Elem()))
		}
	}

	if out.IsNil() {
		out.Set(reflect.MakeSlice(out.Type(), 0, 0))
	}

	token, remaining, err := storage.PrepareContinueToken(last, prefix, at, int64(len(pairs)), evaluated < len(pairs), options)
	if err != nil {
		return err
	}

	return s.versioner.UpdateList(listObject, uint64(at), token, remaining)
}

// pairs returns what is to be listed, from the key where the list goes on.
func (s *Storage) pairs(ctx context.Context, prefix string, options storage.ListOptions, at int64, from string) ([]pair, int64, error) {
	if err := s.notOlder(ctx, options.ResourceVersion); err != nil {
		return nil, 0, err
	}

	if err := s.fresh(ctx, uint64(max(at, 0))); err != nil {
		return nil, 0, err
	}

	pairs, revision, ok := s.db.list(prefix, options.Recursive, at)

	switch {
	case !ok && options.Predicate.Continue != "":
		return nil, 0, expiredToken(from, prefix)
	case !ok:
		return nil, 0, apierrors.NewResourceExpired(listExpired)
	}

	first := 0
	for first < len(pairs) && pairs[first].key < from {
		first++
	}

	return pairs[first:], revision, nil
}

// expiredToken is the answer to a continue token whose state is forgotten. It has another one, which goes on with the present.
func expiredToken(from, prefix string) error {
	token, err := storage.EncodeContinue(from, prefix, -1)
	if err != nil {
		return errors.Join(apierrors.NewResourceExpired(continueExpired), err)
	}

	expired := apierrors.NewResourceExpired(continueExpired)
	expired.ErrStatus.Continue = token

	return expired
}
