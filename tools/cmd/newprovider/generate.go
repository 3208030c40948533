package main

import (
	"bytes"
	"embed"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/omni-infra/omni-infra-providers/tools/imports"
)

//go:embed templates
var templates embed.FS

// guide is the document that goes through the work on a new provider.
const guide = "shared/docs/new-provider.md"

// config says what to write.
type config struct {
	// Root is this repository.
	Root string
	// Name is the new provider's name.
	Name string
	// Dir and Module are the folder and the module path of a provider outside of Root; both are empty for one inside.
	Dir, Module string
}

func (c config) inside() bool { return c.Dir == "" }

// values are what the templates may use.
type values struct {
	Name, Binary, Env, Go string
	// Module is the path of the new module, the others are those of this repository.
	Module, Shared, Sim, Conformance string
	// Guide is where the guide to writing a provider is, as links take it.
	Guide  string
	Inside bool
}

// layout says where the templates go in the provider's folder.
func layout(v values) map[string]string {
	command, driver := "cmd/"+v.Binary, "internal/provider"

	files := map[string]string{
		"README.md.tmpl":     "README.md",
		"class.yaml.tmpl":    "deploy/class.yaml",
		"machines.yaml.tmpl": "deploy/machines.yaml",
		"main.go.tmpl":       command + "/main.go",
		"main_test.go.tmpl":  command + "/main_test.go",
	}

	for _, name := range []string{
		"driver.go", "cloud.go", "client.go", "classdata.go", "names.go", "mark.go", "phases.go", "find.go", "remove.go", "errors.go",
		"mark_test.go", "conformance_test.go", "fakecloud_test.go",
	} {
		files[name+".tmpl"] = driver + "/" + name
	}

	if v.Inside {
		files["Dockerfile.tmpl"] = "Dockerfile"
	}

	return files
}

// generate writes the provider and returns its folder. Either all of it is there afterwards, or nothing.
func generate(cfg config) (string, error) {
	if err := checkName(cfg.Name); err != nil {
		return "", err
	}

	if err := checkPlace(cfg); err != nil {
		return "", err
	}

	dir, path := cfg.Dir, cfg.Module
	if cfg.inside() {
		dir, path = filepath.Join(cfg.Root, "providers", cfg.Name), imports.Root+"/providers/"+cfg.Name
	}

	files, err := render(cfg, dir, path)
	if err != nil {
		return "", fmt.Errorf("prepare provider %q: %w", cfg.Name, err)
	}

	if err := write(cfg, dir, files); err != nil {
		return "", fmt.Errorf("write provider %q: %w", cfg.Name, err)
	}

	return dir, nil
}

// render returns the content of all files by their names.
func render(cfg config, dir, path string) (map[string][]byte, error) {
	version, err := goVersion(cfg.Root)
	if err != nil {
		return nil, err
	}

	v := values{
		Name: cfg.Name, Binary: "omni-infra-provider-" + cfg.Name, Env: strings.ToUpper(strings.ReplaceAll(cfg.Name, "-", "_")), Go: version,
		Module: path, Shared: imports.Root + "/shared", Sim: imports.Root + "/sim", Conformance: imports.Root + "/conformance",
		Guide: "https://" + imports.Root + "/blob/main/" + guide, Inside: cfg.inside(),
	}

	if v.Inside {
		v.Guide = "../../" + guide
	}

	all, err := template.ParseFS(templates, "templates/*.tmpl")
	if err != nil {
		return nil, err
	}

	files := map[string][]byte{}

	if files["go.mod"], files["go.sum"], err = moduleFiles(cfg, dir, path); err != nil {
		return nil, err
	}

	for from, to := range layout(v) {
		var out bytes.Buffer
		if err := all.ExecuteTemplate(&out, from, v); err != nil {
			return nil, err
		}

		files[to] = out.Bytes()

		if strings.HasSuffix(to, ".go") {
			if files[to], err = format.Source(out.Bytes()); err != nil {
				return nil, fmt.Errorf("format %q: %w", to, err)
			}
		}
	}

	return files, nil
}

// write puts the files into a folder beside dir, which is moved to its place when it is complete. go.work comes last.
func write(cfg config, dir string, files map[string][]byte) (err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}

	draft, err := os.MkdirTemp(filepath.Dir(dir), ".newprovider-")
	if err != nil {
		return err
	}

	defer os.RemoveAll(draft) //nolint:errcheck // it is gone when all went well

	if err := os.Chmod(draft, 0o755); err != nil {
		return err
	}

	for name, data := range files {
		if err := writeFile(filepath.Join(draft, name), data); err != nil {
			return err
		}
	}

	if !cfg.inside() {
		return os.Rename(draft, dir)
	}

	work := filepath.Join(cfg.Root, "go.work")

	data, err := workFile(work, "providers/"+cfg.Name)
	if err != nil {
		return err
	}

	next := work + ".new"
	if err := writeFile(next, data); err != nil {
		return err
	}

	defer os.Remove(next) //nolint:errcheck // it is gone when all went well

	if err := os.Rename(draft, dir); err != nil {
		return err
	}

	if err := os.Rename(next, work); err != nil {
		return cleanUp(dir, err)
	}

	return nil
}

// cleanUp takes a folder away for which there is no use without what failed.
func cleanUp(dir string, failed error) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("%w; %q is left: %w", failed, dir, err)
	}

	return failed
}

func writeFile(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}

	return os.WriteFile(name, data, 0o644)
}
