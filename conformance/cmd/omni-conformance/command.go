package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/conformance/report"
)

const longHelp = `omni-conformance runs the conformance suite on an infra provider's program, whoever wrote it:
the cases that can be judged from outside. It starts and stops the program, asks for
machines as an operator does, and looks at what becomes of them.

For each case it starts a simulated Omni, and the program with OMNI_ENDPOINT,
OMNI_SERVICE_ACCOUNT_KEY and PROVIDER_ID in its environment. {id} in an argument of the
program stands for the provider's id. With --omni it works on an Omni that is there
already, which has to be one to play with.

A hook shows the provider's cloud; docs/hook.md of the suite has its protocol. Cases that
need more than there is are not run, and reported as unseen.

The exit code is 0 if all is well, 1 if a case failed, and 2 if the suite could not begin.`

const examples = `  omni-conformance --data class.yaml -- omni-infra-provider-example --id {id}
  omni-conformance --data class.yaml --hook ./hook --claims power,reboot --report html=report.html -- ./provider
  omni-conformance --omni https://omni.example.org --admin-key admin.key --data class.yaml -- ./provider
  omni-conformance --list`

// errFailures says that the suite has run and not all is well.
var errFailures = errors.New("not all cases passed")

// settings are what the flags say.
type settings struct {
	id, data, hook, run       string
	claims, waive             []string
	omni, adminKey            string
	insecure, adopt, simulate bool
	listen, machineListen     string
	machineURL, factory       string
	talosVersion              string
	patience, calm            time.Duration
	reports                   []string
	output                    string
	list                      bool

	hurry <-chan struct{}
	// command is the provider's program, and args are those of this process.
	command, args []string
}

// newCommand returns the command that was called with these arguments, its name included.
// A run that is being ended does not tidy up any further when hurry is closed.
func newCommand(args []string, stdout, stderr io.Writer, hurry <-chan struct{}) *cobra.Command {
	s := settings{hurry: hurry}

	cmd := &cobra.Command{
		Use: "omni-conformance [flags] -- PROVIDER [ARGS...]", Short: "The conformance suite for infra providers of Omni, over the wire",
		Long: longHelp, Example: examples,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, program []string) error {
			s.command, s.args = program, args

			return s.execute(cmd.Context(), stdout, stderr)
		},
	}
	cmd.SetArgs(args[1:])
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.CompletionOptions.DisableDefaultCmd = true

	flags := cmd.Flags()
	flags.SetInterspersed(false)
	flags.StringVar(&s.id, "id", "conformance", "the provider's `id` in Omni, and the beginning of all names that the suite gives")
	flags.StringVar(&s.data, "data", "", "`file` with class data of a good machine, as in a machine class; - is standard input")
	flags.StringSliceVar(&s.claims, "claims", nil, "`features` that the provider has, of "+strings.Join(featureNames(), ", "))
	flags.StringArrayVar(&s.waive, "waive", nil, "`case=reason` of a case that is known to fail; may be given several times")
	flags.StringVar(&s.run, "run", "", "`regexp` of the ids and names of the cases to run (default all)")
	flags.BoolVar(&s.list, "list", false, "print the cases and what each needs, and run none")
	flags.StringVar(&s.hook, "hook", "", "`program` that shows the cloud's machines, and removes them")
	flags.BoolVar(&s.simulate, "simulate-machines", false, "let simulated machines join in the place of the provider's own, for clouds that boot nothing")
	flags.StringVar(&s.omni, "omni", "", "`URL` of an Omni that is there already (default a simulated one for each case)")
	flags.StringVar(&s.adminKey, "admin-key", "", "`file` with the key of a service account with the role Admin of that Omni")
	flags.BoolVar(&s.insecure, "insecure-skip-tls-verify", false, "take any TLS certificate of that Omni")
	flags.BoolVar(&s.adopt, "adopt", false, "work with an infra provider of that id if there is one already, without machine requests; it is not removed then")
	flags.StringVar(&s.listen, "listen", "", "`address` of the simulated Omni's API (default 127.0.0.1 and a free port)")
	flags.StringVar(&s.machineListen, "machine-listen", "", "`address` that machines join the simulated Omni by (default 127.0.0.1 and a free port)")
	flags.StringVar(&s.machineURL, "machine-url", "", "`URL` that machines are told to join by, if they reach it by another way, as grpc://192.168.122.1:8090")
	flags.StringVar(&s.factory, "factory", "", "`URL` of the image factory that the simulated Omni points to (default https://factory.talos.dev)")
	flags.StringVar(&s.talosVersion, "talos-version", "1.13.5", "`version` of Talos that machines are asked for with")
	flags.DurationVar(&s.patience, "patience", 2*time.Minute, "how `long` anything is waited for")
	flags.DurationVar(&s.calm, "calm", 15*time.Second, "how `long` nothing must happen before it is taken that nothing will")
	flags.StringArrayVar(&s.reports, "report", []string{"text"}, "`format` of the report, with =FILE behind it where it goes: "+strings.Join(report.Formats, ", ")+";\nmay be given several times")
	flags.StringVar(&s.output, "output", "", "`file` for the report that names none (default standard output)")

	return cmd
}

