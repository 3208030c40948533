package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	snippet = regexp.MustCompile("(?s)```go ?([^\n]*)\n(.*?)```")
	link    = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)
)

// TestCodeInTheGuideIsPartOfTheNamedFile keeps what the guide shows from growing old: files are compiled and tested.
func TestCodeInTheGuideIsPartOfTheNamedFile(t *testing.T) {
	root := repository(t)

	text, err := os.ReadFile(filepath.Join(root, guide))
	require.NoError(t, err)

	snippets := snippet.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, snippets)
	require.Equal(t, strings.Count(string(text), "```"), 2*len(snippets), "a block of code in the guide is not of the form ```go FILE")

	for _, s := range snippets {
		file, code := s[1], s[2]

		source, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err, "a block of code in the guide names the file that it is from, after ```go")
		assert.Contains(t, string(source), code, "%s has changed: take the new text into the guide", file)
	}
}

func TestLinksOfTheGuideLeadSomewhere(t *testing.T) {
	root := repository(t)

	dir, err := generate(config{Root: copied(t), Name: "acme"})
	require.NoError(t, err)

	for from, name := range map[string]string{
		filepath.Join(root, "shared", "docs"):    filepath.Join(root, guide),
		filepath.Join(root, "providers", "acme"): filepath.Join(dir, "README.md"),
	} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)

		for _, l := range link.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(l[1], "://") {
				_, err := os.Stat(filepath.Join(from, l[1]))
				assert.NoError(t, err, name)
			}
		}
	}
}
