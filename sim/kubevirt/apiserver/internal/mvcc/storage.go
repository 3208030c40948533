package mvcc

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// Storage is one resource's part of a database. It implements storage.Interface with the rules of the real one over etcd.
type Storage struct {
	db        *DB
	prefix    string
	codec     runtime.Codec
	newObject func() runtime.Object
	versioner storage.APIObjectVersioner
}

var _ storage.Interface = (*Storage)(nil)

// Storage returns the part below prefix ("/pods"), whose objects are kept as codec writes them.
func (d *DB) Storage(prefix string, codec runtime.Codec, newObject func() runtime.Object) *Storage {
	return &Storage{db: d, prefix: prefix, codec: codec, newObject: newObject}
}

// state is an object as it was read.
type state struct {
	object runtime.Object
	item   item
}

// Versioner returns that of the API objects.
func (s *Storage) Versioner() storage.Versioner { return s.versioner }

// read returns the object that a value is, with its revision. All readers have the same one.
func (s *Storage) read(i item) (*shared, error) {
	return i.memo.of(s, func() (runtime.Object, error) {
		object := s.newObject()
		if _, _, err := s.codec.Decode(i.data, nil, object); err != nil {
			return nil, storage.NewCorruptObjError("", err)
		}

		// Objects whose type says their kind have it only where they are written out: not as items of a list.
		if _, ok := object.(runtime.Unstructured); !ok {
			object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		}

		return object, s.versioner.UpdateObject(object, uint64(i.revision))
	})
}

// decode fills out, which has to be empty, with a copy of the object that a value is.
func (s *Storage) decode(i item, out runtime.Object) error {
	object, err := s.read(i)
	if err != nil {
		return err
	}

	object.copyTo(out)

	return nil
}

func (s *Storage) encode(object runtime.Object) ([]byte, error) {
	if err := s.versioner.PrepareObjectForStorage(object); err != nil {
		return nil, fmt.Errorf("prepare object for storage: %w", err)
	}

	return runtime.Encode(s.codec, object)
}

// Create implements storage.Interface.
func (s *Storage) Create(_ context.Context, key string, object, out runtime.Object, seconds uint64) error {
	key, err := storage.PrepareKey(s.prefix, key, false)
	if err != nil {
		return err
	}

	if version, err := s.versioner.ObjectResourceVersion(object); err == nil && version != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}

	data, err := s.encode(object)
	if err != nil {
		return err
	}

	made, ok := s.db.put(key, data, 0)
	if !ok {
		return storage.NewKeyExistsError(key, 0)
	}

	s.expire(key, made, seconds)

	if out == nil {
		return nil
	}

	return s.decode(made, out)
}

// expire lets a value go after so many seconds, if they are not zero.
func (s *Storage) expire(key string, written item, seconds uint64) {
	if seconds > 0 {
		s.db.expire(key, written.revision, time.Duration(seconds)*time.Second)
	}
}

// Get implements storage.Interface.
func (s *Storage) Get(ctx context.Context, key string, options storage.GetOptions, out runtime.Object) error {
	key, err := storage.PrepareKey(s.prefix, key, false)
	if err != nil {
		return err
	}

	if err := s.notOlder(ctx, options.ResourceVersion); err != nil {
		return err
	}

	found := s.db.get(key)

	switch {
	case found.data != nil:
		return s.decode(found, out)
	case options.IgnoreNotFound:
		return runtime.SetZeroValue(out)
	default:
		return storage.NewKeyNotFoundError(key, 0)
	}
}

// freshTime is how long a reader waits for a state that is not there yet. It is told to try again after retrySeconds.
const (
	freshTime    = 3 * time.Second
	retrySeconds = 1
)

// notOlder waits until the newest revision is not below the one that is asked for.
func (s *Storage) notOlder(ctx context.Context, version string) error {
	if version == "" {
		return nil
	}

	wanted, err := s.versioner.ParseResourceVersion(version)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}

	return s.fresh(ctx, wanted)
}

