// Package imports checks who may import whom in this repository, and that its modules build alone as they do in the
// workspace. Its test runs the checks on the repository itself; nothing else uses it.
package imports

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Root is the path that all modules of the repository share.
const Root = "github.com/omni-infra/omni-infra-providers"

// Rule says what the packages of one module may import of this repository besides their own module.
type Rule struct {
	// Module is the module's folder.
	Module string
	// May lists folders whose packages any file may import, and Tests those that only test files may, and packages for tests.
	// "*" stands for everything.
	May, Tests []string
	// Reason is why, for whoever breaks the rule.
	Reason string
}

// Rules is the import table. A provider that is not in it gets the rule of providers; any other module is refused.
var Rules = []Rule{
	{
		Module: "shared",
		Reason: "any provider can stand on the lifecycle library, so it stands on nothing of ours",
	},
	{
		Module: "sim",
		Reason: "a fake that shares code with its subject shares its bugs",
	},
	{
		Module: "conformance",
		May:    []string{"sim/omni", "sim/talos", "sim/talosapi", "sim/ledger"},
		Reason: "the suite judges any provider from outside, so it knows neither the library, a provider, nor one cloud's simulator",
	},
	{
		Module: "providers/memory",
		May:    []string{"shared", "sim"},
		Tests:  []string{"conformance"},
		Reason: "the reference provider is what one reads to write a provider: the library, and the simulated cloud it runs on",
	},
	{
		Module: "tools",
		May:    []string{"*"},
		Reason: "programs for the work on the code may use all of it; nothing may use them",
	},
}

// provider is the rule of a provider's module.
func provider(module string) Rule {
	return Rule{
		Module: module,
		May:    []string{"shared"},
		Tests:  []string{"sim", "conformance"},
		Reason: "a provider ships the library and its own cloud's client; simulators and other providers stay out of its binary",
	}
}

// Fence keeps a foreign module inside the folders that are there for it.
type Fence struct {
	// Import is a prefix of import paths.
	Import string
	// Only lists the folders and files that may import it.
	Only   []string
	Reason string
}

// Fences lists what must not spread.
var Fences = []Fence{
	{
		Import: "libvirt.org/",
		Only:   []string{"providers/libvirt", "sim/libvirt"},
		Reason: "it needs cgo, and only the libvirt provider and the simulation of libvirt should",
	},
	{
		Import: "github.com/siderolabs/omni/client/pkg/infra",
		Only:   []string{"shared", "sim/omni", "conformance", "providers/memory/internal/official", "providers/libvirt/internal/provider/officiallab_test.go"},
		Reason: "the official provider library is a reference to compare with, not something that providers build on",
	},
	{
		Import: "github.com/siderolabs/omni/client/pkg/omnictl",
		Only:   []string{"tools"},
		Reason: "omnictl brings hundreds of packages that no provider needs",
	},
}

// Vague are folder names that say nothing about what is inside.
var Vague = []string{"util", "utils", "common", "helper", "helpers", "misc", "pkg", "lib", "base"}

// Check returns a line for each rule that the repository in fsys breaks, naming the file, the rule and its reason. An error
// means that a file could not be read.
func Check(fsys fs.FS) ([]string, error) {
	var broken []string

	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && skipped(name):
			return fs.SkipDir
		case entry.IsDir() && slices.Contains(Vague, path.Base(name)):
			broken = append(broken, fmt.Sprintf("%s: a package is named after what it holds, and %q says nothing", name, path.Base(name)))
		case !entry.IsDir() && strings.HasSuffix(name, ".go"):
			found, err := checkFile(fsys, name)
			if err != nil {
				return err
			}

			broken = append(broken, found...)
		}

		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("walk the repository: %w", err)
	}

	modules, err := checkModules(fsys)

	return append(broken, modules...), err
}

// skipped reports whether the go command does not look into the folder either.
func skipped(dir string) bool {
	base := path.Base(dir)

	return base == "testdata" || base == "bin" && dir == base || dir != "." && (base[0] == '.' || base[0] == '_')
}

func checkFile(fsys fs.FS, name string) ([]string, error) {
	src, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, err
	}

	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
	if err != nil {
		return nil, fmt.Errorf("parse imports of %q: %w", name, err)
	}

	var broken []string

	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, fmt.Errorf("parse imports of %q: %w", name, err)
		}

		for _, fence := range Fences {
			if strings.HasPrefix(imported, fence.Import) && !within(name, fence.Only) {
				broken = append(broken, fmt.Sprintf("%s imports %s, which belongs in %s alone: %s",
					name, imported, strings.Join(fence.Only, ", "), fence.Reason))
			}
		}

		if folder, ours := strings.CutPrefix(imported, Root+"/"); ours {
			broken = append(broken, checkImport(name, folder)...)
		}
	}

	return broken, nil
}

func checkImport(file, folder string) []string {
	rule, ok := ruleOf(file)
	if !ok {
		return []string{file + " is in no module of the import table: add its module to Rules with a reason"}
	}

	allowed := append([]string{rule.Module}, rule.May...)

	if forTests(file) {
		allowed = append(allowed, rule.Tests...)
	} else if strings.HasSuffix(folder, "test") {
		return []string{fmt.Sprintf("%s imports %s, which is there for tests alone: it may import what no program ships", file, folder)}
	}

	if within(folder, allowed) {
		return nil
	}

	return []string{fmt.Sprintf("%s imports %s, but %s may import only %s: %s",
		file, folder, rule.Module, strings.Join(allowed, ", "), rule.Reason)}
}

// forTests says whether a file is a test or belongs to a package that only tests import, which has a name like httptest.
func forTests(file string) bool {
	return strings.HasSuffix(file, "_test.go") || strings.HasSuffix(path.Dir(file), "test")
}

func ruleOf(file string) (Rule, bool) {
	if i := slices.IndexFunc(Rules, func(r Rule) bool { return within(file, []string{r.Module}) }); i >= 0 {
		return Rules[i], true
	}

	parts := strings.Split(file, "/")
	if len(parts) > 2 && parts[0] == "providers" {
		return provider("providers/" + parts[1]), true
	}

	return Rule{}, false
}

// within reports whether name is one of the folders or lies in one.
func within(name string, folders []string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		return folder == "*" || name == folder || strings.HasPrefix(name, folder+"/")
	})
}
