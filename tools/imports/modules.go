package imports

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// outside are modules that go.work leaves out.
var outside = []string{"tools/lint", "tools/kube/apiserver", "tools/kube/definitions"}

const outsideReason = "a foreign program's dependencies would raise versions in every module of the workspace"

// checkModules checks go.work and every go.mod: one Go version, the workspace's members, and that each module finds the
// others without go.work.
func checkModules(fsys fs.FS) ([]string, error) {
	data, err := fs.ReadFile(fsys, "go.work")
	if err != nil {
		return nil, err
	}

	work, err := modfile.ParseWork("go.work", data, nil)
	if err != nil {
		return nil, err
	}

	if work.Go == nil {
		return nil, errors.New("go.work has no go line")
	}

	var broken []string

	used := map[string]bool{}
	for _, use := range work.Use {
		used[path.Clean(use.Path)] = true
	}

	err = fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && skipped(name):
			return fs.SkipDir
		case path.Base(name) != "go.mod":
			return nil
		}

		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}

		mod, err := modfile.Parse(name, data, nil)
		if err != nil {
			return err
		}

		dir := path.Dir(name)
		broken = append(broken, checkModule(dir, mod, work.Go.Version)...)

		switch {
		case slices.Contains(outside, dir) && used[dir]:
			broken = append(broken, fmt.Sprintf("go.work uses %s: %s", dir, outsideReason))
		case !slices.Contains(outside, dir) && !used[dir]:
			broken = append(broken, fmt.Sprintf("go.work does not use %s: its code would go unchecked", dir))
		}

		return nil
	})

	return broken, err
}

func checkModule(dir string, mod *modfile.File, version string) []string {
	var broken []string

	if mod.Module == nil || mod.Module.Mod.Path != Root+"/"+dir {
		broken = append(broken, fmt.Sprintf("%s/go.mod: the module of this folder is %s/%s", dir, Root, dir))
	}

	if mod.Go == nil || mod.Go.Version != version {
		broken = append(broken, fmt.Sprintf("%s/go.mod: the go line is not %q as in go.work: one version builds everything", dir, version))
	}

	if mod.Toolchain != nil {
		broken = append(broken, dir+"/go.mod has a toolchain line: the go line says which version builds everything")
	}

	replaced := map[string]string{}
	for _, r := range mod.Replace {
		replaced[r.Old.Path] = r.New.Path
	}

	for _, r := range mod.Require {
		folder, ours := strings.CutPrefix(r.Mod.Path, Root+"/")
		if !ours {
			continue
		}

		want, err := filepath.Rel(dir, folder)
		if err != nil || replaced[r.Mod.Path] != filepath.ToSlash(want) {
			broken = append(broken, fmt.Sprintf("%s/go.mod: add `replace %s => %s`: without it the module does not build when GOWORK=off",
				dir, r.Mod.Path, filepath.ToSlash(want)))
		}

		if r.Mod.Version != "v0.0.0" {
			broken = append(broken, fmt.Sprintf("%s/go.mod requires %s %s: our own modules are v0.0.0 and replaced", dir, r.Mod.Path, r.Mod.Version))
		}
	}

	return broken
}