func (s *Storage) fresh(ctx context.Context, wanted uint64) error {
	var limit <-chan time.Time

	for {
		newest, changed := s.db.newest()
		if uint64(newest) >= wanted {
			return nil
		}

		if limit == nil {
			limit = time.After(freshTime)
		}

		select {
		case <-changed:
		case <-limit:
			return storage.NewTooLargeResourceVersionError(wanted, uint64(newest), retrySeconds)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// current reads a key, for a change.
func (s *Storage) current(key string, like runtime.Object, ignoreNotFound bool) (state, error) {
	object, err := emptyLike(like)
	if err != nil {
		return state{}, err
	}

	found := s.db.get(key)
	if found.data == nil {
		if !ignoreNotFound {
			return state{}, storage.NewKeyNotFoundError(key, 0)
		}

		return state{object: object}, runtime.SetZeroValue(object)
	}

	return state{object: object, item: found}, s.decode(found, object)
}

// emptyLike returns a new object of the same type, and of the same kind where the type does not say it.
func emptyLike(like runtime.Object) (runtime.Object, error) {
	v, err := conversion.EnforcePtr(like)
	if err != nil {
		return nil, fmt.Errorf("output object is no pointer: %w", err)
	}

	if u, ok := like.(runtime.Unstructured); ok {
		return u.NewEmptyInstance(), nil
	}

	object, ok := reflect.New(v.Type()).Interface().(runtime.Object)
	if !ok {
		return nil, fmt.Errorf("%T is no object", like)
	}

	return object, nil
}

// GuaranteedUpdate implements storage.Interface. It always begins with what is in the database.
func (s *Storage) GuaranteedUpdate(
	_ context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, _ runtime.Object,
) error {
	key, err := storage.PrepareKey(s.prefix, key, false)
	if err != nil {
		return err
	}

	for {
		now, err := s.current(key, destination, ignoreNotFound)
		if err != nil {
			return err
		}

		if err := preconditions.Check(key, now.object); err != nil {
			return err
		}

		updated, seconds, err := tryUpdate(now.object, storage.ResponseMeta{ResourceVersion: uint64(now.item.revision)})
		if err != nil {
			return err
		}

		if err := s.checkVersion(key, updated, now.item.revision); err != nil {
			return err
		}

		data, err := s.encode(updated)
		if err != nil {
			return err
		}

		if now.item.data != nil && bytes.Equal(data, now.item.data) {
			return s.decode(now.item, destination)
		}

		if written, ok := s.db.put(key, data, now.item.revision); ok {
			if seconds != nil {
				s.expire(key, written, *seconds)
			}

			return s.decode(written, destination)
		}
	}
}

// checkVersion refuses an update that names another version than the one it is made to.
func (s *Storage) checkVersion(key string, updated runtime.Object, revision int64) error {
	version, err := s.versioner.ObjectResourceVersion(updated)

	switch {
	case err != nil:
		return err
	case version != 0 && version != uint64(revision):
		return storage.NewResourceVersionConflictsError(key, int64(version))
	default:
		return nil
	}
}

// Delete implements storage.Interface. It always begins with what is in the database.
func (s *Storage) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, _ runtime.Object, _ storage.DeleteOptions,
) error {
	key, err := storage.PrepareKey(s.prefix, key, false)
	if err != nil {
		return err
	}

	for {
		now, err := s.current(key, out, false)
		if err != nil {
			return err
		}

		if err := preconditions.Check(key, now.object); err != nil {
			return err
		}

		if err := validate(ctx, now.object); err != nil {
			return err
		}

		if last, ok := s.db.remove(key, now.item.revision); ok {
			return s.decode(last, out)
		}
	}
}

// Stats implements storage.Interface.
func (s *Storage) Stats(context.Context) (storage.Stats, error) {
	pairs, _, _ := s.db.list(s.prefix, true, 0)

	return storage.Stats{ObjectCount: int64(len(pairs))}, nil
}

// ReadinessCheck implements storage.Interface.
func (s *Storage) ReadinessCheck() error { return nil }

// RequestWatchProgress implements storage.Interface: bookmarks come by themselves.
func (s *Storage) RequestWatchProgress(context.Context) error { return nil }

// GetCurrentResourceVersion implements storage.Interface.
func (s *Storage) GetCurrentResourceVersion(context.Context) (uint64, error) {
	return uint64(s.db.Revision()), nil
}

// EnableResourceSizeEstimation implements storage.Interface: sizes are not estimated.
func (s *Storage) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// CompactRevision implements storage.Interface.
func (s *Storage) CompactRevision() int64 { return s.db.Compacted() }
