// Image-factory-sim serves the simulated image factory with images that boot.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/omni-infra/omni-infra-providers/sim/factory"
	"github.com/omni-infra/omni-infra-providers/sim/factory/image"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "image-factory-sim:", err)
		os.Exit(1) //nolint:gocritic // Nothing is left to be stopped.
	}
}

type options struct {
	listen, cache, init, kernel, roots string
	versions                           []string
	install, prepare                   bool
}

func command() *cobra.Command {
	var o options

	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}

	c := &cobra.Command{
		Use:   "image-factory-sim",
		Short: "Serve a simulated Talos image factory with images that boot",
		Long: "Serve a simulated Talos image factory. Its images are Debian's cloud kernel and an init that joins Omni as a Talos\n" +
			"machine does; they boot with BIOS and UEFI on amd64. They are built on first request, from Debian packages.",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(c *cobra.Command, _ []string) error { return run(c.Context(), o) },
	}

	c.Flags().StringVar(&o.listen, "listen", "127.0.0.1:8085", "address to serve HTTP on")
	c.Flags().StringVar(&o.cache, "cache-dir", filepath.Join(cache, "image-factory-sim"), "directory for what was built and downloaded")
	c.Flags().StringVar(&o.init, "init", "", "built cmd/talos-init (default: build it with Go, from within this repository)")
	c.Flags().StringVar(&o.kernel, "kernel", "", "directory with vmlinuz and modules (default: download Debian's cloud kernel)")
	c.Flags().StringVar(&o.roots, "roots", "", "file of PEM certificates that guests trust when they join over TLS")
	c.Flags().StringSliceVar(&o.versions, "versions", factory.DefaultVersions, "Talos versions to offer")
	c.Flags().BoolVar(&o.prepare, "prepare", false, "only download and build what images are made of, for a start without network later")
	c.Flags().BoolVar(&o.install, "install", false, "install missing Debian packages with apt-get, as root")

	return c
}

func run(ctx context.Context, o options) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))

	if missing := image.Missing(); len(missing) > 0 {
		if !o.install {
			return fmt.Errorf("building images needs Debian packages, install them or start with --install: %s", strings.Join(missing, " "))
		}

		log.Info("installing Debian packages", "packages", missing)

		if err := image.Install(ctx, missing); err != nil {
			return err
		}
	}

	builder := &image.Builder{Dir: o.cache, Init: o.init, Kernel: o.kernel}

	if o.roots != "" {
		roots, err := os.ReadFile(o.roots)
		if err != nil {
			return fmt.Errorf("read roots: %w", err)
		}

		builder.Roots = roots
	}

	log.Info("preparing kernel and init", "cache", o.cache)

	if err := builder.Prepare(ctx); err != nil || o.prepare {
		return err
	}

	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return err
	}

	handler := (&factory.Factory{Images: builder, Versions: o.versions, Log: log}).Handler()
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			began := time.Now()
			handler.ServeHTTP(w, r)
			log.Info("request", "method", r.Method, "path", r.URL.Path, "took", time.Since(began).Round(time.Millisecond).String())
		}),
	}

	log.Info("serving", "url", "http://"+listener.Addr().String())

	ended := make(chan error, 1)

	go func() { ended <- server.Serve(listener) }()

	select {
	case err = <-ended:
		return err
	case <-ctx.Done():
	}

	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()

	if err = server.Shutdown(stopping); errors.Is(err, context.DeadlineExceeded) {
		err = server.Close()
	}

	return err
}
