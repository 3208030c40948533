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
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/oxide"
	"github.com/omni-infra/omni-infra-providers/sim/oxide/guests"
)

const longHelp = `oxide-sim is a simulated Oxide rack whose instances are simulated Talos machines: they join the Omni that their
user data names. It prints the variables with which Oxide's own clients, and the provider, find it. In one terminal

  oxide-sim serve --env-file /tmp/rack.env

and in another

  (. /tmp/rack.env; omni-infra-provider-oxide)

The other commands are those of the rack's operator. They are what omni-conformance asks of a hook:

  (. /tmp/rack.env; omni-conformance --hook oxide-sim -- omni-infra-provider-oxide)

Everything is in memory, and gone when the program ends.`

// The environment variables of Oxide's own clients.
const (
	hostEnv  = "OXIDE_HOST"
	tokenEnv = "OXIDE_TOKEN"
)

// callTime is how long the rack may take for a call of its operator.
const callTime = 10 * time.Second

// settings are what the flags of serve say.
type settings struct {
	listen, envFile, token string
	projects               []string
	boot, start, stop      time.Duration
	inFlight               int
	swapped                bool
}

func newCommand(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use: "oxide-sim", Short: "A simulated Oxide rack with simulated Talos machines", Long: longHelp,
		SilenceUsage: true, SilenceErrors: true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.CompletionOptions.DisableDefaultCmd = true

	root.AddCommand(newServe(stdout, stderr),
		operator("list", "Print the machines, one JSON object a line; only those of $PROVIDER_ID if that is set.", 0,
			func(ctx context.Context, o oxide.Operator, _ []string) error {
				return list(ctx, o, os.Getenv("PROVIDER_ID"), stdout)
			}),
		operator("remove ID", "Remove a machine, running or not.", 1,
			func(ctx context.Context, o oxide.Operator, args []string) error { return o.DeleteMachine(ctx, args[0]) }),
		operator("power ID on|off", "Switch a machine on or off.", 2,
			func(ctx context.Context, o oxide.Operator, args []string) error {
				if args[1] != "on" && args[1] != "off" {
					return fmt.Errorf("power %q: want on or off", args[1])
				}

				return o.Power(ctx, args[0], args[1] == "on")
			}),
	)

	return root
}

func newServe(stdout, stderr io.Writer) *cobra.Command {
	var s settings

	cmd := &cobra.Command{
		Use: "serve", Short: "Run the rack until it is stopped.", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), s, stdout, stderr) },
	}

	flags := cmd.Flags()
	flags.StringVar(&s.listen, "listen", "127.0.0.1:0", "`address` of the API; port 0 takes a free one")
	flags.StringVar(&s.envFile, "env-file", "", "`file` for the export lines, which only you can read; standard output if empty")
	flags.StringVar(&s.token, "token", os.Getenv(tokenEnv), "the administrator's `token`; a random one if empty ($"+tokenEnv+")")
	flags.StringSliceVar(&s.projects, "project", []string{"default"}, "`name` of a project, given once for each")
	flags.DurationVar(&s.boot, "boot", 200*time.Millisecond, "how `long` a machine boots before it joins")
	flags.DurationVar(&s.start, "start", 0, "how `long` an instance is starting")
	flags.DurationVar(&s.stop, "stop", 0, "how `long` an instance is stopping")
	flags.IntVar(&s.inFlight, "in-flight", 0, "how `many` calls the rack works on at once, those above it are refused; 0 means any number")
	flags.BoolVar(&s.swapped, "swapped-uuids", false, "let guests see their UUIDs with the bytes of the first three fields in reverse")

	return cmd
}

func operator(use, short string, args int, do func(context.Context, oxide.Operator, []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(args),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := oxide.Operator{Host: os.Getenv(hostEnv), Token: os.Getenv(tokenEnv)}
			if o.Host == "" || o.Token == "" {
				return fmt.Errorf("%s and %s are required: those that serve has printed", hostEnv, tokenEnv)
			}

			ctx, cancel := context.WithTimeout(cmd.Context(), callTime)
			defer cancel()

			return do(ctx, o, args)
		},
	}
}

func (s settings) options(log *zap.Logger) oxide.Options {
	machines := guests.Guests{BootTime: s.boot, Log: log}
	opts := oxide.Options{
		Token: s.token, Projects: s.projects, InFlight: s.inFlight, Boot: machines.Boot, Seed: uint64(time.Now().UnixNano()), //nolint:gosec // A seed.
		Durations: map[string]time.Duration{"instance_start": s.start, "instance_stop": s.stop, "instance_reboot": s.stop + s.start},
	}

	if s.swapped {
		opts.SMBIOS = oxide.Swapped
	}

	return opts
}

func run(ctx context.Context, s settings, stdout, stderr io.Writer) error {
	log := zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()), zapcore.AddSync(stderr), zap.InfoLevel))

	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}

	rack := oxide.New(s.options(log))
	defer rack.Close()

	host := "http://" + l.Addr().String()

	if err := tell(s.envFile, exports(host, rack.Token()), stdout); err != nil {
		return errors.Join(fmt.Errorf("--env-file: %w", err), l.Close())
	}

	if s.envFile != "" {
		defer os.Remove(s.envFile) //nolint:errcheck // it may have been taken away
	}

	server := &http.Server{Handler: rack.OperatorHandler(), ReadHeaderTimeout: callTime}

	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()

	log.Info("the rack is there", zap.String("host", host), zap.Strings("projects", s.projects))

	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}

	return nil
}

func exports(host, token string) string {
	return fmt.Sprintf("export %s=%s\nexport %s=%s\n", hostEnv, host, tokenEnv, token)
}

// tell writes text to a file that only its user can read, which is whole as soon as it is there, or to stdout.
func tell(name, text string, stdout io.Writer) error {
	if name == "" {
		_, err := io.WriteString(stdout, text)

		return err
	}

	f, err := os.CreateTemp(filepath.Dir(name), ".oxide-sim-") // Its mode is 0600.
	if err != nil {
		return err
	}

	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}

	if err != nil {
		_ = os.Remove(f.Name())
	}

	return err
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

func list(ctx context.Context, o oxide.Operator, provider string, stdout io.Writer) error {
	machines, err := o.Machines(ctx)
	if err != nil {
		return err
	}

	out := json.NewEncoder(stdout)

	for _, m := range machines {
		of, request := owner(m)
		if provider != "" && of != provider {
			continue
		}

		power := "off"
		if m.On {
			power = "on"
		}

		if err := out.Encode(listed{ID: m.ID, Request: request, UUID: m.UUID, Name: m.Name, Power: power, Boots: m.Boots}); err != nil {
			return err
		}
	}

	return nil
}

// owner reads the mark that omni-infra-provider-oxide leaves in descriptions: JSON that names provider and request.
func owner(m ledger.Machine) (provider, request string) {
	description := m.Tags["description"]

	begin := strings.IndexByte(description, '{')
	if begin < 0 {
		return "", ""
	}

	var mark struct{ Provider, Request string }

	if err := json.Unmarshal([]byte(description[begin:]), &mark); err != nil {
		return "", ""
	}

	return mark.Provider, mark.Request
}
