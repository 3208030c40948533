// Package ledger keeps the books of a simulated cloud: every call with its answer, every object that exists, and every secret
// that turned up where it does not belong. It also makes trouble that is the same in every cloud: the client's process dies at a
// chosen call, a reply is lost, the cloud is out of reach. All simulated clouds and the conformance suite import it.
package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxEntries bounds the history; older entries are dropped, but still counted.
const maxEntries = 20_000

// ErrDisconnected is the answer to a call over a session that was cut off. The call may or may not have had its effect.
var ErrDisconnected = errors.New("connection to the cloud is closed")

// Ledger is one cloud's books. Its methods may be called from several goroutines.
type Ledger struct {
	start    time.Time
	mu       sync.Mutex
	entries  []entry
	dropped  int
	calls    int
	objects  []Object
	secrets  []secret
	exposed  []string
	sessions []*Session
	crash    *crash
	// losing is the call whose reply gets lost, zero for none.
	losing int
	outage bool
	faults []*armedFault
	slow   sync.WaitGroup
	ops    map[string]int
	// changed is told of objects that come and go, nil for nobody.
	changed chan<- struct{}
	// look, if not nil, says what objects there are.
	look func() []Object
}

// Object is something that a client made in the cloud.
type Object struct {
	// Kind and ID name it within the cloud ("volume", "vol-3").
	Kind, ID string
	// Name is the one that users see, empty if it has none.
	Name string
	// Keep marks what may stay when its maker is done: an image that serves later machines, or what a test placed there.
	Keep bool
}

// String returns `volume vol-3 "name"`.
func (o Object) String() string {
	if o.Name == "" {
		return o.Kind + " " + o.ID
	}

	return fmt.Sprintf("%s %s %q", o.Kind, o.ID, o.Name)
}

type entry struct {
	at   time.Duration
	text string
}

// New returns empty books whose clock starts now.
func New() *Ledger { return &Ledger{start: time.Now(), ops: map[string]int{}} }

// Note adds a line to the history that is no call.
func (l *Ledger) Note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.addLocked(fmt.Sprintf(format, args...))
}

// Calls returns how many calls were begun so far, those over closed sessions excepted.
func (l *Ledger) Calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.calls
}

// CallsOf returns how many of them were of an operation.
func (l *Ledger) CallsOf(op string) int {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.ops[op]
}

// Made records that an object exists now.
func (l *Ledger) Made(o Object) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.objects = append(l.objects, o)
	l.changedLocked()
}

// Gone records that an object exists no more.
func (l *Ledger) Gone(kind, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.objects = slices.DeleteFunc(l.objects, func(o Object) bool { return o.Kind == kind && o.ID == id })
	l.changedLocked()
}

// Notify puts a token into c whenever an object is made or has gone, unless c is full. There is one such channel at a time; nil
// ends it.
func (l *Ledger) Notify(c chan<- struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.changed = c
}

func (l *Ledger) changedLocked() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// Look makes the ledger ask look what exists, in the place of Made and Gone: for the books of a cloud that is real. look is called
// from any goroutine, and returns the objects in an order of its own.
func (l *Ledger) Look(look func() []Object) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.look = look
}

// Objects returns what exists now, in the order in which it was made.
func (l *Ledger) Objects() []Object {
	l.mu.Lock()
	look, objects := l.look, slices.Clone(l.objects)
	l.mu.Unlock()

	if look != nil {
		return look()
	}

	return objects
}

// Leaks returns a line for each object that exists though it may not stay, for each secret that was exposed, and for each
// session that called when it was asked to be quiet. It is empty when all is well.
func (l *Ledger) Leaks() []string {
	objects := l.Objects()

	l.mu.Lock()
	defer l.mu.Unlock()

	var leaks []string

	for _, o := range objects {
		if !o.Keep {
			leaks = append(leaks, o.String()+" is left")
		}
	}

	return append(leaks, l.exposed...)
}

// History returns the entries as text, one a line, each with the time since New on this process's (real or fake) clock. In the
// place of a secret is its name.
func (l *Ledger) History() string {
	l.mu.Lock()
	defer l.mu.Unlock()

	var b strings.Builder

	if l.dropped > 0 {
		fmt.Fprintf(&b, "(%d older lines dropped)\n", l.dropped)
	}

	for _, e := range l.entries {
		fmt.Fprintf(&b, "%s %s\n", clock(e.at), e.text)
	}

	return l.redactLocked(b.String())
}

// addLocked appends a line and returns its number, which setLocked takes.
func (l *Ledger) addLocked(text string) int {
	if len(l.entries) == maxEntries {
		l.entries = slices.Delete(l.entries, 0, maxEntries/10)
		l.dropped += maxEntries / 10
	}

	l.entries = append(l.entries, entry{at: time.Since(l.start), text: text})
	l.scanLocked("the history", text)

	return l.dropped + len(l.entries) - 1
}

func (l *Ledger) setLocked(line int, text string) {
	if i := line - l.dropped; i >= 0 {
		l.entries[i].text = text
	}

	l.scanLocked("the history", text)
}

func clock(d time.Duration) string {
	d = d.Truncate(time.Millisecond)

	return fmt.Sprintf("%02d:%02d:%02d.%03d", int(d.Hours()), int(d.Minutes())%60, int(d.Seconds())%60, d.Milliseconds()%1000)
}
