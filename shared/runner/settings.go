package runner

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

// common is what every provider is told, in the form that it has in a configuration file. What is local cannot come from Omni.
type common struct {
	Omni struct {
		Endpoint           string `json:"endpoint" doc:"URL of Omni's API."`
		KeyFile            string `json:"service_account_key_file" doc:"File that holds the service account key."`
		InsecureSkipVerify bool   `json:"insecure_skip_verify" doc:"Do not verify Omni's TLS certificate." default:"false"`
	} `json:"omni" doc:"How to reach Omni." local:"true"`
	Provider struct {
		ID           string   `json:"id" doc:"The provider's id." local:"true"`
		Name         string   `json:"name" doc:"The provider's name in Omni."`
		Description  string   `json:"description" doc:"The provider's description in Omni."`
		Concurrency  int      `json:"concurrency" doc:"How many machines are made at once, at each place." default:"8" min:"1" max:"256"`
		Sweep        string   `json:"sweep" doc:"What is done about what is left over in the cloud." default:"report" enum:"report,remove,off"`
		LeaseSeconds int      `json:"lease_seconds" doc:"How long the provider goes on when it cannot reach Omni; another process takes over after a fifth more." default:"30" min:"5" max:"600"`
		GonePlaces   []string `json:"gone_places" doc:"Places of the cloud that will not come back: their machines are given up, not removed."`
	} `json:"provider" doc:"What the provider is to Omni."`
	ImageFactory string `json:"image_factory" doc:"URL of an image factory of one's own."`
	Listen       string `json:"listen" doc:"Address for /healthz and /metrics; off when empty."`
	Log          struct {
		Level  string `json:"level" doc:"How much is logged." default:"info" enum:"debug,info,warn,error"`
		Format string `json:"format" doc:"How it is logged." default:"console" enum:"console,json" local:"true"`
	} `json:"log" doc:"The provider's log."`
}

// settings is everything that a provider's program is told.
type settings[C any] struct {
	common

	// config is the provider's own part.
	config C
	// key is the service account key. It comes from no document.
	key string
}

// defaults returns the settings of a program that is told nothing.
func (p Program[C]) defaults() *settings[C] {
	s := &settings[C]{}

	// What a provider requires has no default; where it is missing is found when all layers are known.
	if config, err := classdata.Decode[C](""); err == nil {
		s.config = config
	}

	if common, err := classdata.Decode[common](""); err == nil {
		s.common = common
	}

	s.nameBy(p)

	return s
}

// nameBy fills in the names that follow from the program.
func (s *settings[C]) nameBy(p Program[C]) {
	s.Provider.ID = cmp.Or(s.Provider.ID, p.Name)
	s.Provider.Name = cmp.Or(s.Provider.Name, p.Title)
	s.Provider.Description = cmp.Or(s.Provider.Description, p.Description)
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
	"lease-duration":           "PROVIDER_LEASE_DURATION",
	"listen":                   "PROVIDER_LISTEN",
	"log-level":                "LOG_LEVEL",
}

// bindOmni declares the flags that say how to reach Omni. No default is taken from the environment: --help would print it, the
// key included.
func (s *settings[C]) bindOmni(flags *pflag.FlagSet) {
	flags.SortFlags = false

	flags.StringVar(&s.Omni.Endpoint, "omni-api-endpoint", s.Omni.Endpoint, "URL of Omni's API, as https://omni.example.org ($OMNI_ENDPOINT)")
	flags.StringVar(&s.key, "omni-service-account-key", "", "the provider's service account key; better in the environment, where other users cannot see it ($OMNI_SERVICE_ACCOUNT_KEY)")
	flags.StringVar(&s.Omni.KeyFile, "omni-service-account-key-file", s.Omni.KeyFile, "file that holds the service account key")
	flags.BoolVar(&s.Omni.InsecureSkipVerify, "insecure-skip-verify", s.Omni.InsecureSkipVerify, "do not verify Omni's TLS certificate")
	flags.StringVar(&s.Provider.ID, "id", s.Provider.ID, "the provider's id, as Omni knows it ($PROVIDER_ID)")
	flags.String("config-file", "", "configuration file in YAML ($PROVIDER_CONFIG_FILE)")
}

