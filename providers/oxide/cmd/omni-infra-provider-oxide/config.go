package main

import (
	"context"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/provider"
	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/rack"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/runner"
)

// config is the section "oxide" of the configuration file.
type config struct {
	Host               string   `json:"host" doc:"URL of the silo's API, as https://silo.sys.rack.example.org."`
	Token              string   `json:"token" doc:"API token; better in the environment or in a file of its own." secret:"true"`
	TokenFile          string   `json:"token_file" doc:"File that holds the API token. It is read again when the rack refuses the token." local:"true"`
	Profile            string   `json:"profile" doc:"Profile of Oxide's command line to use instead of host and token; its default profile if nothing at all is given." local:"true"`
	ConfigDir          string   `json:"config_dir" doc:"Folder of credentials.toml and config.toml; .config/oxide in the user's home if absent." local:"true"`
	CAFile             string   `json:"ca_file" doc:"File with the certificates, in PEM form, that are trusted beside the system's." local:"true"`
	InsecureSkipVerify bool     `json:"insecure_skip_verify" doc:"Do not verify the rack's TLS certificate." default:"false" local:"true"`
	Projects           []string `json:"projects" doc:"Names or ids of the projects that machine classes may use; all when there is none, which a viewer of the silo may list. What a project has that was taken out is looked after until it goes, if the token may list the projects." max:"100"`
	MaxCalls           int      `json:"max_calls" doc:"How many calls the rack gets at once." default:"8" min:"1" max:"64"`
	CallSeconds        int      `json:"call_seconds" doc:"How long one call may take." default:"60" min:"5" max:"600"`
	KeepImages         bool     `json:"keep_images" doc:"Keep boot images for good, though no machine uses them." default:"false"`
	ImageMaxAge        int      `json:"image_max_age_hours" doc:"For how many hours boot images that nothing uses stay on the rack." default:"24" min:"1" max:"8760"`
}

// environment has the variables of Oxide's own provider and command line, by flag.
var environment = map[string]string{
	"oxide-host":       "OXIDE_HOST",
	"oxide-token":      "OXIDE_TOKEN",
	"oxide-token-file": "OXIDE_TOKEN_FILE",
	"oxide-profile":    "OXIDE_PROFILE",
	"concurrency":      "PROVISIONER_CONCURRENCY",
}

// names are those of Oxide's own provider for flags of all providers here.
var names = map[string]string{
	"provider-id":             "id",
	"omni-endpoint":           "omni-api-endpoint",
	"provisioner-concurrency": "concurrency",
}

func flags(flags *pflag.FlagSet, c *config) {
	flags.StringVar(&c.Host, "oxide-host", c.Host, "URL of the silo's API, as https://silo.sys.rack.example.org ($OXIDE_HOST)")
	flags.StringVar(&c.Token, "oxide-token", "", "API token of the rack; better in the environment, where other users cannot see it ($OXIDE_TOKEN)")
	flags.StringVar(&c.TokenFile, "oxide-token-file", c.TokenFile, "file that holds the API token; it is read again when the rack refuses the token ($OXIDE_TOKEN_FILE)")
	flags.StringVar(&c.Profile, "oxide-profile", c.Profile, "profile of Oxide's command line to use instead of host and token ($OXIDE_PROFILE)")
	flags.StringVar(&c.ConfigDir, "oxide-config-dir", c.ConfigDir, "folder of credentials.toml and config.toml (default .config/oxide in the user's home)")
	flags.StringVar(&c.CAFile, "oxide-ca-file", c.CAFile, "file with the certificates that are trusted beside the system's")
	flags.BoolVar(&c.InsecureSkipVerify, "oxide-insecure-skip-verify", c.InsecureSkipVerify, "do not verify the rack's TLS certificate")
	flags.StringSliceVar(&c.Projects, "project", c.Projects, "project that machine classes may use, given once for each; all when not given")
	flags.IntVar(&c.MaxCalls, "max-calls", c.MaxCalls, "how many calls the rack gets at once")
	flags.BoolVar(&c.KeepImages, "keep-images", c.KeepImages, "keep boot images on the rack when no machine uses them")

	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if ours, ok := names[name]; ok {
			name = ours
		}

		return pflag.NormalizedName(name)
	})
}

func newDriver(_ context.Context, c config, log *zap.Logger) (driver.Driver, func() error, error) {
	client, err := rack.New(rack.Config{
		Credentials: rack.Credentials{Host: c.Host, Token: c.Token, TokenFile: c.TokenFile, Profile: c.Profile, ConfigDir: c.ConfigDir},
		CAFile:      c.CAFile, InsecureSkipVerify: c.InsecureSkipVerify,
		InFlight: c.MaxCalls, Timeout: time.Duration(c.CallSeconds) * time.Second,
		UserAgent: "omni-infra-provider-oxide/" + runner.Version(),
		Logger:    log,
	})
	if err != nil {
		return nil, nil, err
	}

	d := provider.New(provider.Config{
		Rack: client, Projects: c.Projects, KeepImages: c.KeepImages, ImageMaxAge: time.Duration(c.ImageMaxAge) * time.Hour,
		Version: runner.Version(), Logger: log,
	})

	return d, func() error {
		d.Close()
		client.Close()

		return nil
	}, nil
}
