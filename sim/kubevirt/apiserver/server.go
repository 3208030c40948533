package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"net/http"
	"slices"
	"sync"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver/internal/mvcc"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// defaultHistory is how many changes watches can go back.
const defaultHistory = 10_000

// Options shape a server. The zero value has only the built-in kinds.
type Options struct {
	// Ledger keeps the books; nil makes new ones.
	Ledger *ledger.Ledger
	// Definitions are the kinds beside the built-in ones.
	Definitions []*apiextensions.CustomResourceDefinition
	// History is how many changes are kept for watches and continued lists; 10,000 if zero.
	History int
	// Latency is how long a call takes before it has its effect, by the op of the ledger ("create virtualmachines"); nil is no time.
	Latency func(op string) time.Duration
	// Object says what an object is in the books, and whether it is there at all; nil leaves objects out of the books. It must not call
	// the server.
	Object func(object *unstructured.Unstructured) (ledger.Object, bool)
}

// Server is a Kubernetes API server. Its methods may be called from several goroutines.
type Server struct {
	opts   Options
	ledger *ledger.Ledger
	db     *mvcc.DB

	users  *users
	rules  *rules
	hooks  *hooks
	quotas *quotas
	api    http.Handler

	ctx     context.Context // It is the life of the server, not of a call.
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu        sync.RWMutex
	closed    bool
	down      bool
	resources map[schema.GroupVersionResource]*resource
	groups    map[schema.GroupVersion]*extraGroup
}

// New starts a server. Close ends it.
func New(opts Options) (*Server, error) {
	if opts.Ledger == nil {
		opts.Ledger = ledger.New()
	}

	if opts.History == 0 {
		opts.History = defaultHistory
	}

	ctx, cancel := context.WithCancel(context.Background())

	s := &Server{
		opts: opts, ledger: opts.Ledger, db: mvcc.New(opts.History, inBooks(opts)), ctx: ctx, cancel: cancel,
		resources: map[schema.GroupVersionResource]*resource{}, groups: map[schema.GroupVersion]*extraGroup{},
	}
	s.users, s.rules, s.hooks, s.quotas = newUsers(), &rules{server: s}, &hooks{server: s}, &quotas{server: s, seed: maphash.MakeSeed()}
	s.api = s.chain()

	if err := s.addKinds(); err != nil {
		return nil, err
	}

	for _, name := range []string{"default", "kube-system"} {
		if err := s.createNamespace(name); err != nil {
			return nil, fmt.Errorf("create namespace %q: %w", name, err)
		}
	}

	return s, nil
}

func (s *Server) addKinds() error {
	for _, b := range builtins {
		r, err := newBuiltin(s.db, s.rules, b)
		if err != nil {
			return err
		}

		s.resources[b.resource()] = r
	}

	if err := s.addReviews(); err != nil {
		return err
	}

	for _, d := range s.opts.Definitions {
		versions, err := digests.of(d)
		if err != nil {
			return err
		}

		for _, c := range versions {
			r, err := newCustom(s.db, s.rules, c)
			if err != nil {
				return err
			}

			s.resources[c.resource()] = r
		}
	}

	return nil
}

// Ledger returns the server's books.
func (s *Server) Ledger() *ledger.Ledger { return s.ledger }

// Close ends all requests and watches, waits until nothing of the server runs any more, and refuses further requests.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()

	s.cancel()
	s.db.Close()
	s.running.Wait()
}

// Admin returns the configuration of an administrator's client inside this process. Its calls are not in the books and suffer no
// faults: it is for simulated controllers and for tests.
func (s *Server) Admin() *rest.Config {
	return &rest.Config{Host: host, Transport: s.Transport(nil), BearerToken: adminToken, QPS: -1}
}

// Client returns the configuration of a client inside this process with a session, and a user's token, which Server.SetUser made.
func (s *Server) Client(session *ledger.Session, token string) *rest.Config {
	return &rest.Config{Host: host, Transport: s.Transport(session), BearerToken: token}
}

// Revision returns the resourceVersion of the newest change.
func (s *Server) Revision() int64 { return s.db.Revision() }

// Compact forgets the history: a watch or a continued list from before gets 410 Expired.
func (s *Server) Compact() { s.db.Compact() }

// CutWatches ends all watches that are open, as a server or a load balancer may do at any time. No event is lost by it.
func (s *Server) CutWatches() { s.db.CutWatches() }

// Stop makes the server refuse connections, and ends its watches, until Start. What it keeps stays.
func (s *Server) Stop() {
	s.mu.Lock()
	s.down = true
	s.mu.Unlock()

	s.db.CutWatches()
}

// Start ends Stop.
func (s *Server) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.down = false
}

// begin counts a request that starts now, unless the server is closed or stopped.
func (s *Server) begin() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()

	if s.closed || s.down {
		return false
	}

	s.running.Add(1)

	return true
}

func (s *Server) resource(of schema.GroupVersionResource) *resource {
	s.mu.RLock()
	defer s.mu.RUnlock()

	return s.resources[of]
}

// versions returns the versions of a group that are served, the preferred one first.
func (s *Server) versions(group string) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()

	found := map[string]bool{}

	for of := range s.resources {
		if of.Group == group {
			found[of.Version] = true
		}
	}

	for of := range s.groups {
		if of.Group == group {
			found[of.Version] = true
		}
	}

	return slices.SortedFunc(slices.Values(sortedKeys(found)), preferVersion)
}

// inBooks returns what tells the books of objects that come and go, nil if they are not to know.
func inBooks(opts Options) func(before, after []byte) {
	if opts.Object == nil {
		return nil
	}

	object := func(data []byte) (o ledger.Object, ok bool) {
		var u unstructured.Unstructured
		if data == nil || json.Unmarshal(data, &u.Object) != nil {
			return ledger.Object{}, false
		}

		return opts.Object(&u)
	}

	return func(before, after []byte) {
		was, had := object(before)
		is, has := object(after)

		if had && (!has || is != was) {
			opts.Ledger.Gone(was.Kind, was.ID)
		}

		if has && (!had || is != was) {
			opts.Ledger.Made(is)
		}
	}
}
