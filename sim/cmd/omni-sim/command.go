package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

const longHelp = `omni-sim is a simulated Omni: the API, access rules and machine joins of Omni ` + version + `
over a state in memory, which is gone when it ends. The real omnictl and any infra
provider work against it.

It tells what happens on standard error, one line an event. With

  omni-sim --provider libvirt --state-dir /tmp/omni

in one terminal, others work with it like this:

  (. /tmp/omni/admin.env; omnictl get machinerequests)
  (. /tmp/omni/provider-libvirt.env; omni-infra-provider-libvirt)

Without --state-dir it prints the administrator's export lines on standard output. The keys
are secrets: they are there, or in files that only you can read, and nowhere else. The files
are removed at the end.`

// version is the version of Omni that is simulated.
const version = "v1.9.3"

// settings are what the flags say.
type settings struct {
	listen, machineListen string
	machineURL            string
	tls                   bool
	stateDir, envFile     string
	providers             []string
	factory               string
	joinTokensMode        string
	maxMachines           int
	peerPoll, peerDown    time.Duration
	defects               []string
}

func newCommand(stdout, stderr io.Writer) *cobra.Command {
	var s settings

	cmd := &cobra.Command{
		Use:           "omni-sim",
		Short:         "A simulated Omni on this machine",
		Long:          longHelp,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), s, stdout, stderr) },
	}
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)

	flags := cmd.Flags()
	flags.StringVar(&s.listen, "listen", "127.0.0.1:8099", "`address` of the API; port 0 takes a free one")
	flags.StringVar(&s.machineListen, "machine-listen", "127.0.0.1:8090",
		"`address` of the API that machines join by, in plain text")
	flags.StringVar(&s.machineURL, "machine-url", "", "`URL` that machines are told to join by, if they reach it by another way,\n"+
		"as grpc://192.168.122.1:8090 (default grpc:// and the address of --machine-listen)")
	flags.BoolVar(&s.tls, "tls", false, "serve the API with TLS; its self-signed certificate is in tls.pem of --state-dir")
	flags.StringVar(&s.stateDir, "state-dir", "", "`directory` for the files with keys (default a new one, removed at the end)")
	flags.StringVar(&s.envFile, "env-file", "", "another `file` for the administrator's export lines")
	flags.StringArrayVar(&s.providers, "provider", nil, "`id` of an infra provider to create, with its key in provider-ID.env\n"+
		"of --state-dir; may be given several times")
	flags.StringVar(&s.factory, "factory", "", "`URL` of an image factory that schematics go to and clients are pointed to\n"+
		"(default: ids are computed and nothing is stored)")
	flags.StringVar(&s.joinTokensMode, "join-tokens-mode", string(omni.JoinTokensStrict),
		"which machines may join by the age of their Talos: the `mode` strict, legacyAllowed or legacy")
	flags.IntVar(&s.maxMachines, "max-machines", 0, "how `many` machines may be registered; 0 means any number")
	flags.DurationVar(&s.peerPoll, "peer-poll", 0, "how `often` Omni looks whether machines are connected (default that of the real one, 30s)")
	flags.DurationVar(&s.peerDown, "peer-down", 0, "how `long` after the end of its tunnel a machine is taken for disconnected\n"+
		"(default that of the real one, 4m35s)")
	flags.StringArrayVar(&s.defects, "defect", nil, "known `defect` of the real Omni to have, "+
		strings.Join(defectNames(), " or ")+";\nmay be given several times")

	return cmd
}

func run(ctx context.Context, s settings, stdout, stderr io.Writer) (err error) {
	opts, err := s.options()
	if err != nil {
		return err
	}

	var config net.ListenConfig

	api, err := config.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer api.Close() //nolint:errcheck // closed already if it was served

	machine, err := config.Listen(ctx, "tcp", s.machineListen)
	if err != nil {
		return fmt.Errorf("--machine-listen: %w", err)
	}
	defer machine.Close() //nolint:errcheck // closed already if it was served

	opts.APIURL = "http://" + api.Addr().String()
	opts.MachineAPIURL = s.machineURL

	if opts.MachineAPIURL == "" {
		opts.MachineAPIURL = "grpc://" + machine.Addr().String()
	}

	dir, err := openStateDir(s.stateDir)
	if err != nil {
		return err
	}
	defer dir.close(&err)

	if s.tls {
		opts.APIURL = "https://" + api.Addr().String()

		if api, err = dir.serveTLS(api); err != nil {
			return err
		}
	}

	log := &eventLog{w: stderr}
	opts.Log = log.line

	o, err := omni.New(opts)
	if err != nil {
		return err
	}

	eg, ctx := errgroup.WithContext(ctx)

	eg.Go(func() error { return o.Run(ctx) })
	eg.Go(func() error { return o.Serve(ctx, api, machine) })
	eg.Go(func() error { return greet(ctx, o, opts, s, dir, stdout, log) })

	return eg.Wait()
}

