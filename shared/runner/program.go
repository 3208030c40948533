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
	"strings"
	"syscall"
	"time"

	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

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
	binary := p.binary()

	cmd := &cobra.Command{
		Use:   binary,
		Short: p.Description,
		Long: fmt.Sprintf(`%[1]s makes machines for Omni: %[2]s

Without a command it is the provider and runs until it is stopped. Omni has to know it first; an administrator makes its key with

    omnictl infraprovider create %[3]s

and hands OMNI_ENDPOINT and OMNI_SERVICE_ACCOUNT_KEY over in the environment.

A setting comes from the first of these that has it:

    1. flags
    2. environment variables
    3. the configuration file (--config-file)
    4. Omni
    5. the defaults

Omni's part is one line of JSON of the form of the configuration file, in the annotation %[4]s of the InfraProvider
resource. A provider sees it once the resource carries the label %[5]s with the provider's id. An
administrator sets both with

    omnictl edit infraprovider %[3]s

The provider follows every change while it runs. What is wrong there is refused, shown as the provider's error in Omni, and
changes nothing. Not taken from Omni are secrets, how to reach Omni (omni), the provider's id and the form of the log.`,
			binary, p.Description, p.Name, ConfigAnnotation, omni.LabelInfraProviderID),
		Example: fmt.Sprintf(`  export OMNI_ENDPOINT=https://omni.example.org OMNI_SERVICE_ACCOUNT_KEY=...
  %[1]s --config-file provider.yaml
  %[1]s machines list`, binary),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       Version(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := p.read(cmd.Flags(), os.LookupEnv)
			if err != nil {
				return err
			}

			return l.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}

	p.defaults().bind(cmd.Flags(), p)
	cmd.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.AddCommand(machinesCommand(p), sweepCommand(p), schemaCommand(p), validateCommand(p), versionCommand(binary))

	return cmd
}

func (p Program[C]) binary() string { return "omni-infra-provider-" + p.Name }

// errStartup wraps what stops a provider before it has begun.
var errStartup = errors.New("cannot start")

// startupTimeout is how long the first answers of Omni and of the cloud may take.
const startupTimeout = 30 * time.Second

// commandPatience is how long a command waits for Omni's first answer.
const commandPatience = 10 * time.Second

// answerTimeout is how long a command that only asks Omni takes at most.
const answerTimeout = time.Minute
