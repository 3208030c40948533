// Command support-table writes the tables of what each provider does into the READMEs, from the committed reports of the conformance
// suite. It is run at the root of the repository.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := write("."); err != nil {
		fmt.Fprintf(os.Stderr, "support-table: %s\n", err)
		os.Exit(1)
	}
}

// write makes all tables of the repository at root anew.
func write(root string) error {
	reports, err := readReports(filepath.Join(root, reportsDir))
	if err != nil {
		return err
	}

	for _, t := range tables {
		path := filepath.Join(root, t.file)

		old, err := os.ReadFile(path)
		if err != nil {
			return err
		}

		text, err := t.insert(string(old), reports)
		if err != nil {
			return fmt.Errorf("%s: %w", t.file, err)
		}

		if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // for everybody to read
			return err
		}
	}

	return nil
}
