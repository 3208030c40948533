package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

// remote is what the help of every command that asks Omni says.
const remote = `It reaches Omni with OMNI_ENDPOINT and OMNI_SERVICE_ACCOUNT_KEY, as the provider itself does, and works while the provider runs
elsewhere.`

// withOmni connects to Omni as the flags and the environment of a command say, and calls f.
func withOmni[C any](cmd *cobra.Command, p Program[C], f func(ctx context.Context, l *layers[C], st state.State) error) error {
	l, err := p.read(cmd.Flags(), os.LookupEnv)
	if err != nil {
		return err
	}

	log := zap.NewNop()

	omni, err := l.local.connect(log)
	if err != nil {
		return err
	}
	defer omni.Close() //nolint:errcheck // the process ends

	st := omni.Omni().State()

	if err := l.local.firstContact(cmd.Context(), st, log, commandPatience); err != nil {
		return err
	}

	return f(cmd.Context(), l, st)
}

// oneLine joins errors into one that fits into a line.
func oneLine(errs []error) error {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}

	if len(errs) == 0 {
		return nil
	}

	return errors.New(strings.Join(texts, "; "))
}

// plural counts things.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}

	return fmt.Sprintf("%d %ss", n, thing)
}
