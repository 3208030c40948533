package runner

import (
	"context"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
)

// healthTTL is how long an answer about health is good for.
const healthTTL = 10 * time.Second

type healthHandler struct {
	check func(context.Context) error
	log   *zap.Logger

	mu   sync.Mutex
	last time.Time
	err  error
}

// ServeHTTP answers 200 "ok" or 503 "unhealthy".
func (h *healthHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if time.Since(h.last) > healthTTL {
		// The answer is for everybody who asks, so it does not end with the one who asked first.
		h.err = h.check(context.WithoutCancel(r.Context()))
		h.last = time.Now()

		if h.err != nil {
			h.log.Warn("provider is unhealthy", zap.Error(h.err))
		}
	}

	if h.err != nil {
		http.Error(w, "unhealthy", http.StatusServiceUnavailable)

		return
	}

	w.Write([]byte("ok\n")) //nolint:errcheck,gosec // the reader is gone
}
