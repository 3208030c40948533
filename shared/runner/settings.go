package runner

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/siderolabs/go-api-signature/pkg/serviceaccount"
	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"
	"go.yaml.in/yaml/v4"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

// settings is everything that a provider's program is told.
type settings[C any] struct {
	program Program[C]
	config  C

	endpoint    string
	key         string
	keyFile     string
	insecure    bool
	id          string
	name        string
	description string
	configFile  string
	factory     string
	concurrency int
	listen      string
	logLevel    string
	logFormat   string
}

// environment lists the variables that stand in for a flag, by the flag's name.
var environment = map[string]string{
	"omni-api-endpoint":        "OMNI_ENDPOINT",
	"omni-service-account-key": "OMNI_SERVICE_ACCOUNT_KEY",
	"id":                       "PROVIDER_ID",
	"provider-name":            "PROVIDER_NAME",
	"provider-description":     "PROVIDER_DESCRIPTION",
	"config-file":              "PROVIDER_CONFIG_FILE",
	"image-factory":            "IMAGE_FACTORY_URL",
	"listen":                   "PROVIDER_LISTEN",
	"log-level":                "LOG_LEVEL",
}

// bind declares the flags. No default is taken from the environment: --help would print it, the key included.
func (s *settings[C]) bind(flags *pflag.FlagSet) {
	flags.SortFlags = false

	flags.StringVar(&s.endpoint, "omni-api-endpoint", "", "URL of Omni's API, as https://omni.example.org ($OMNI_ENDPOINT)")
	flags.StringVar(&s.key, "omni-service-account-key", "", "the provider's service account key; better in the environment, where other users cannot see it ($OMNI_SERVICE_ACCOUNT_KEY)")
	flags.StringVar(&s.keyFile, "omni-service-account-key-file", "", "file that holds the service account key")
	flags.BoolVar(&s.insecure, "insecure-skip-verify", false, "do not verify Omni's TLS certificate")
	flags.StringVar(&s.id, "id", s.program.Name, "the provider's id, as Omni knows it ($PROVIDER_ID)")
	flags.StringVar(&s.name, "provider-name", s.program.Title, "the provider's name in Omni ($PROVIDER_NAME)")
	flags.StringVar(&s.description, "provider-description", s.program.Description, "the provider's description in Omni ($PROVIDER_DESCRIPTION)")
	flags.StringVar(&s.configFile, "config-file", "", "configuration file in YAML ($PROVIDER_CONFIG_FILE)")
	flags.StringVar(&s.factory, "image-factory", "", "URL of an image factory of your own, for schematics and images; by default the one that Omni uses ($IMAGE_FACTORY_URL)")
	flags.IntVar(&s.concurrency, "concurrency", 8, "how many machines are made at once; as many again are removed at once")
	flags.StringVar(&s.listen, "listen", "", "address for /healthz and /metrics, as 127.0.0.1:9090; off when empty ($PROVIDER_LISTEN)")
	flags.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error ($LOG_LEVEL)")
	flags.StringVar(&s.logFormat, "log-format", "console", "console or json")

	if s.program.Flags != nil {
		s.program.Flags(flags, &s.config)
	}
}

// load puts the settings together: defaults, then the file, then the environment, then the flags.
func (s *settings[C]) load(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	given := map[string]string{}

	variables := maps.Clone(environment)
	maps.Copy(variables, s.program.Env)

	for flag, variable := range variables {
		if value, ok := lookup(variable); ok && value != "" {
			given[flag] = value
		}
	}

	// A file given as a flag comes before a key in the environment.
	if flags.Changed("omni-service-account-key-file") && !flags.Changed("omni-service-account-key") {
		delete(given, "omni-service-account-key")
	}

	flags.Visit(func(flag *pflag.Flag) { given[flag.Name] = flag.Value.String() })

	if file := given["config-file"]; file != "" {
		if err := s.readConfigFile(file); err != nil {
			return err
		}
	}

	for _, flag := range slices.Sorted(maps.Keys(given)) {
		if err := flags.Set(flag, given[flag]); err != nil {
			return fmt.Errorf("set --%s from %s: %w", flag, variables[flag], err)
		}
	}

	return s.check()
}

// fileSettings is the part of the configuration file that all providers share.
type fileSettings struct {
	Omni struct {
		Endpoint           string `json:"endpoint" doc:"URL of Omni's API."`
		KeyFile            string `json:"service_account_key_file" doc:"File that holds the service account key."`
		InsecureSkipVerify bool   `json:"insecure_skip_verify" doc:"Do not verify Omni's TLS certificate." default:"false"`
	} `json:"omni" doc:"How to reach Omni."`
	Provider struct {
		ID          string `json:"id" doc:"The provider's id."`
		Name        string `json:"name" doc:"The provider's name in Omni."`
		Description string `json:"description" doc:"The provider's description in Omni."`
		Concurrency int    `json:"concurrency" doc:"How many machines are made at once." default:"8" min:"1" max:"256"`
	} `json:"provider" doc:"What the provider is to Omni."`
	ImageFactory string `json:"image_factory" doc:"URL of an image factory of one's own."`
}

