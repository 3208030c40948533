package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/memory"
	"github.com/omni-infra/omni-infra-providers/sim/memory/guests"
)

const longHelp = `memory-cloud is a small cloud in memory whose machines are simulated Talos machines. In one terminal

  memory-cloud serve --socket /tmp/cloud

and a provider on it in another:

  omni-infra-provider-memory --cloud unix:/tmp/cloud

The other commands are those of the cloud's owner. They are what omni-conformance asks of a hook:

  MEMORY_CLOUD_SOCKET=/tmp/cloud omni-conformance --hook memory-cloud -- omni-infra-provider-memory --cloud unix:/tmp/cloud`

// socketEnv names the environment variable with the socket's path.
const socketEnv = "MEMORY_CLOUD_SOCKET"

// callTime is how long the cloud may take for a call of its owner.
const callTime = 10 * time.Second

// The marks that omni-infra-provider-memory puts on its machines.
const (
	tagProvider = "omni-infra.dev/provider"
	tagRequest  = "omni-infra.dev/request"
)

func newCommand(stdout, stderr io.Writer) *cobra.Command {
	var (
		socket string
		boot   time.Duration
	)

	root := &cobra.Command{
		Use: "memory-cloud", Short: "A cloud in memory with simulated Talos machines", Long: longHelp,
		SilenceUsage: true, SilenceErrors: true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentFlags().StringVar(&socket, "socket", os.Getenv(socketEnv), "`path` of the cloud's socket ($"+socketEnv+")")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if socket == "" {
			return fmt.Errorf("--socket or %s is required: the path of the cloud's socket", socketEnv)
		}

		return nil
	}

	serve := &cobra.Command{
		Use: "serve", Short: "Run the cloud until it is stopped.", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), socket, boot, stderr) },
	}
	serve.Flags().DurationVar(&boot, "boot", 200*time.Millisecond, "how `long` a machine boots before it joins")

	owner := func(use, short string, args int, do func(ctx context.Context, o *memory.Owner, args []string) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: cobra.ExactArgs(args),
			RunE: func(cmd *cobra.Command, args []string) error {
				ctx, cancel := context.WithTimeout(cmd.Context(), callTime)
				defer cancel()

				return do(ctx, memory.DialOwner(socket), args)
			},
		}
	}

	root.AddCommand(serve,
		owner("list", "Print the machines, one JSON object a line; only those of $PROVIDER_ID if that is set.", 0,
			func(ctx context.Context, o *memory.Owner, _ []string) error {
				return list(ctx, o, os.Getenv("PROVIDER_ID"), stdout)
			}),
		owner("remove ID", "Remove a machine, running or not.", 1,
			func(ctx context.Context, o *memory.Owner, args []string) error { return o.DeleteMachine(ctx, args[0]) }),
		owner("power ID on|off", "Switch a machine on or off.", 2,
			func(ctx context.Context, o *memory.Owner, args []string) error {
				if args[1] != "on" && args[1] != "off" {
					return fmt.Errorf("power %q: want on or off", args[1])
				}

				return o.Power(ctx, args[0], args[1] == "on")
			}),
	)

	return root
}

// run serves the cloud. Nobody but its user can reach the socket: what machines are given to boot with passes through it.
func run(ctx context.Context, socket string, boot time.Duration, stderr io.Writer) error {
	log := zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()), zapcore.AddSync(stderr), zap.InfoLevel))
	machines := guests.Guests{BootTime: boot, Log: log}

	cloud := memory.New(memory.Options{Boot: machines.Boot})
	defer cloud.Close()

	l, err := listen(ctx, socket)
	if err != nil {
		return fmt.Errorf("--socket: %w", err)
	}
	defer os.Remove(socket) //nolint:errcheck // it may have been taken away

	server := &http.Server{Handler: memory.Handler(cloud), ReadHeaderTimeout: callTime}

	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()

	log.Info("the cloud is there", zap.String("socket", socket))

	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}

	return nil
}

// listen makes a socket that only its user can reach. It gets its name when its mode is set.
func listen(ctx context.Context, socket string) (net.Listener, error) {
	if _, err := os.Lstat(socket); err == nil {
		return nil, fmt.Errorf("%s is there already: remove it if no other memory-cloud uses it", socket)
	}

	hidden := fmt.Sprintf("%s.%d", socket, os.Getpid())

	l, err := new(net.ListenConfig).Listen(ctx, "unix", hidden)
	if err != nil {
		return nil, err
	}

	l.(*net.UnixListener).SetUnlinkOnClose(false)

	if err := errors.Join(os.Chmod(hidden, 0o600), os.Rename(hidden, socket)); err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(hidden))
	}

	return l, nil
}

// listed is a machine as a hook of omni-conformance prints it.
type listed struct {
	ID      string `json:"id"`
	Request string `json:"request"`
	UUID    string `json:"uuid"`
	Name    string `json:"name"`
	Power   string `json:"power"`
	Boots   int    `json:"boots"`
}

func list(ctx context.Context, o *memory.Owner, provider string, stdout io.Writer) error {
	machines, err := o.Machines(ctx)
	if err != nil {
		return err
	}

	out := json.NewEncoder(stdout)

	for _, m := range machines {
		if provider != "" && m.Tags[tagProvider] != provider {
			continue
		}

		if err := out.Encode(describe(m)); err != nil {
			return err
		}
	}

	return nil
}

func describe(m ledger.Machine) listed {
	power := "off"
	if m.On {
		power = "on"
	}

	return listed{ID: m.ID, Request: m.Tags[tagRequest], UUID: m.UUID, Name: m.Name, Power: power, Boots: m.Boots}
}
