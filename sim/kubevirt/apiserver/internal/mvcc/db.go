// Package mvcc keeps the objects of a simulated API server in memory as etcd keeps them: each change has a revision, old states
// can be read and watched from until they are compacted. Storage puts the interface of k8s.io/apiserver over it.
package mvcc

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// firstRevision is where a new database stands. Zero and one have meanings of their own in the protocol.
const firstRevision = 100

// DB is the database. Its methods may be called from several goroutines.
type DB struct {
	mu        sync.Mutex
	revision  int64
	compacted int64
	items     map[string]item
	changes   []change
	// ends are those of the keys that do not last.
	ends map[string]*end
	// changed is closed, and replaced, at each change.
	changed chan struct{}
	// cut is closed, and replaced, when the watches are cut.
	cut    chan struct{}
	closed bool
	// history is how many changes are kept.
	history int
	// told is told of each change, nil for nobody.
	told func(before, after []byte)
}

// item is a key's value as of a revision; data is nil for none. All copies of it have the same memo.
type item struct {
	data     []byte
	revision int64
	memo     *memo
}

func newItem(data []byte, revision int64) item {
	return item{data: data, revision: revision, memo: &memo{}}
}

// end is when a key's value of a revision goes, unless it has another one by then.
type end struct {
	*time.Timer
	revision int64
}

// remembered is for how many changes back the objects that values were read as are kept, beside their bytes.
const remembered = 100

// change is one step of the history: a key had the value before, zero for a creation, and has item now, without data for a deletion.
type change struct {
	key string
	item
	before item
	// last is what was before, with the revision of the change: the state in which a reader sees the object last.
	last item
}

// pair is what a list returns.
type pair struct {
	key string
	item
}

// New returns an empty database that remembers so many changes; older ones are compacted. told is called for each change, in their
// order, with the values of a key before and after it, nil for none; it must not call the database. It may be nil.
func New(history int, told func(before, after []byte)) *DB {
	return &DB{
		revision: firstRevision, items: map[string]item{}, ends: map[string]*end{}, changed: make(chan struct{}), cut: make(chan struct{}),
		history: history, told: told,
	}
}

// Revision returns the newest revision.
func (d *DB) Revision() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.revision
}

// Compacted returns the revision up to which the history is gone.
func (d *DB) Compacted() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.compacted
}

// Compact forgets the whole history. Watches and lists can start only from the present revision.
func (d *DB) Compact() {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.compacted, d.changes = d.revision, nil
}

// CutWatches ends all watches.
func (d *DB) CutWatches() {
	d.mu.Lock()
	defer d.mu.Unlock()

	close(d.cut)
	d.cut = make(chan struct{})
}

// Close ends all watches for good, and what does not last stays. Reads and writes go on.
func (d *DB) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()

	if !d.closed {
		d.closed = true
		close(d.cut)
	}

	for _, e := range d.ends {
		e.Stop()
	}

	clear(d.ends)
}

// cutting returns the channel that ends the watches that begin now.
func (d *DB) cutting() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.cut
}

// newest returns the newest revision, and a channel that is closed at the next change.
func (d *DB) newest() (int64, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.revision, d.changed
}

// get returns a key's value, the zero item if it has none.
func (d *DB) get(key string) item {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.items[key]
}

// put writes a key whose value is still that of the revision was, zero for none, and returns its new value. Else it returns false.
func (d *DB) put(key string, data []byte, was int64) (item, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()

	before := d.items[key]
	if before.revision != was {
		return item{}, false
	}

	d.revision++
	now := newItem(data, d.revision)
	d.items[key] = now
	d.addLocked(change{key: key, item: now, before: before, last: newItem(before.data, d.revision)})

	return now, true
}

// remove deletes a key whose value is still that of the revision was, and returns that with the revision of its end. Else it returns
// false.
func (d *DB) remove(key string, was int64) (item, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.items[key].revision != was {
		return item{}, false
	}

	return d.removeLocked(key), true
}

func (d *DB) removeLocked(key string) item {
	before := d.items[key]

	d.revision++
	delete(d.items, key)

	last := newItem(before.data, d.revision)
	d.addLocked(change{key: key, item: newItem(nil, d.revision), before: before, last: last})

	return last
}

// expire lets a key's value of a revision go after some time. What was said of an earlier value of it is forgotten.
func (d *DB) expire(key string, revision int64, after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.closed {
		return
	}

	if e := d.ends[key]; e != nil {
		if e.revision > revision {
			return
		}

		e.Stop()
	}

	d.ends[key] = &end{revision: revision, Timer: time.AfterFunc(after, func() {
		d.mu.Lock()
		defer d.mu.Unlock()

		if e := d.ends[key]; e == nil || e.revision != revision {
			return
		}

		delete(d.ends, key)

		if d.items[key].revision == revision {
			d.removeLocked(key)
		}
	})}
}

func (d *DB) addLocked(c change) {
	d.changes = append(d.changes, c)

	if old := len(d.changes) - 1 - remembered; old >= 0 {
		d.changes[old].memo.forget()
		d.changes[old].last.memo.forget()
	}

	if d.told != nil {
		d.told(c.before.data, c.data)
	}

	if len(d.changes) > d.history {
		drop := max(d.history/2, 1)
		d.compacted = d.changes[drop-1].revision
		d.changes = slices.Clone(d.changes[drop:])
	}

	close(d.changed)
	d.changed = make(chan struct{})
}

// list returns the values below a prefix, or of one key, as of a revision, zero for the newest, in the order of their keys. The
// revision has to be one of those that are kept; ok says whether it is.
func (d *DB) list(key string, prefix bool, at int64) (pairs []pair, revision int64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if at != 0 && (at < d.compacted || at > d.revision) {
		return nil, d.revision, false
	}

	within := func(k string) bool { return k == key || (prefix && strings.HasPrefix(k, key)) }
	state := map[string]item{}

	for k, i := range d.items {
		if within(k) {
			state[k] = i
		}
	}

	for i := len(d.changes) - 1; at != 0 && i >= 0 && d.changes[i].revision > at; i-- {
		if c := d.changes[i]; within(c.key) {
			state[c.key] = c.before
		}
	}

	for k, i := range state {
		if i.data != nil {
			pairs = append(pairs, pair{key: k, item: i})
		}
	}

	slices.SortFunc(pairs, func(a, b pair) int { return strings.Compare(a.key, b.key) })

	return pairs, d.revision, true
}

// since returns the changes after a revision; none, and a channel that is closed at the next one, when there are none. ok is false
// when some of them are forgotten.
func (d *DB) since(revision int64) (changes []change, next <-chan struct{}, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if revision < d.compacted {
		return nil, nil, false
	}

	first, _ := slices.BinarySearchFunc(d.changes, revision+1, func(c change, r int64) int { return int(c.revision - r) })

	return slices.Clone(d.changes[first:]), d.changed, true
}
