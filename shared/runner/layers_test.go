package runner

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// FuzzTextFromOmni proves that no text ends the program, and that none moves the provider to another Omni or becomes a secret.
func FuzzTextFromOmni(f *testing.F) {
	for _, text := range []string{
		``, `{}`, `null`, `[]`, `{"site":{"uri":"cloud:///x","pools":["a"]}}`, `{"site":null}`, `{"provider":{"concurrency":1e9}}`,
		`{"omni":{"endpoint":"https://x"}}`, `{"site":{"password":"canary"}}`, `{"site":{"a":1},"site":{}}`, `{"log":{"level":"debug"}}`,
		`{"site":{"uri":"\ud83d"}}`, strings.Repeat(`{"site":`, 200),
	} {
		f.Add(text)
	}

	p := siteProgram(&site{})
	flags := pflag.NewFlagSet("fuzz", pflag.ContinueOnError)
	p.defaults().bind(flags, p)
	require.NoError(f, flags.Parse([]string{"--omni-api-endpoint", "https://omni.test", "--omni-service-account-key", key(f, "infra-provider:site")}))

	l, err := p.read(flags, func(string) (string, bool) { return "", false })
	require.NoError(f, err)

	f.Fuzz(func(t *testing.T, text string) {
		s, err := l.settings(text)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")

			return
		}

		require.Equal(t, "https://omni.test", s.Omni.Endpoint)
		require.Equal(t, "site", s.Provider.ID)
		require.Empty(t, s.config.Password)
		require.Subset(t, leavesOf(s, p), l.overridden(text, s))
	})
}

func leavesOf(s *settings[siteConfig], p Program[siteConfig]) []string {
	var all []string
	for name := range s.flatten(p) {
		all = append(all, name)
	}

	return all
}

func TestErrorOfAConfigurationFileQuotesNoValueThatMayBeSecret(t *testing.T) {
	for name, text := range map[string]string{
		"like an alias":       "site: {password: *canary}",
		"like an anchor":      "site: {password: &canary x}",
		"like a tag":          "site: {password: !canary x}",
		"like a handle":       "site: {password: !canary!x y}",
		"like a directive":    "site:\n  password: %canary",
		"quote without end":   "site: {password: \"canary",
		"bad escape":          `site: {password: "\qcanary"}`,
		"mapping in a value":  "site:\n  password: ca: canary",
		"list":                "site: {password: [canary]}",
		"character not begun": "site: {password: @canary}",
	} {
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		p := siteProgram(&site{})
		p.defaults().bind(flags, p)
		require.NoError(t, flags.Parse([]string{"--config-file", write(t, text), "--omni-api-endpoint", "https://omni.test", "--omni-service-account-key", key(t, "infra-provider:site")}))

		_, err := p.read(flags, func(string) (string, bool) { return "", false })
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), "canary", name)
	}
}