func featureNames() []string {
	var names []string
	for _, f := range conformance.Features() {
		names = append(names, string(f))
	}

	return names
}

func (s settings) execute(ctx context.Context, stdout, stderr io.Writer) error {
	if s.list {
		return list(stdout)
	}

	w, err := s.wire()
	if err != nil {
		return err
	}

	outputs, err := s.outputs()
	if err != nil {
		return err
	}

	w.Progress = progress(stderr)

	result, err := w.Run(ctx)
	if result.Provider == "" {
		return err
	}

	if err != nil {
		fmt.Fprintf(stderr, "omni-conformance: %s\n", err)
	}

	var unwritten error

	for _, o := range outputs {
		unwritten = errors.Join(unwritten, o.write(result, stdout))
	}

	if unwritten != nil {
		return unwritten
	}

	if !result.OK() || err != nil {
		return errFailures
	}

	return nil
}

func list(stdout io.Writer) error {
	for _, c := range conformance.Cases() {
		text := fmt.Sprintf("%s  %-40s %s\n", c.ID, c.Name, c.Rule)

		if len(c.Features) > 0 {
			text += "       of feature: " + strings.Join(c.Features, ", ") + "\n"
		}

		if len(c.Means) > 0 {
			text += "       needs: " + strings.Join(c.Means, ", ") + "\n"
		}

		if _, err := io.WriteString(stdout, text); err != nil {
			return err
		}
	}

	return nil
}

// wire checks the flags.
func (s settings) wire() (w conformance.Wire, err error) {
	w = conformance.Wire{
		Command: s.command, Provider: s.id, SimulateMachines: s.simulate, TalosVersion: s.talosVersion, Patience: s.patience, Calm: s.calm,
		Local: conformance.Local{Listen: s.listen, MachineListen: s.machineListen, MachineURL: s.machineURL, FactoryURL: s.factory},
		Waive: map[string]string{}, Again: s.again, Hurry: s.hurry,
	}

	var problems []error

	if len(s.command) == 0 {
		problems = append(problems, errors.New("the provider's program is missing: put it at the end, behind --"))
	} else if _, err := exec.LookPath(s.command[0]); err != nil {
		problems = append(problems, fmt.Errorf("the provider's program: %w", err))
	}

	if s.hook != "" {
		if w.Hook, err = exec.LookPath(s.hook); err != nil {
			problems = append(problems, fmt.Errorf("--hook: %w", err))
		}
	}

	if w.Data, err = readData(s.data); err != nil {
		problems = append(problems, err)
	}

	for _, claim := range s.claims {
		w.Claims = append(w.Claims, conformance.Feature(claim))
	}

	for _, waiver := range s.waive {
		name, reason, ok := strings.Cut(waiver, "=")
		if !ok {
			problems = append(problems, fmt.Errorf("--waive %q: want CASE=REASON", waiver))
		}

		w.Waive[name] = reason
	}

	if s.run != "" {
		if w.Only, err = regexp.Compile(s.run); err != nil {
			problems = append(problems, fmt.Errorf("--run: %w", err))
		}
	}

	if w.Remote, err = s.remote(); err != nil {
		problems = append(problems, err)
	}

	return w, errors.Join(problems...)
}

