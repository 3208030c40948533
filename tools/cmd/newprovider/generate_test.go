package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/tools/imports"
)

// repository returns the root of the repository that this test is part of.
func repository(t *testing.T) string {
	t.Helper()

	dir, err := os.Getwd()
	require.NoError(t, err)

	root, err := findRoot(dir)
	require.NoError(t, err)

	return root
}

// copied returns a copy of the repository's Go files and modules.
func copied(t *testing.T) string {
	t.Helper()

	root, to := repository(t), t.TempDir()

	require.NoError(t, filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata"):
			return fs.SkipDir
		case entry.IsDir(), !strings.HasSuffix(name, ".go") && !strings.HasPrefix(entry.Name(), "go."):
			return nil
		}

		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}

		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}

		return writeFile(filepath.Join(to, rel), data)
	}))

	return to
}

// tree returns the files below dir by their names.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()

	files := map[string]string{}

	require.NoError(t, filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}

		data, err := os.ReadFile(name)
		files[strings.TrimPrefix(name, dir+"/")] = string(data)

		return err
	}))

	return files
}

func TestNewProviderKeepsTheRulesOfTheRepository(t *testing.T) {
	root := copied(t)

	for _, name := range []string{"acme", "my-cloud2"} {
		dir, err := generate(config{Root: root, Name: name})
		require.NoError(t, err)
		require.Equal(t, filepath.Join(root, "providers", name), dir)
	}

	broken, err := imports.Check(os.DirFS(root))
	require.NoError(t, err)
	assert.Empty(t, broken, strings.Join(broken, "\n"))

	work, err := os.ReadFile(filepath.Join(root, "go.work"))
	require.NoError(t, err)
	assert.Contains(t, string(work), "\t./conformance\n\t./providers/acme\n\t./providers/kubevirt\n")
	assert.Contains(t, string(work), "\t./providers/my-cloud2\n")

	files := tree(t, filepath.Join(root, "providers", "my-cloud2"))
	assert.Contains(t, files["cmd/omni-infra-provider-my-cloud2/main.go"], `"MY_CLOUD2_ENDPOINT"`)
	assert.Contains(t, files["Dockerfile"], "COPY providers/my-cloud2 providers/my-cloud2")
	assert.Contains(t, files["deploy/class.yaml"], "providerid: my-cloud2")
	assert.Contains(t, files["README.md"], "(../../shared/docs/new-provider.md)")
	assert.Equal(t, tree(t, filepath.Join(root, pattern))["go.sum"], files["go.sum"])

	for name, text := range files {
		assert.NotContains(t, text, "<no value>", name)
		assert.NotContains(t, text, "{"+"{", name)
	}
}

// TestProviderOutsideHasTheSameSource lets the tests of a provider outside, which are quick to build, stand for those inside.
func TestProviderOutsideHasTheSameSource(t *testing.T) {
	root, out := copied(t), filepath.Join(t.TempDir(), "acme")

	inside, err := generate(config{Root: root, Name: "acme"})
	require.NoError(t, err)

	outside, err := generate(config{Root: root, Name: "acme", Dir: out, Module: "example.org/acme"})
	require.NoError(t, err)
	require.Equal(t, out, outside)

	a, b := tree(t, inside), tree(t, outside)

	for name, text := range a {
		if strings.HasSuffix(name, ".go") {
			assert.ElementsMatch(t, strings.Split(strings.ReplaceAll(text, imports.Root+"/providers/acme", "example.org/acme"), "\n"),
				strings.Split(b[name], "\n"), name)
		}
	}

	assert.NotContains(t, b, "Dockerfile")
	assert.Contains(t, b["README.md"], "(https://"+imports.Root+"/blob/main/"+guide+")")
	assert.Contains(t, b["go.mod"], "module example.org/acme\n")

	rel, err := filepath.Rel(out, filepath.Join(root, "shared"))
	require.NoError(t, err)
	assert.Contains(t, b["go.mod"], "replace "+imports.Root+"/shared => "+filepath.ToSlash(rel)+"\n")
}

func TestBadRequestsAreRefusedAndNothingIsWritten(t *testing.T) {
	root := copied(t)
	before := tree(t, root)
	outside := filepath.Join(t.TempDir(), "x")

	for name, tt := range map[string]struct {
		cfg  config
		want string
	}{
		"empty":              {config{}, `name "": want a DNS label`},
		"upper case":         {config{Name: "Acme"}, "want a DNS label"},
		"digit first":        {config{Name: "3par"}, "beginning with a letter"},
		"hyphen last":        {config{Name: "acme-"}, "not ending with '-'"},
		"path":               {config{Name: "../acme"}, "want a DNS label"},
		"too long":           {config{Name: strings.Repeat("a", 64)}, "1 to 63"},
		"keyword":            {config{Name: "range"}, "keyword of Go"},
		"section of runner":  {config{Name: "omni"}, "section of that name"},
		"folder of Go":       {config{Name: "internal"}, "choose another"},
		"vague":              {config{Name: "common"}, "says nothing"},
		"taken":              {config{Name: "libvirt"}, "exists"},
		"module alone":       {config{Name: "acme", Module: "example.org/acme"}, "go together"},
		"folder alone":       {config{Name: "acme", Dir: outside}, "go together"},
		"no module path":     {config{Name: "acme", Dir: outside, Module: "acme"}, `--module "acme"`},
		"our own module":     {config{Name: "acme", Dir: outside, Module: imports.Root + "/providers/acme"}, "path of this repository"},
		"inside after all":   {config{Name: "acme", Dir: filepath.Join(root, "acme"), Module: "example.org/acme"}, "inside of this repository"},
		"folder that exists": {config{Name: "acme", Dir: filepath.Dir(outside), Module: "example.org/acme"}, "exists"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.cfg.Root = root

			_, err := generate(tt.cfg)
			require.ErrorContains(t, err, tt.want)
		})
	}

	assert.Equal(t, before, tree(t, root))
	assert.NoDirExists(t, outside)
}

func TestFailureLeavesNothingHalfWritten(t *testing.T) {
	for name, tt := range map[string]struct {
		work  string
		files map[string][]byte
	}{
		"a file that cannot be written": {"go 1.26.4\n", map[string][]byte{"a": nil, "a/b": nil}},
		"a go.work that cannot be read": {"go 1.26.4\nuse (\n", map[string][]byte{"a": nil}},
		"no go.work":                    {"", map[string][]byte{"a": nil}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()

			if tt.work != "" {
				require.NoError(t, writeFile(filepath.Join(root, "go.work"), []byte(tt.work)))
			}

			before := tree(t, root)

			require.Error(t, write(config{Root: root, Name: "acme"}, filepath.Join(root, "providers", "acme"), tt.files))
			assert.Equal(t, before, tree(t, root))

			left, err := os.ReadDir(filepath.Join(root, "providers"))
			require.NoError(t, err)
			assert.Empty(t, left)
		})
	}
}

func TestCommandSaysWhereItHasToRun(t *testing.T) {
	t.Chdir(t.TempDir())

	cmd := command()
	cmd.SetArgs([]string{"acme"})
	require.ErrorContains(t, cmd.Execute(), "run this inside the repository")

	cmd.SetArgs([]string{})
	require.ErrorContains(t, cmd.Execute(), "want one name")

	var help bytes.Buffer

	cmd.SetArgs([]string{"--help"})
	cmd.SetOut(&help)
	require.NoError(t, cmd.Execute())
	assert.Contains(t, help.String(), "newprovider NAME")
	assert.Contains(t, help.String(), "--module")
}
