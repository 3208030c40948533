package rack

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/oxidecomputer/oxide.go/oxide"
)

// Credentials say which rack it is and who calls. There are three ways: Host with Token, Host with TokenFile, or a profile of Oxide's
// own command line; the default profile if there is nothing at all.
type Credentials struct {
	// Host is the URL of the silo's API, as https://silo.sys.rack.example.org.
	Host string
	// Token is secret.
	Token string
	// TokenFile is a file that holds the token alone. It is read again when the rack refuses the token.
	TokenFile string
	// Profile names one in the file credentials.toml. It is read again when the rack refuses its token.
	Profile string
	// ConfigDir is where credentials.toml and config.toml are, by default .config/oxide in the user's home.
	ConfigDir string
}

// String hides the token from careless formatting.
func (c Credentials) String() string {
	return "[credentials for " + cmp.Or(c.Host, "profile "+c.Profile) + "]"
}

// GoString hides the token from careless formatting.
func (c Credentials) GoString() string { return c.String() }

// mostToken bounds a token file.
const mostToken = 4 << 10

func (c Credentials) fromFile() bool { return c.Token == "" }

// options are those of Oxide's client. Its own reading of the environment never comes into play.
func (c Credentials) options() ([]oxide.ClientOption, error) {
	direct := c.Host != "" || c.Token != "" || c.TokenFile != ""

	switch {
	case direct && c.Profile != "":
		return nil, errors.New("both a profile and a host or token of the rack are given: want --oxide-profile alone, or --oxide-host and a token")
	case c.Token != "" && c.TokenFile != "":
		return nil, errors.New("both OXIDE_TOKEN and a token file are given: want one of them")
	case direct && c.Host == "":
		return nil, errors.New("a token for the rack is given, but no host: want --oxide-host or OXIDE_HOST, as https://silo.sys.rack.example.org")
	case strings.Contains(c.Host, "@"):
		return nil, errors.New("oxide host: user and password cannot be part of its URL: want a URL as https://silo.sys.rack.example.org")
	case direct:
		token, err := c.token()
		if err != nil {
			return nil, err
		}

		return []oxide.ClientOption{oxide.WithHost(c.Host), oxide.WithToken(token)}, nil
	}

	options := []oxide.ClientOption{oxide.WithConfigDir(c.ConfigDir)}

	if c.ConfigDir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("find the profiles of Oxide's command line: %w; want --oxide-host and OXIDE_TOKEN instead", err)
		}

		c.ConfigDir = filepath.Join(home, ".config", "oxide")
	}

	if _, err := os.Stat(filepath.Join(c.ConfigDir, "credentials.toml")); err != nil {
		return nil, fmt.Errorf("no rack is given: want --oxide-host and OXIDE_TOKEN, or a profile of Oxide's command line (%w)", err)
	}

	if c.Profile == "" {
		return append(options, oxide.WithDefaultProfile()), nil
	}

	return append(options, oxide.WithProfile(c.Profile)), nil
}

func (c Credentials) token() (string, error) {
	if c.TokenFile == "" {
		if c.Token == "" {
			return "", errors.New("no token for the rack is given: want OXIDE_TOKEN in the environment, or --oxide-token-file")
		}

		return c.Token, nil
	}

	content, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return "", fmt.Errorf("read the token for the rack: %w", err)
	}

	token := strings.TrimSpace(string(content))

	if token == "" || len(token) > mostToken || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("read the token for the rack: %s does not hold a token and nothing else", c.TokenFile)
	}

	return token, nil
}

// explain says what is wrong without what the client's error quotes of the files: that may be the token.
func (c Credentials) explain(err error) error {
	if c.Host != "" {
		return fmt.Errorf("oxide host %q is no URL: want one as https://silo.sys.rack.example.org", c.Host)
	}

	where := cmp.Or(c.ConfigDir, "~/.config/oxide")

	switch text := err.Error(); {
	case strings.Contains(text, "profile not found"):
		return fmt.Errorf("%s has no profile %q: `oxide auth login` makes one", filepath.Join(where, "credentials.toml"), c.Profile)
	case strings.Contains(text, "default profile"):
		return fmt.Errorf("%s names no default profile: want --oxide-profile, or --oxide-host and OXIDE_TOKEN", filepath.Join(where, "config.toml"))
	default:
		return fmt.Errorf("the profile in %s cannot be used: want TOML with host and token of each profile, as `oxide auth login` writes it", where)
	}
}