// greet makes the providers and says where everything is.
func greet(ctx context.Context, o *omni.Omni, opts omni.Options, s settings, dir *stateDir, stdout io.Writer, log *eventLog) error {
	for _, id := range s.providers {
		key, err := o.CreateProvider(ctx, id)
		if err != nil {
			return fmt.Errorf("--provider %s: %w", id, err)
		}

		path, err := dir.writeEnv("provider-"+id+".env", exports(opts.APIURL, key)+"export PROVIDER_ID="+id+"\n")
		if err != nil {
			return err
		}

		log.line(fmt.Sprintf("provider %q may connect: its key is in %s", id, path))
	}

	lines := exports(opts.APIURL, o.AdminKey())

	path, err := dir.writeEnv("admin.env", lines)
	if err != nil {
		return err
	}

	if s.envFile != "" {
		if err = writeSecret(s.envFile, lines); err != nil {
			return fmt.Errorf("--env-file: %w", err)
		}
	}

	log.line(fmt.Sprintf("Omni is at %s, machines join at %s, the administrator's key is in %s", opts.APIURL, opts.MachineAPIURL, path))

	if s.stateDir == "" {
		_, err = io.WriteString(stdout, lines)
	}

	return err
}

func exports(endpoint, key string) string {
	return "export OMNI_ENDPOINT=" + endpoint + "\nexport OMNI_SERVICE_ACCOUNT_KEY=" + key + "\n"
}

// defects are the names of the known defects.
var defects = map[string]func(*omni.Defects){
	"unfiltered-cache":                func(d *omni.Defects) { d.UnfilteredCache = true },
	"provider-removal-takes-all-sets": func(d *omni.Defects) { d.ProviderRemovalTakesAllSets = true },
}

func defectNames() []string { return []string{"unfiltered-cache", "provider-removal-takes-all-sets"} }

func (s settings) options() (omni.Options, error) {
	opts := omni.Options{
		JoinTokensMode: omni.JoinTokensMode(s.joinTokensMode),
		MaxMachines:    s.maxMachines,
		Timing:         omni.Timing{PeerPoll: s.peerPoll, PeerGrace: s.peerPoll, PeerDown: s.peerDown},
	}

	for _, name := range s.defects {
		set, ok := defects[name]
		if !ok {
			return opts, fmt.Errorf("--defect %q: want %s", name, strings.Join(defectNames(), " or "))
		}

		set(&opts.Defects)
	}

	for flag, period := range map[string]time.Duration{"--peer-poll": s.peerPoll, "--peer-down": s.peerDown} {
		if period < 0 {
			return opts, fmt.Errorf("%s %s: want a time that is not negative", flag, period)
		}
	}

	if s.machineURL != "" {
		if _, err := parseURL("--machine-url", s.machineURL, "grpc", "https"); err != nil {
			return opts, err
		}
	}

	if s.factory != "" {
		u, err := parseURL("--factory", s.factory, "http", "https")
		if err != nil {
			return opts, err
		}

		opts.Factory, opts.FactoryURL = &omni.HTTPFactory{URL: u}, s.factory
	}

	return opts, nil
}

func parseURL(flag, value string, schemes ...string) (*url.URL, error) {
	u, err := url.Parse(value)
	if err == nil && u.Host != "" && slices.Contains(schemes, u.Scheme) {
		return u, nil
	}

	return nil, fmt.Errorf("%s %q: want %s://HOST:PORT", flag, value, strings.Join(schemes, " or "))
}

// eventLog writes one line an event, with the time. It may be used from several goroutines.
type eventLog struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *eventLog) line(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	fmt.Fprintln(l.w, time.Now().Format("15:04:05.000"), text) //nolint:errcheck // there is nobody to tell
}
