package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/modfile"

	"github.com/omni-infra/omni-infra-providers/tools/imports"
)

// pattern is the provider that a new one gets its versions from.
const pattern = "providers/memory"

// moduleFiles returns go.mod and go.sum of a module at dir which needs what the pattern needs.
func moduleFiles(cfg config, dir, path string) (mod, sum []byte, err error) {
	source := filepath.Join(cfg.Root, pattern)

	if sum, err = os.ReadFile(filepath.Join(source, "go.sum")); err != nil {
		return nil, nil, err
	}

	if mod, err = os.ReadFile(filepath.Join(source, "go.mod")); err != nil {
		return nil, nil, err
	}

	file, err := modfile.Parse(filepath.Join(source, "go.mod"), mod, nil)
	if err != nil {
		return nil, nil, err
	}

	if err := file.AddModuleStmt(path); err != nil {
		return nil, nil, err
	}

	for _, r := range file.Replace {
		folder, ours := strings.CutPrefix(r.Old.Path, imports.Root+"/")
		if !ours {
			continue
		}

		to, err := filepath.Rel(dir, filepath.Join(cfg.Root, folder))
		if err != nil {
			return nil, nil, fmt.Errorf("find the way from %q to %q: %w", dir, cfg.Root, err)
		}

		if err := file.AddReplace(r.Old.Path, "", filepath.ToSlash(to), ""); err != nil {
			return nil, nil, err
		}
	}

	mod, err = file.Format()

	return mod, sum, err
}

// workFile returns the repository's go.work with one module more.
func workFile(name, folder string) ([]byte, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}

	file, err := modfile.ParseWork(name, data, nil)
	if err != nil {
		return nil, err
	}

	if err := file.AddUse("./"+folder, ""); err != nil {
		return nil, fmt.Errorf("add %q to %q: %w", folder, name, err)
	}

	file.SortBlocks()
	file.Cleanup()

	return modfile.Format(file.Syntax), nil
}

// goVersion is the version that all modules of the workspace are built with.
func goVersion(root string) (string, error) {
	name := filepath.Join(root, "go.work")

	data, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}

	file, err := modfile.ParseWork(name, data, nil)
	if err != nil {
		return "", err
	}

	if file.Go == nil {
		return "", fmt.Errorf("read %q: it has no go line", name)
	}

	return file.Go.Version, nil
}
