package lifecycle

import (
	"context"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// register tells Omni of the provider: its name and the schema of its class data. It tries again for as long as Omni is out of
// reach, and gives up when Omni refuses.
func (p *Provider) register(ctx context.Context) error {
	want := infra.NewProviderStatus(p.cfg.ID)
	spec := want.TypedSpec().Value
	spec.Name, spec.Description, spec.Icon, spec.Schema = p.cfg.Name, p.cfg.Description, p.cfg.Icon, p.cfg.Schema

	return retry(ctx, p.log, "register with Omni", p.cfg.CallTimeout, func(ctx context.Context) error {
		// COSI's client takes every refusal of a write for an owner conflict, so the first call is a read.
		res, err := p.st.Get(ctx, want.Metadata())

		switch {
		case state.IsNotFoundError(err):
			return p.write(ctx, func(ctx context.Context) error { return p.st.Create(ctx, want.DeepCopy()) })
		case err != nil:
			return err
		}

		want := want.DeepCopy()
		*want.Metadata() = res.Metadata().Copy()

		if resource.Equal(res, want) {
			return nil
		}

		return p.write(ctx, func(ctx context.Context) error {
			return p.st.Update(ctx, want, state.WithUpdateOwner(res.Metadata().Owner()))
		})
	})
}

// retry runs f until it succeeds, ctx ends, or Omni refuses for good.
func retry(ctx context.Context, log *zap.Logger, what string, timeout time.Duration, f func(context.Context) error) error {
	pause := backoff{first: time.Second, most: 30 * time.Second}

	for tries := 0; ; tries++ {
		_, err := call(ctx, timeout, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
		if err == nil {
			return nil
		}

		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		switch status.Code(err) { //nolint:exhaustive // only what waiting cannot mend
		case codes.Unauthenticated:
			return fmt.Errorf("%s: Omni does not know the service account key, or it has expired; make one with `omnictl infraprovider create` or renew it with `omnictl infraprovider renewkey`: %w", what, err)
		case codes.PermissionDenied, codes.InvalidArgument, codes.Unimplemented:
			return fmt.Errorf("%s: Omni refuses; is the key that of this provider id?: %w", what, err)
		}

		wait := pause.after(tries)
		log.Warn(what+" failed, trying again", zap.Error(err), zap.Duration("in", wait))
		sleep(ctx, wait)
	}
}
