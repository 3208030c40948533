package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/siderolabs/omni/client/pkg/client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	provider "github.com/omni-infra/omni-infra-providers/providers/memory"
	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
	"github.com/omni-infra/omni-infra-providers/tools/story"
)

const providerID = "memory"

type config struct {
	out      io.Writer
	machines int
	plain    bool
	// log is a file's name, empty for no log.
	log string
}

// timing makes the simulated Omni notice within moments what the real one notices within minutes.
var timing = omni.Timing{
	PeerPoll: 100 * time.Millisecond, PeerGrace: time.Millisecond, PeerDown: time.Millisecond, ResetTimeout: time.Second,
}

// run plays the demonstration. It returns an error if the story did not come true or something is left behind.
func run(ctx context.Context, cfg config) error {
	logger, finish, err := cfg.logger()
	if err != nil {
		return err
	}

	server, err := omni.New(omni.Options{Timing: timing})
	if err != nil {
		return err
	}

	site := newSite(server)
	defer site.cloud.Close()

	// What runs in the background: its first error ends the story, and its end is waited for.
	group, ctx := errgroup.WithContext(ctx)
	running, stop := context.WithCancel(ctx)

	defer func() {
		stop()
		_ = group.Wait()
		finish(site.cloud)
	}()

	group.Go(func() error { return server.Run(running) })

	calls, err := startProvider(running, group, server, site, logger)
	if err != nil {
		return err
	}

	admin, err := server.Client(server.AdminKey())
	if err != nil {
		return err
	}
	defer admin.Close()

	screen := story.NewScreen(cfg.out, cfg.plain)

	if err := story.Tell(ctx, story.Config{
		Omni: admin.Omni().State(), Cloud: site, Provider: providerID, Set: "demo", Machines: cfg.machines,
		Patience: time.Minute, Screen: screen,
	}); err != nil {
		return err
	}

	screen.Summary(
		fmt.Sprintf("the provider made %d calls to Omni and %d to its cloud", calls.Load(), site.cloud.Ledger().Calls()),
		"kept for the next machines: "+strings.Join(names(site.cloud), ", "),
	)

	return errors.Join(leaks(site.cloud), unmodelled(server))
}

func startProvider(ctx context.Context, group *errgroup.Group, server *omni.Omni, site *site, logger *zap.Logger) (*counter, error) {
	key, err := server.CreateProvider(ctx, providerID)
	if err != nil {
		return nil, err
	}

	calls := &counter{}

	conn, err := server.Client(key, client.WithGrpcOpts(grpc.WithStatsHandler(calls)))
	if err != nil {
		return nil, err
	}

	// Omni makes the schematics. The cloud takes every image as fetched, so nobody calls the factory.
	images, err := bootasset.New(bootasset.Config{Schematics: bootasset.OmniSchematics{Management: conn.Management()}})
	if err != nil {
		return nil, err
	}

	p, err := lifecycle.New(lifecycle.Config{
		ID: providerID, Name: "In-memory cloud", Description: "Machines that are goroutines",
		Schema: provider.Schema(), Driver: provider.New(site.cloud.Client()), Images: images,
		Logger: logger, Provisions: 64, Removals: 64, PollInterval: time.Second,
	})
	if err != nil {
		return nil, err
	}

	group.Go(func() error {
		defer conn.Close()

		return p.Run(ctx, conn.Omni().State())
	})

	return calls, nil
}

// logger returns the provider's logger, and what to do with it when all has ended.
func (c config) logger() (logger *zap.Logger, finish func(*cloud.Cloud), err error) {
	if c.log == "" {
		return zap.NewNop(), func(*cloud.Cloud) {}, nil
	}

	file, err := os.Create(c.log)
	if err != nil {
		return nil, nil, fmt.Errorf("open the log: %w", err)
	}

	encoder := zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig())

	return zap.New(zapcore.NewCore(encoder, zapcore.AddSync(file), zap.DebugLevel)), func(c *cloud.Cloud) {
		fmt.Fprint(file, "\nThe cloud's history:\n", c.Ledger().History())
		file.Close()
	}, nil
}

// counter counts calls of a gRPC client, a stream as one.
type counter struct{ atomic.Int64 }

func (c *counter) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.Begin); ok {
		c.Add(1)
	}
}

func (c *counter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (c *counter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (c *counter) HandleConn(context.Context, stats.ConnStats) {}

func names(c *cloud.Cloud) []string {
	var names []string

	for _, o := range c.Ledger().Objects() {
		names = append(names, o.Kind+" "+o.Name)
	}

	if len(names) == 0 {
		return []string{"nothing"}
	}

	return names
}

func leaks(c *cloud.Cloud) error {
	if left := c.Ledger().Leaks(); len(left) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(left, "; "))
	}

	return nil
}

func unmodelled(server *omni.Omni) error {
	if calls := server.Unmodelled(); len(calls) > 0 {
		return fmt.Errorf("the simulated Omni was asked for what it does not model: %s", strings.Join(calls, "; "))
	}

	return nil
}
