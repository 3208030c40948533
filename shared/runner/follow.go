package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ConfigAnnotation is the annotation on a provider's InfraProvider resource that holds its configuration: one JSON object of the
// form of the configuration file. The provider sees the resource once it carries the label omni.sidero.dev/infra-provider-id
// with the provider's id.
const ConfigAnnotation = "omni-infra.dev/config"

const (
	// lookInterval is the pause between two looks at the annotation when nothing is told of it: Omni does not tell a provider
	// that its resource has lost the label.
	lookInterval = time.Minute
	// lookTimeout limits one look.
	lookTimeout = 30 * time.Second
	// firstPause and mostPause are the pauses before a watch is opened again.
	firstPause, mostPause = time.Second, 30 * time.Second
)

// follower follows the configuration that Omni holds for a provider.
type follower struct {
	st         state.State
	providerID string
	log        *zap.Logger
	// texts takes the annotation's text, at the start and whenever it has changed; it is empty when there is none.
	texts chan<- string

	told bool
	last string
}

// run follows until ctx ends. Every watch that breaks is opened again, with a look at what is there then.
func (f *follower) run(ctx context.Context) {
	pause := firstPause

	for ctx.Err() == nil {
		started := time.Now()

		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}

		if time.Since(started) > mostPause {
			pause = firstPause
		}

		f.log.Warn("configuration in Omni is looked at again", zap.Error(err), zap.Duration("in", pause))

		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}

		pause = min(2*pause, mostPause)
	}
}

func (f *follower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	// The start does not hang on a watch.
	if !f.told {
		if err := f.look(ctx); err != nil {
			return err
		}
	}

	// What changes between a look and the watch is seen since another look follows. An event only says that there is news.
	events := make(chan state.Event)
	if err := f.st.Watch(ctx, infra.NewProvider(f.providerID).Metadata(), events); err != nil {
		return fmt.Errorf("watch infra provider %q: %w", f.providerID, err)
	}

	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()

	for {
		if err := f.look(ctx); err != nil {
			return err
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		case event := <-events:
			if event.Type == state.Errored {
				return fmt.Errorf("watch infra provider %q: %w", f.providerID, event.Error)
			}
		}
	}
}

// look reads the annotation and tells of it if it has changed.
func (f *follower) look(ctx context.Context) error {
	text, err := f.read(ctx)
	if err != nil || f.told && text == f.last {
		return err
	}

	select {
	case <-ctx.Done():
		return ctx.Err()
	case f.texts <- text:
		f.told, f.last = true, text

		return nil
	}
}

func (f *follower) read(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()

	res, err := f.st.Get(ctx, infra.NewProvider(f.providerID).Metadata())

	switch {
	case state.IsNotFoundError(err):
		return "", nil
	case !f.told && refused(err):
		// The engine finds that out as well, and says it better.
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read infra provider %q: %w", f.providerID, err)
	default:
		return res.Metadata().Annotations().Raw()[ConfigAnnotation], nil
	}
}

func refused(err error) bool {
	code := status.Code(err)

	return code == codes.Unauthenticated || code == codes.PermissionDenied
}