func readData(file string) (string, error) {
	switch file {
	case "":
		return "", errors.New("--data is required: a file with class data of a good machine")
	case "-":
		data, err := io.ReadAll(io.LimitReader(os.Stdin, 1<<20))

		return string(data), err
	}

	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--data: %w", err)
	}

	return string(data), nil
}

func (s settings) remote() (*conformance.Remote, error) {
	switch {
	case s.omni == "" && s.adminKey == "" && !s.adopt && !s.insecure:
		return nil, nil
	case s.omni == "":
		return nil, errors.New("--admin-key, --adopt and --insecure-skip-tls-verify are for an Omni that is there already: --omni is missing")
	case s.adminKey == "":
		return nil, errors.New("--admin-key is required with --omni: a file with the key of a service account with the role Admin")
	}

	key, err := os.ReadFile(s.adminKey)
	if err != nil {
		return nil, fmt.Errorf("--admin-key: %w", err)
	}

	return &conformance.Remote{
		URL: s.omni, Key: adminKey(string(key)), InsecureSkipVerify: s.insecure, Adopt: s.adopt,
	}, nil
}

// adminKey takes the key out of a file that has nothing else, or out of one with export lines.
func adminKey(text string) string {
	for line := range strings.Lines(text) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
		if key, ok := strings.CutPrefix(line, "OMNI_SERVICE_ACCOUNT_KEY="); ok {
			return strings.Trim(key, `"'`)
		}
	}

	return strings.TrimSpace(text)
}

// again returns the command that runs one case: this one, but for the case.
func (s settings) again(c report.Case) string {
	// The program and its arguments are the end of what this process was called with, usually behind a --.
	own := s.args[:len(s.args)-len(s.command)]

	var words []string

	for i := 0; i < len(own); i++ {
		switch arg := own[i]; {
		case arg == "--":
		case arg == "--run":
			i++
		case strings.HasPrefix(arg, "--run="):
		default:
			words = append(words, arg)
		}
	}

	return shell(slices.Concat(words, []string{"--run", "^" + c.ID + "$", "--"}, s.command))
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_./:=,@%+-]+$`)

// shell quotes words for a shell.
func shell(words []string) string {
	quoted := slices.Clone(words)

	for i, w := range quoted {
		if !plain.MatchString(w) {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}

	return strings.Join(quoted, " ")
}

// progress writes a line for each case as it ends, and names the one that runs.
func progress(w io.Writer) func(report.Case) {
	return func(c report.Case) {
		switch {
		case c.Verdict == "":
			fmt.Fprintf(w, "%s  %-40s ", c.ID, c.Name) //nolint:errcheck // there is nobody to tell
		case c.Reason != "":
			fmt.Fprintf(w, "%-9s %s\n", c.Verdict, c.Reason) //nolint:errcheck // there is nobody to tell
		default:
			fmt.Fprintf(w, "%-9s %.1f s\n", c.Verdict, c.Seconds) //nolint:errcheck // there is nobody to tell
		}
	}
}

// output is a report that is wanted.
type output struct{ format, file string }

func (s settings) outputs() ([]output, error) {
	var all []output

	for _, text := range s.reports {
		format, file, _ := strings.Cut(text, "=")
		if !slices.Contains(report.Formats, format) {
			return nil, fmt.Errorf("--report %q: want %s, with =FILE behind it or without", text, strings.Join(report.Formats, ", "))
		}

		if file == "" {
			file = s.output
		}

		if slices.ContainsFunc(all, func(o output) bool { return o.file == file }) {
			return nil, fmt.Errorf("--report %q: another report goes to the same place; put =FILE behind one of them", text)
		}

		all = append(all, output{format: format, file: file})
	}

	return all, nil
}

func (o output) write(r report.Report, stdout io.Writer) error {
	if o.file == "" {
		return r.Write(stdout, o.format)
	}

	f, err := os.Create(o.file)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}

	return errors.Join(r.Write(f, o.format), f.Close())
}
