package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
)

// The defaults of Config.
const (
	DefaultQPS         = 50
	DefaultBurst       = 100
	DefaultCallTimeout = 20 * time.Second
)

// Config says how to reach the cluster. The zero value of each field is its default.
type Config struct {
	// Kubeconfig is the path of a kubeconfig file; a leading "~" is the home directory. Without one the files of the environment
	// variable KUBECONFIG are used, else ~/.kube/config if it exists, else the service account of the pod.
	Kubeconfig string
	// Context is the context of the kubeconfig, its current one by default.
	Context string
	// TokenFile holds a bearer token, and replaces the credentials of the kubeconfig. It is read again as it is rotated.
	TokenFile string
	// ImpersonateUser and ImpersonateGroups are whom all calls are made as. Groups need a user.
	ImpersonateUser   string
	ImpersonateGroups []string
	// QPS is how many calls are made in a second on average, Burst how many at once after a pause.
	QPS   float32
	Burst int
	// CallTimeout limits each call but watches.
	CallTimeout time.Duration
	// UserAgent is what the API server's audit log shows.
	UserAgent string
	// Transport makes the requests in the place of one of the network; tests set it. It takes no TLS settings.
	Transport http.RoundTripper
	// Rest is used instead of a kubeconfig; tests set it.
	Rest *rest.Config
}

// restConfig makes client-go's configuration.
//
// Of what client-go does by itself these are changed: its limit of 5 calls a second for each clientset becomes one limit for all; its
// Timeout stays unset, since it would end watches too; and its up to ten retries of answers with Retry-After are made impossible by the
// transport.
func (c Config) restConfig() (*rest.Config, error) {
	config, err := c.load()
	if err != nil {
		return nil, err
	}

	if c.TokenFile != "" {
		file, err := expand(c.TokenFile)
		if err != nil {
			return nil, err
		}

		// The token has to be there at the start: client-go shows nothing but a 401 later.
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("token file: %w", err)
		}

		config.Username, config.Password, config.BearerToken, config.BearerTokenFile = "", "", "", file
		config.AuthProvider, config.ExecProvider = nil, nil
		config.CertFile, config.CertData, config.KeyFile, config.KeyData = "", nil, "", nil
	}

	if len(c.ImpersonateGroups) > 0 && c.ImpersonateUser == "" {
		return nil, errors.New("groups to impersonate are set without a user: Kubernetes wants both")
	}

	if c.ImpersonateUser != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: c.ImpersonateUser, Groups: c.ImpersonateGroups}
	}

	config.Timeout = 0
	config.UserAgent = cmp.Or(c.UserAgent, "omni-infra-provider-kubevirt")
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(cmp.Or(c.QPS, DefaultQPS), cmp.Or(c.Burst, DefaultBurst))
	// Warnings of the API server go to client-go's own log otherwise, which nobody reads and no rule of ours covers.
	config.WarningHandler = rest.NoWarnings{}

	return config, nil
}

// load finds the cluster and the credentials.
func (c Config) load() (*rest.Config, error) {
	if c.Rest != nil {
		return rest.CopyConfig(c.Rest), nil
	}

	if c.Transport != nil {
		return &rest.Config{Host: "https://kubernetes.test", Transport: c.Transport}, nil
	}

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.WarnIfAllMissing = false

	file, err := expand(cmp.Or(c.Kubeconfig, "~/.kube/config"))
	if err != nil && c.Kubeconfig != "" {
		return nil, err
	}

	switch {
	case c.Kubeconfig == "" && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "":
		rules.Precedence = []string{file}
	case c.Kubeconfig != "":
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("kubeconfig: %w", err)
		}

		rules.ExplicitPath = file
	}

	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.Context})

	raw, err := loader.RawConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}

	if len(raw.Clusters) == 0 && c.Kubeconfig == "" && c.Context == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no kubeconfig is given, $KUBECONFIG and ~/.kube/config have none, and this is no pod with a service account: %w", err)
		}

		return config, nil
	}

	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", where(rules), err)
	}

	return config, nil
}

func where(rules *clientcmd.ClientConfigLoadingRules) string {
	return cmp.Or(rules.ExplicitPath, strings.Join(rules.Precedence, string(filepath.ListSeparator)))
}

// expand puts the home directory into the place of a leading "~".
func expand(path string) (string, error) {
	rest, ok := strings.CutPrefix(path, "~")
	if !ok || rest != "" && !strings.HasPrefix(rest, string(filepath.Separator)) {
		return path, nil
	}

	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("path %q: %w", path, err)
	}

	return filepath.Join(home, rest), nil
}
