package main

import (
	"errors"
	"fmt"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/module"

	"github.com/omni-infra/omni-infra-providers/tools/imports"
)

// nameRule is a DNS label that begins with a letter, as names of Go packages and environment variables do.
var nameRule = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)

// reserved are names that the configuration file of every provider has for something else, and folders that Go treats in its
// own way.
var reserved = map[string]string{
	"omni":     "the configuration file has a section of that name already",
	"provider": "the configuration file has a section of that name already",
	"internal": "Go keeps packages below such a folder from everybody else",
	"vendor":   "Go takes such a folder for copies of other modules",
	"testdata": "Go does not look into such a folder",
}

func checkName(name string) error {
	switch why := reserved[name]; {
	case !nameRule.MatchString(name):
		return fmt.Errorf("name %q: want a DNS label: 1 to 63 of a-z, 0-9 and '-', beginning with a letter and not ending with '-'", name)
	case token.IsKeyword(name):
		return fmt.Errorf("name %q: it is a keyword of Go, and a package of that name could not be: choose another", name)
	case why != "":
		return fmt.Errorf("name %q: %s: choose another", name, why)
	case slices.Contains(imports.Vague, name):
		return fmt.Errorf("name %q: it says nothing: want the name of the cloud", name)
	default:
		return nil
	}
}

// checkPlace refuses a place that is taken, and half of the two flags for one outside.
func checkPlace(cfg config) error {
	switch {
	case cfg.Dir == "" && cfg.Module == "":
		return checkFree(filepath.Join(cfg.Root, "providers", cfg.Name))
	case cfg.Dir == "" || cfg.Module == "":
		return errors.New("--dir and --module go together: they say where a provider outside of this repository is and what its module is called")
	}

	if rel, err := filepath.Rel(cfg.Root, cfg.Dir); err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		return fmt.Errorf("--dir %q is inside of this repository, whose providers are in providers/NAME: leave --dir and --module away", cfg.Dir)
	}

	if err := module.CheckPath(cfg.Module); err != nil {
		return fmt.Errorf("--module %q: %w: want a module path as example.org/omni-%s", cfg.Module, err, cfg.Name)
	}

	if cfg.Module == imports.Root || strings.HasPrefix(cfg.Module, imports.Root+"/") {
		return fmt.Errorf("--module %q is a path of this repository: want one of your own as example.org/omni-%s", cfg.Module, cfg.Name)
	}

	return checkFree(cfg.Dir)
}

func checkFree(dir string) error {
	_, err := os.Lstat(dir)

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look for %q: %w", dir, err)
	default:
		return fmt.Errorf("%q exists: want a name that no provider has yet, or take the folder away first", dir)
	}
}
