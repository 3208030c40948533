package validation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
	"sigs.k8s.io/yaml"
)

// providerData checks data for a provider with the schema that the provider has published.
func providerData(ctx context.Context, st state.State, provider, data string) []error {
	status, err := safe.StateGetByID[*infra.ProviderStatus](ctx, st, provider)
	if err != nil {
		return []error{fmt.Errorf("failed to get provider: %w", err)}
	}

	if _, static := status.Metadata().Labels().Get(omni.LabelIsStaticInfraProvider); static {
		return []error{errors.New("cannot use static provider in the auto-provisioned machine class")}
	}

	if status.TypedSpec().Value.Schema == "" {
		return nil
	}

	return withSchema(status.TypedSpec().Value.Schema, data)
}

// withSchema checks a YAML document with a JSON schema.
func withSchema(schema, data string) []error {
	const name = "schema.json"

	parsed, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	if err != nil {
		return []error{fmt.Errorf("parse the provider's schema: %w", err)}
	}

	compiler := jsonschema.NewCompiler()
	if err = compiler.AddResource(name, parsed); err != nil {
		return []error{fmt.Errorf("load the provider's schema: %w", err)}
	}

	compiled, err := compiler.Compile(name)
	if err != nil {
		return []error{fmt.Errorf("compile the provider's schema: %w", err)}
	}

	asJSON, err := yaml.YAMLToJSON([]byte(cmp.Or(strings.TrimSpace(data), "{}")))
	if err != nil {
		return []error{fmt.Errorf("parse provider data: %w", err)}
	}

	document, err := jsonschema.UnmarshalJSON(strings.NewReader(string(asJSON)))
	if err != nil {
		return []error{fmt.Errorf("parse provider data: %w", err)}
	}

	err = compiled.Validate(document)
	if err == nil {
		return nil
	}

	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return []error{err}
	}

	lines := leaves(invalid)
	slices.Sort(lines)

	return []error{errors.New(strings.Join(lines, "\n"))}
}

// leaves returns what is wrong in words, a line for each place.
func leaves(invalid *jsonschema.ValidationError) []string {
	if len(invalid.Causes) == 0 {
		return []string{fmt.Sprintf("- config value %q: %s", "."+strings.Join(invalid.InstanceLocation, "."), words(invalid.ErrorKind))}
	}

	var lines []string
	for _, cause := range invalid.Causes {
		lines = append(lines, leaves(cause)...)
	}

	return lines
}

var english = message.NewPrinter(language.English)

func words(what jsonschema.ErrorKind) string {
	if unknown, ok := what.(*kind.AdditionalProperties); ok {
		return "has unknown properties: " + strings.Join(slices.Sorted(slices.Values(unknown.Properties)), ", ")
	}

	return what.LocalizedString(english)
}
