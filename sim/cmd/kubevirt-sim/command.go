package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/omni-infra/omni-infra-providers/sim/factory"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/cdi"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/guests"
)

const longHelp = `kubevirt-sim is a simulated Kubernetes cluster with KubeVirt and CDI whose machines are simulated Talos machines. In one terminal

  kubevirt-sim serve --kubeconfig /tmp/cluster

and, with an Omni that is pointed to its image factory (omni-sim --factory http://127.0.0.1:8085 --provider kubevirt), a provider on it
in another:

  omni-infra-provider-kubevirt --kubeconfig-file /tmp/cluster

The other commands are those of the cluster's owner. They are what omni-conformance asks of a hook:

  KUBEVIRT_SIM_KUBECONFIG=/tmp/cluster omni-conformance --hook kubevirt-sim -- omni-infra-provider-kubevirt --kubeconfig-file /tmp/cluster`

// kubeconfigEnv names the environment variable with the path of the kubeconfig.
const kubeconfigEnv = "KUBEVIRT_SIM_KUBECONFIG"

// callTime is how long the cluster may take for a call of its owner.
const callTime = 30 * time.Second

// options are what serve takes.
type options struct {
	kubeconfig, listen, namespace, factory string
	boot                                   time.Duration
	fetch                                  bool
}

func newCommand(stdout, stderr io.Writer) *cobra.Command {
	var o options

	root := &cobra.Command{
		Use: "kubevirt-sim", Short: "A simulated KubeVirt with simulated Talos machines", Long: longHelp,
		SilenceUsage: true, SilenceErrors: true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentFlags().StringVar(&o.kubeconfig, "kubeconfig", os.Getenv(kubeconfigEnv),
		"`path` of the kubeconfig, which serve writes ($"+kubeconfigEnv+")")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if o.kubeconfig == "" {
			return fmt.Errorf("--kubeconfig or %s is required: the path of the kubeconfig", kubeconfigEnv)
		}

		return nil
	}

	serve := &cobra.Command{
		Use: "serve", Short: "Run the cluster until it is stopped.", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, stderr) },
	}
	serve.Flags().StringVar(&o.listen, "listen", "127.0.0.1:0", "`address` of the API server")
	serve.Flags().StringVar(&o.namespace, "namespace", "default", "`name` of the namespace that the kubeconfig is for")
	serve.Flags().StringVar(&o.factory, "factory", "127.0.0.1:8085", "`address` of an image factory with images that are small and fake; none if empty")
	serve.Flags().DurationVar(&o.boot, "boot", 200*time.Millisecond, "how `long` a machine boots before it joins")
	serve.Flags().BoolVar(&o.fetch, "fetch", false, "really download the images that DataVolumes import, to see that they are there and fit")

	owner := func(use, short string, args int, do func(ctx context.Context, c *ownerClient, args []string) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: cobra.ExactArgs(args),
			RunE: func(cmd *cobra.Command, args []string) error {
				ctx, cancel := context.WithTimeout(cmd.Context(), callTime)
				defer cancel()

				client, err := newOwnerClient(o.kubeconfig)
				if err != nil {
					return err
				}

				return do(ctx, client, args)
			},
		}
	}

	root.AddCommand(serve,
		owner("list", "Print the machines, one JSON object a line; only those of $PROVIDER_ID if that is set.", 0,
			func(ctx context.Context, c *ownerClient, _ []string) error {
				return c.list(ctx, os.Getenv("PROVIDER_ID"), stdout)
			}),
		owner("remove ID", "Remove a machine, running or not.", 1,
			func(ctx context.Context, c *ownerClient, args []string) error { return c.remove(ctx, args[0]) }),
		owner("power ID on|off", "Switch a machine on or off.", 2,
			func(ctx context.Context, c *ownerClient, args []string) error {
				if args[1] != "on" && args[1] != "off" {
					return fmt.Errorf("power %q: want on or off", args[1])
				}

				return c.power(ctx, args[0], args[1] == "on")
			}),
	)

	return root
}

// run serves the cluster.
func run(ctx context.Context, o options, stderr io.Writer) error {
	log := zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()), zapcore.AddSync(stderr), zap.InfoLevel))
	machines := guests.Guests{BootTime: o.boot, Log: log}

	opts := kubevirt.Options{Token: rand.Text()}
	opts.Virt.Boot, opts.Virt.Unbootable = machines.Boot, machines.Unbootable

	if o.namespace != "default" {
		opts.Namespaces = []string{o.namespace}
	}

	if o.fetch {
		opts.CDI.Fetch = cdi.HTTP(http.DefaultClient)
	}

	cluster, err := kubevirt.New(opts)
	if err != nil {
		return err
	}
	defer cluster.Close()

	images := &http.Server{Handler: new(factory.Factory).Handler(), ReadHeaderTimeout: callTime}
	defer images.Close() //nolint:errcheck // It ends with the program.

	if o.factory != "" {
		fl, err := new(net.ListenConfig).Listen(ctx, "tcp", o.factory)
		if err != nil {
			return fmt.Errorf("--factory: %w", err)
		}

		go images.Serve(fl) //nolint:errcheck // It ends by Close.
	}

	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer l.Close() //nolint:errcheck // The server closes it.

	address, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return fmt.Errorf("--listen: %s is no TCP address", l.Addr())
	}

	certificate, authority, err := newCertificate(address.IP)
	if err != nil {
		return err
	}

	url := serverURL(address)

	if err := writeKubeconfig(o, url, authority, opts.Token); err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	defer os.Remove(o.kubeconfig) //nolint:errcheck // It may have been taken away.

	server := &http.Server{
		Handler: handler(cluster, opts.Token), ReadHeaderTimeout: callTime,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
	}

	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()

	log.Info("the cluster is there", zap.String("kubeconfig", o.kubeconfig), zap.String("server", url))

	if err := server.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}

	return nil
}

// serverURL returns where a server that listens on an address is reached: on the loopback interface if it listens on all.
func serverURL(address *net.TCPAddr) string {
	host := address.IP
	if host.IsUnspecified() {
		host = net.IPv4(127, 0, 0, 1)
	}

	return "https://" + net.JoinHostPort(host.String(), strconv.Itoa(address.Port))
}

// writeKubeconfig writes the kubeconfig that opens the cluster, for its user alone. A file that is there is not replaced.
func writeKubeconfig(o options, server string, authority []byte, token string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["kubevirt-sim"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: authority}
	config.AuthInfos["provider"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["kubevirt-sim"] = &clientcmdapi.Context{Cluster: "kubevirt-sim", AuthInfo: "provider", Namespace: o.namespace}
	config.CurrentContext = "kubevirt-sim"

	text, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}

	hidden, err := os.CreateTemp(filepath.Dir(o.kubeconfig), ".kubevirt-sim-*") // Its mode is 0600.
	if err != nil {
		return err
	}

	defer os.Remove(hidden.Name()) //nolint:errcheck // What counts is the other name of the file.

	_, err = hidden.Write(text)
	if err := errors.Join(err, hidden.Close()); err != nil {
		return err
	}

	// Who sees the file sees all of it, and one that is there stays.
	err = os.Link(hidden.Name(), o.kubeconfig)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already: remove it if no other kubevirt-sim uses it", o.kubeconfig)
	}

	return err
}
