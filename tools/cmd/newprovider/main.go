// Command newprovider writes the beginnings of an infra provider: a module that compiles, with a driver whose missing methods the
// conformance suite names one after the other.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func main() {
	cmd := command()

	if err := cmd.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

const about = `newprovider writes providers/NAME, the beginnings of an infra provider for Omni on the lifecycle library:

  - a module that compiles, vets and lints, and a line for it in go.work,
  - a driver: class data, names and the ownership mark are there; the phases, Find, List and Remove
    answer "not implemented yet" with what they have to do,
  - a cloud in memory for its tests, and a conformance test that fails where the driver is not done,
  - a program with flags, health and metrics, a Dockerfile, a machine class, and a README that says what to do in which order.

NAME is the cloud's name, a DNS label: the program will be omni-infra-provider-NAME. Nothing is downloaded: the versions of
all modules are those of providers/memory. When anything fails nothing is written.

With --dir and --module the provider lives in a repository of its own. Its go.mod then finds the library by a replace line with
the path of this checkout, since the library's modules have no published versions yet. It gets no Dockerfile, which would have to
copy the checkout, and nothing here builds or tests it.`

func command() *cobra.Command {
	var cfg config

	cmd := &cobra.Command{
		Use:   "newprovider NAME",
		Short: "Write the beginnings of an infra provider.",
		Long:  about,
		Example: `  go run ./tools/cmd/newprovider oxide
  go test ./providers/oxide/... -run 'TestConformance/^provision$'

  go run ./tools/cmd/newprovider acme --dir ../omni-acme --module example.org/omni-acme`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("want one name, that of the cloud, and got %d: newprovider NAME", len(args))
			}

			return nil
		},
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			work, err := os.Getwd()
			if err != nil {
				return err
			}

			if cfg.Root, err = findRoot(work); err != nil {
				return err
			}

			if cfg.Dir != "" {
				if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
					return err
				}
			}

			cfg.Name = args[0]

			dir, err := generate(cfg)
			if err != nil {
				return err
			}

			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is written. Go on with its README.md; this shows what is missing:\n\n  cd %s && go test ./... -run 'TestConformance/^provision$'\n", dir, dir)

			return err
		},
	}

	cmd.Flags().StringVar(&cfg.Dir, "dir", "", "where to write a provider that lives outside of this repository; --module is needed too")
	cmd.Flags().StringVar(&cfg.Module, "module", "", "module path of such a provider")
	cmd.CompletionOptions.DisableDefaultCmd = true

	return cmd
}

// findRoot returns the folder with this repository's go.work, in dir or above it.
func findRoot(dir string) (string, error) {
	for at := dir; ; at = filepath.Dir(at) {
		if isFile(filepath.Join(at, "go.work")) && isFile(filepath.Join(at, pattern, "go.mod")) {
			return at, nil
		}

		if at == filepath.Dir(at) {
			return "", fmt.Errorf("find the repository: neither %q nor a folder above it has go.work and %s/go.mod: run this inside the repository", dir, pattern)
		}
	}
}

func isFile(name string) bool {
	info, err := os.Stat(name)

	return err == nil && info.Mode().IsRegular()
}
