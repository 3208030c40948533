package runner

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"
)

func validateCommand[C any](p Program[C]) *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE",
		Short: "Check class data, or whole machine classes, before Omni has them.",
		Long: `Checks class data, which is the provider data of a machine class, as the provider will. FILE holds the class data alone, or
one or more machine classes or machine request sets in the form that "omnictl apply" takes, and may be - for standard input. What is
checked is said. It asks neither Omni nor the cloud.`,
		Example: fmt.Sprintf("  %[1]s validate class.yaml\n  omnictl get machineclass workers -o yaml | %[1]s validate -", p.binary()),
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := readFile(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}

			checked, err := p.validate(data)

			for _, what := range checked {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s: ok\n", args[0], what) //nolint:errcheck // the exit code tells
			}

			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}

			return nil
		},
	}
}

// mostInput bounds what is read from standard input.
const mostInput = 1 << 20

func readFile(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(io.LimitReader(stdin, mostInput))
	}

	return os.ReadFile(name)
}

// validate checks class data or resources that hold some, and returns what it was that is right.
func (p Program[C]) validate(data []byte) (checked []string, err error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))

	for {
		var document yaml.Node

		switch err := decoder.Decode(&document); {
		case errors.Is(err, io.EOF) && checked != nil:
			return checked, nil
		case err == nil && isResource(&document):
			what, err := p.validateResource(&document)
			if err != nil {
				return checked, err
			}

			checked = append(checked, what)
		case checked != nil:
			return checked, errors.New("a document behind the first is no resource of Omni: want metadata and spec")
		default:
			// Class data, or what is taken for it: its own check says what is wrong.
			if err := p.Validate(string(data)); err != nil {
				return nil, err
			}

			return []string{"class data"}, nil
		}
	}
}

// isResource reports whether a document has the form that omnictl takes.
func isResource(document *yaml.Node) bool {
	var keys struct {
		Metadata, Spec yaml.Node
	}

	return document.Decode(&keys) == nil && keys.Metadata.Kind == yaml.MappingNode && keys.Spec.Kind == yaml.MappingNode
}

func (p Program[C]) validateResource(document *yaml.Node) (what string, err error) {
	var decoded protobuf.YAMLResource
	if err := document.Decode(&decoded); err != nil {
		return "", fmt.Errorf("resource on line %d: %w", document.Line, err)
	}

	res := decoded.Resource()
	id := res.Metadata().ID()

	var provider, classData string

	switch res := res.(type) {
	case *omni.MachineClass:
		what = fmt.Sprintf("machine class %q", id)

		class := res.TypedSpec().Value.AutoProvision
		if class == nil {
			return "", fmt.Errorf("%s has no autoprovision: its machines come from no provider", what)
		}

		provider, classData = class.ProviderId, class.ProviderData
	case *omni.MachineRequestSet:
		what = fmt.Sprintf("machine request set %q", id)
		provider, classData = res.TypedSpec().Value.ProviderId, res.TypedSpec().Value.ProviderData
	default:
		return "", fmt.Errorf("%s %q holds no class data: want a machine class (type %s) or a machine request set (type %s)",
			res.Metadata().Type(), id, omni.MachineClassType, omni.MachineRequestSetType)
	}

	if provider == "" {
		return "", fmt.Errorf("%s: providerid is required: the id of the provider that makes its machines", what)
	}

	if err := p.Validate(classData); err != nil {
		return "", fmt.Errorf("%s, providerdata: %w", what, err)
	}

	return fmt.Sprintf("%s of provider %q", what, provider), nil
}