// readConfigFile reads the configuration file. A key that nobody knows is an error. The key of the service account is not
// taken from it, since such files are shared and kept in version control.
func (s *settings[C]) readConfigFile(name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("read configuration file: %w", err)
	}

	var sections map[string]yaml.Node
	if err := yaml.Unmarshal(data, &sections); err != nil {
		return fmt.Errorf("read configuration file %q: %w", name, err)
	}

	if section, ok := sections[s.program.Name]; ok {
		text, err := yaml.Marshal(&section)
		if err != nil {
			return fmt.Errorf("read configuration file %q: %w", name, err)
		}

		if s.config, err = classdata.DecodeAs[C]("configuration", string(text)); err != nil {
			return fmt.Errorf("read configuration file %q, section %s: %w", name, s.program.Name, err)
		}

		delete(sections, s.program.Name)
	}

	text, err := yaml.Marshal(sections)
	if err != nil {
		return fmt.Errorf("read configuration file %q: %w", name, err)
	}

	file, err := classdata.DecodeAs[fileSettings]("configuration", string(text))
	if err != nil {
		return fmt.Errorf("read configuration file %q (besides section %s): %w", name, s.program.Name, err)
	}

	for _, set := range []struct {
		to   *string
		from string
	}{
		{&s.endpoint, file.Omni.Endpoint},
		{&s.keyFile, file.Omni.KeyFile},
		{&s.id, file.Provider.ID},
		{&s.name, file.Provider.Name},
		{&s.description, file.Provider.Description},
		{&s.factory, file.ImageFactory},
	} {
		if set.from != "" {
			*set.to = set.from
		}
	}

	s.insecure, s.concurrency = file.Omni.InsecureSkipVerify, file.Provider.Concurrency

	return nil
}

// check refuses settings that cannot work, each by the name of its flag.
func (s *settings[C]) check() error {
	if err := lifecycle.ValidateID(s.id); err != nil {
		return fmt.Errorf("--id: %w", err)
	}

	if s.endpoint == "" {
		return fmt.Errorf("--omni-api-endpoint or OMNI_ENDPOINT is required: the URL of Omni's API, as https://omni.example.org")
	}

	if err := checkURL("omni endpoint", s.endpoint, "https://omni.example.org", "http", "https", "grpc"); err != nil {
		return err
	}

	if s.factory != "" {
		if err := checkURL("image factory", s.factory, "https://factory.example.org", "http", "https"); err != nil {
			return err
		}
	}

	if s.concurrency < 1 || s.concurrency > 256 {
		return fmt.Errorf("--concurrency %d: want 1 to 256", s.concurrency)
	}

	if _, err := zapcore.ParseLevel(s.logLevel); err != nil {
		return fmt.Errorf("--log-level %q: want debug, info, warn or error", s.logLevel)
	}

	if s.logFormat != "console" && s.logFormat != "json" {
		return fmt.Errorf("--log-format %q: want console or json", s.logFormat)
	}

	return s.checkKey()
}

// checkURL refuses what is no URL, and one with a password: URLs are logged. No error quotes a password.
func checkURL(what, text, example string, schemes ...string) error {
	u, err := url.Parse(text)

	switch {
	case strings.Contains(text, "@"):
		return fmt.Errorf("%s: user and password cannot be part of its URL: want a URL as %s", what, example)
	case err != nil || u.Host == "" || !slices.Contains(schemes, u.Scheme):
		return fmt.Errorf("%s %q: want a URL as %s", what, text, example)
	default:
		return nil
	}
}

// checkKey reads the key and compares it with the id. No error quotes it.
func (s *settings[C]) checkKey() error {
	const want = "want the value that `omnictl infraprovider create` printed"

	if s.key == "" && s.keyFile != "" {
		data, err := os.ReadFile(s.keyFile)
		if err != nil {
			return fmt.Errorf("read service account key: %w", err)
		}

		s.key = string(data)
	}

	s.key = strings.TrimSpace(s.key)
	if s.key == "" {
		return fmt.Errorf("OMNI_SERVICE_ACCOUNT_KEY or --omni-service-account-key-file is required: %s", want)
	}

	account, err := serviceaccount.Decode(s.key)
	if err != nil {
		return fmt.Errorf("the service account key is damaged or incomplete: %s", want)
	}

	id, ok := strings.CutPrefix(account.Name, "infra-provider:")
	if !ok {
		return fmt.Errorf("the service account key is of account %q, which is no infra provider: %s", account.Name, want)
	}

	if id != s.id {
		return fmt.Errorf("the service account key is of provider %q, but the provider id is %q: set --id or PROVIDER_ID to %q, or use the other key", id, s.id, id)
	}

	return nil
}