// bind declares all flags.
func (s *settings[C]) bind(flags *pflag.FlagSet, p Program[C]) {
	s.bindOmni(flags)

	flags.StringVar(&s.Provider.Name, "provider-name", s.Provider.Name, "the provider's name in Omni ($PROVIDER_NAME)")
	flags.StringVar(&s.Provider.Description, "provider-description", s.Provider.Description, "the provider's description in Omni ($PROVIDER_DESCRIPTION)")
	flags.StringVar(&s.ImageFactory, "image-factory", s.ImageFactory, "URL of an image factory of your own, for schematics and images; by default the one that Omni uses ($IMAGE_FACTORY_URL)")
	flags.IntVar(&s.Provider.Concurrency, "concurrency", s.Provider.Concurrency, "how many machines are made at once, at each place of a cloud that has several; as many again are removed at once")
	flags.StringVar(&s.Provider.Sweep, "sweep", s.Provider.Sweep, "what is done about what has been left over in the cloud for an hour: report, remove or off")
	flags.StringSliceVar(&s.Provider.GonePlaces, "gone-places", s.Provider.GonePlaces, "places of the cloud that will not come back, separated by commas: their machines are given up, not removed")
	flags.Var((*seconds)(&s.Provider.LeaseSeconds), "lease-duration", "how long the provider goes on when it cannot reach Omni; another process takes over after a fifth more ($PROVIDER_LEASE_DURATION)")
	flags.StringVar(&s.Listen, "listen", s.Listen, "address for /healthz and /metrics, as 127.0.0.1:9090; off when empty ($PROVIDER_LISTEN)")
	flags.StringVar(&s.Log.Level, "log-level", s.Log.Level, "debug, info, warn or error ($LOG_LEVEL)")
	flags.StringVar(&s.Log.Format, "log-format", s.Log.Format, "console or json")

	if p.Flags != nil {
		p.Flags(flags, &s.config)
	}
}

// check refuses settings that cannot work, each by the name of its flag.
func (s *settings[C]) check() error {
	if err := lifecycle.ValidateID(s.Provider.ID); err != nil {
		return fmt.Errorf("--id: %w", err)
	}

	if s.Omni.Endpoint == "" {
		return fmt.Errorf("--omni-api-endpoint or OMNI_ENDPOINT is required: the URL of Omni's API, as https://omni.example.org")
	}

	if err := checkURL("omni endpoint", s.Omni.Endpoint, "https://omni.example.org", "http", "https", "grpc"); err != nil {
		return err
	}

	if s.ImageFactory != "" {
		if err := checkURL("image factory", s.ImageFactory, "https://factory.example.org", "http", "https"); err != nil {
			return err
		}
	}

	if s.Provider.Concurrency < 1 || s.Provider.Concurrency > 256 {
		return fmt.Errorf("--concurrency %d: want 1 to 256", s.Provider.Concurrency)
	}

	if s.Provider.LeaseSeconds < 5 || s.Provider.LeaseSeconds > 600 {
		return fmt.Errorf("--lease-duration %s: want 5s to 10m", (*seconds)(&s.Provider.LeaseSeconds))
	}

	if modes := []lifecycle.SweepMode{lifecycle.SweepTell, lifecycle.SweepRemove, lifecycle.SweepOff}; !slices.Contains(modes, lifecycle.SweepMode(s.Provider.Sweep)) {
		return fmt.Errorf("--sweep %q: want report, remove or off", s.Provider.Sweep)
	}

	if _, err := zapcore.ParseLevel(s.Log.Level); err != nil {
		return fmt.Errorf("--log-level %q: want debug, info, warn or error", s.Log.Level)
	}

	if s.Log.Format != "console" && s.Log.Format != "json" {
		return fmt.Errorf("--log-format %q: want console or json", s.Log.Format)
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

// seconds is a flag for a duration that documents give in whole seconds.
type seconds int

func (s *seconds) String() string { return (time.Duration(*s) * time.Second).String() }

func (s *seconds) Type() string { return "duration" }

func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d%time.Second != 0 {
		return fmt.Errorf("%q: want whole seconds, as 30s", text)
	}

	*s = seconds(d / time.Second)

	return nil
}
