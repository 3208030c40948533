package imports

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRepositoryKeepsItsRules(t *testing.T) {
	t.Parallel()

	broken, err := Check(os.DirFS("../.."))
	require.NoError(t, err)
	assert.Empty(t, broken, "broken rules:\n"+strings.Join(broken, "\n"))
}

// tidy is a small repository that keeps every rule.
func tidy() fstest.MapFS {
	repo := fstest.MapFS{"go.work": file("go 1.26.4\nuse (\n\t./shared\n\t./sim\n\t./providers/libvirt\n)\n")}

	repo["shared/go.mod"] = file("module " + Root + "/shared\ngo 1.26.4\n")
	repo["shared/driver/driver.go"] = file("package driver\n")
	repo["sim/go.mod"] = file("module " + Root + "/sim\ngo 1.26.4\n")
	repo["sim/omni/omni.go"] = imports("github.com/siderolabs/omni/client/pkg/infra")
	repo["providers/libvirt/go.mod"] = file("module " + Root + "/providers/libvirt\ngo 1.26.4\n" +
		"require " + Root + "/shared v0.0.0\nreplace " + Root + "/shared => ../../shared\n")
	repo["providers/libvirt/driver.go"] = imports(Root+"/shared/driver", "libvirt.org/go/libvirt")
	repo["providers/libvirt/driver_test.go"] = imports(Root + "/sim/omni")
	repo["providers/libvirt/internal/connectiontest/adapter.go"] = imports(Root + "/sim/libvirt")
	repo["providers/libvirt/internal/connection/x_test.go"] = imports(Root + "/providers/libvirt/internal/connectiontest")
	repo["providers/libvirt/testdata/broken.go"] = file("not Go")
	repo["tools/lint/go.mod"] = file("module " + Root + "/tools/lint\ngo 1.26.4\n")

	return repo
}

func TestBrokenRuleIsFoundAndExplained(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		name, path string
		file       *fstest.MapFile
		want       []string
	}{
		{
			"a simulator imports the library", "sim/libvirt/server.go", imports(Root + "/shared/driver"),
			[]string{"sim/libvirt/server.go imports shared/driver", "shares its bugs"},
		},
		{
			"a simulator's test imports the library", "sim/omni/omni_test.go", imports(Root + "/shared/lifecycle"),
			[]string{"sim/omni/omni_test.go imports shared/lifecycle", "shares its bugs"},
		},
		{
			"the library imports a provider", "shared/runner/main.go", imports(Root + "/providers/libvirt"),
			[]string{"shared/runner/main.go imports providers/libvirt", "stands on nothing of ours"},
		},
		{
			"a provider ships a simulator", "providers/libvirt/fake.go", imports(Root + "/sim/omni"),
			[]string{"providers/libvirt/fake.go imports sim/omni", "stay out of its binary"},
		},
		{
			"a provider ships what is for its tests", "providers/libvirt/x.go", imports(Root + "/providers/libvirt/internal/connectiontest"),
			[]string{"providers/libvirt/x.go imports providers/libvirt/internal/connectiontest", "for tests alone"},
		},
		{
			"a provider's test imports another provider", "providers/libvirt/x_test.go", imports(Root + "/providers/memory"),
			[]string{"providers/libvirt/x_test.go imports providers/memory"},
		},
		{
			"conformance knows a cloud", "conformance/case.go", imports(Root + "/sim/memory"),
			[]string{"conformance/case.go imports sim/memory", "judges any provider from outside"},
		},
		{
			"something imports the tools", "providers/memory/x.go", imports(Root + "/tools/story"),
			[]string{"providers/memory/x.go imports tools/story"},
		},
		{
			"a folder's name begins like an allowed one", "conformance/x.go", imports(Root + "/sim/omnibus"),
			[]string{"conformance/x.go imports sim/omnibus"},
		},
		{
			"cgo spreads", "shared/lifecycle/x.go", imports("libvirt.org/go/libvirtxml"),
			[]string{"libvirt.org/go/libvirtxml", "needs cgo"},
		},
		{
			"an unknown module", "extra/x.go", imports(Root + "/shared/driver"),
			[]string{"extra/x.go is in no module of the import table"},
		},
		{
			"a vague name", "shared/internal/util/x.go", file("package util\n"),
			[]string{"shared/internal/util", "says nothing"},
		},
		{
			"another Go version", "sim/go.mod", file("module " + Root + "/sim\ngo 1.27.0\n"),
			[]string{"sim/go.mod", `"1.26.4"`, "one version"},
		},
		{
			"a toolchain line", "sim/go.mod", file("module " + Root + "/sim\ngo 1.26.4\ntoolchain go1.26.8\n"),
			[]string{"sim/go.mod has a toolchain line"},
		},
		{
			"a missing replace", "sim/go.mod", file("module " + Root + "/sim\ngo 1.26.4\nrequire " + Root + "/shared v0.0.0\n"),
			[]string{"sim/go.mod", "replace " + Root + "/shared => ../shared", "GOWORK=off"},
		},
		{
			"a published version of our own", "providers/libvirt/go.mod", file("module " + Root + "/providers/libvirt\ngo 1.26.4\n" +
				"require " + Root + "/shared v1.0.0\nreplace " + Root + "/shared => ../../shared\n"),
			[]string{"providers/libvirt/go.mod requires " + Root + "/shared v1.0.0"},
		},
		{
			"a module that go.work forgets", "providers/oxide/go.mod", file("module " + Root + "/providers/oxide\ngo 1.26.4\n"),
			[]string{"go.work does not use providers/oxide"},
		},
		{
			"the linter joins the workspace", "go.work",
			file("go 1.26.4\nuse (\n\t./shared\n\t./sim\n\t./providers/libvirt\n\t./tools/lint\n)\n"),
			[]string{"go.work uses tools/lint", "raise versions"},
		},
		{
			"a module of another name", "sim/go.mod", file("module example.org/sim\ngo 1.26.4\n"),
			[]string{"sim/go.mod: the module of this folder is " + Root + "/sim"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			repo := tidy()
			repo[tt.path] = tt.file

			broken, err := Check(repo)
			require.NoError(t, err)
			require.Len(t, broken, 1)

			for _, want := range tt.want {
				assert.Contains(t, broken[0], want)
			}
		})
	}
}

func TestTidyRepositoryBreaksNothing(t *testing.T) {
	t.Parallel()

	broken, err := Check(tidy())
	require.NoError(t, err)
	assert.Empty(t, broken)
}

func TestUnreadableFileIsAnError(t *testing.T) {
	t.Parallel()

	repo := tidy()
	repo["sim/omni/half.go"] = file("package omni\nimport (")

	_, err := Check(repo)
	require.ErrorContains(t, err, "sim/omni/half.go")
}

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

// imports returns a Go file that imports the given paths.
func imports(paths ...string) *fstest.MapFile {
	return file("package p\nimport (\n\t\"" + strings.Join(paths, "\"\n\t\"") + "\"\n)\n")
}
