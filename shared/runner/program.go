// Package runner makes a program of a driver: flags, environment, configuration file, signals, logs, health, metrics. A
// provider's main function is a Program and a call of Main.
package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Program describes a provider's program. C is the provider's own configuration: where its cloud is and how to reach it. Its
// fields carry the tags of package classdata; the section of the configuration file with the program's name is decoded into it.
type Program[C any] struct {
	// Name is the cloud's name in lower case ("libvirt"): the program is omni-infra-provider-NAME, the default id is NAME.
	Name string
	// Title and Description are what Omni shows of the provider unless a flag says otherwise; Icon is an SVG.
	Title, Description, Icon string
	// Schema is the JSON schema of the class data.
	Schema string
	// Validate checks class data as far as that goes without a cloud.
	Validate func(classData string) error
	// Flags adds the provider's own flags; their values go into the configuration. It may be nil.
	Flags func(flags *pflag.FlagSet, config *C)
	// Env names the environment variables that set a flag of Flags when the flag is not given, by the flag's name. It may be nil.
	Env map[string]string
	// New makes the driver. It connects to nothing yet: Driver.Check is the first call. The returned function closes what it opened.
	New func(ctx context.Context, config C, log *zap.Logger) (driver.Driver, func() error, error)
}

// Main runs the program and ends the process: with 0 after a clean end or a signal, else with 1 and one line on standard error.
func Main[C any](p Program[C]) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)

	// A second signal ends a process that hangs on its way out.
	context.AfterFunc(ctx, stop)

	err := Execute(ctx, p, os.Args[1:], os.Stdout, os.Stderr)

	stop()

	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", strings.Join(strings.Fields(err.Error()), " "))
		os.Exit(1)
	}
}

// Execute runs the program with its arguments until it is done or ctx ends.
func Execute[C any](ctx context.Context, p Program[C], args []string, stdout, stderr io.Writer) error {
	cmd := command(p)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)

	return cmd.ExecuteContext(ctx)
}

func command[C any](p Program[C]) *cobra.Command {
	binary := "omni-infra-provider-" + p.Name

	s := &settings[C]{program: p}

	if defaults, err := classdata.Decode[C](""); err == nil {
		s.config = defaults
	}

	cmd := &cobra.Command{
		Use:   binary,
		Short: p.Description,
		Long: fmt.Sprintf(`%[1]s makes machines for Omni: %[2]s

It runs until it is stopped. Omni has to know it first; an administrator makes its key with

    omnictl infraprovider create %[3]s

and hands OMNI_ENDPOINT and OMNI_SERVICE_ACCOUNT_KEY over in the environment.

A flag comes before its environment variable, that before the configuration file, and that before the default.`, binary, p.Description, p.Name),
		Example:       fmt.Sprintf("  export OMNI_ENDPOINT=https://omni.example.org OMNI_SERVICE_ACCOUNT_KEY=...\n  %s --config-file provider.yaml", binary),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.load(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}

			return s.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}

	s.bind(cmd.Flags())
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.AddCommand(schemaCommand(p), validateCommand(p), versionCommand(binary))

	return cmd
}

func schemaCommand[C any](p Program[C]) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the class data.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), p.Schema)

			return err
		},
	}
}

func validateCommand[C any](p Program[C]) *cobra.Command {
	return &cobra.Command{
		Use:     "validate FILE",
		Short:   "Check class data, the provider data of a machine class, before Omni has it. FILE may be - for standard input.",
		Example: "  omni-infra-provider-" + p.Name + " validate class-data.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := readFile(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}

			if err := p.Validate(string(data)); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}

			_, err = fmt.Fprintln(cmd.OutOrStdout(), args[0]+": ok")

			return err
		},
	}
}

func readFile(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(io.LimitReader(stdin, 1<<20))
	}

	return os.ReadFile(name)
}

func versionCommand(binary string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), binary, Version())

			return err
		},
	}
}

// version is set by release builds with -ldflags '-X …/shared/runner.version=v1.2.3'.
var version string

// Version is the program's version: that of the release, else the commit it was built from, else "devel".
func Version() string {
	if version != "" {
		return version
	}

	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				return "devel-" + setting.Value[:min(12, len(setting.Value))]
			}
		}
	}

	return "devel"
}

// errStartup wraps what stops a provider before it has begun.
var errStartup = errors.New("cannot start")

// startupTimeout is how long the first answers of Omni and of the cloud may take.
const startupTimeout = 30 * time.Second
