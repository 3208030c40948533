package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
)

// layers are the places where settings come from, all but Omni: they are read once. With each text from Omni the settings are
// put together from them anew. Later in this list wins: defaults, Omni, file, environment, flags.
type layers[C any] struct {
	program Program[C]
	// file is the configuration file's name, empty without one, and document what it says.
	file     string
	document *yaml.Node
	// given are the values of environment and flags, by the flag's name; variables says which variable stands for which flag.
	given     map[string]given
	variables map[string]string
	// local are the settings without Omni's part. Something may be missing there, but not what it takes to reach Omni.
	local *settings[C]
}

// given is the value of a flag, or its items.
type given struct {
	text  string
	items []string
}

// errIncomplete says that what a document must hold is missing. Another layer may have it.
var errIncomplete = errors.New("incomplete configuration")

// read reads what flags, environment and configuration file say. What is wrong with that no text from Omni can mend.
func (p Program[C]) read(flags *pflag.FlagSet, lookup func(string) (string, bool)) (*layers[C], error) {
	l := &layers[C]{program: p, given: map[string]given{}, variables: maps.Clone(environment)}
	maps.Copy(l.variables, p.Env)

	for flag, variable := range l.variables {
		if value, ok := lookup(variable); ok && value != "" && flags.Lookup(flag) != nil {
			l.given[flag] = given{text: value}
		}
	}

	// A file given as a flag comes before a key in the environment.
	if flags.Changed("omni-service-account-key-file") && !flags.Changed("omni-service-account-key") {
		delete(l.given, "omni-service-account-key")
	}

	flags.Visit(func(flag *pflag.Flag) {
		value := given{text: flag.Value.String()}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			value.items = list.GetSlice()
		}

		l.given[flag.Name] = value
	})

	if l.file = l.given["config-file"].text; l.file != "" {
		data, err := os.ReadFile(l.file)
		if err != nil {
			return nil, fmt.Errorf("read configuration file: %w", err)
		}

		if l.document, err = l.parse(data, false); err != nil {
			return nil, fmt.Errorf("read configuration file %q%w", l.file, err)
		}
	}

	var err error
	if l.local, err = l.settings(""); err != nil && !errors.Is(err, errIncomplete) {
		return nil, err
	}

	return l, nil
}

// settings puts the settings together. fromOmni is the text from Omni, empty when there is none. With an error that is
// errIncomplete it returns what there is.
func (l *layers[C]) settings(fromOmni string) (*settings[C], error) {
	document := l.document

	if fromOmni != "" {
		below, err := l.parseOmni(fromOmni)
		if err != nil {
			return nil, err
		}

		document = merge(below, document)
	}

	s := l.program.defaults()
	flags := pflag.NewFlagSet(l.program.Name, pflag.ContinueOnError)
	s.bind(flags, l.program)

	incomplete := s.decode(l.program, document)

	for _, name := range slices.Sorted(maps.Keys(l.given)) {
		// A command has flags that are no settings.
		flag := flags.Lookup(name)
		if flag == nil {
			continue
		}

		if err := l.given[name].set(flag); err != nil {
			return nil, fmt.Errorf("set --%s from %s: %w", name, l.variables[name], err)
		}
	}

	if err := s.check(); err != nil {
		return nil, err
	}

	if incomplete != nil {
		return s, fmt.Errorf("%w: %w", errIncomplete, incomplete)
	}

	return s, nil
}

func (g given) set(flag *pflag.Flag) error {
	if list, ok := flag.Value.(pflag.SliceValue); ok && g.items != nil {
		return list.Replace(g.items)
	}

	return flag.Value.Set(g.text)
}

// parseOmni reads the text from Omni, which has the form of the configuration file.
func (l *layers[C]) parseOmni(text string) (*yaml.Node, error) {
	var object map[string]json.RawMessage

	err := json.Unmarshal([]byte(text), &object)
	if err == nil && object == nil {
		err = errors.New("it is null")
	}

	if err != nil {
		return nil, fmt.Errorf(`annotation %s of the provider in Omni is not one JSON object, as {"provider":{"concurrency":4}}: %w`, ConfigAnnotation, err)
	}

	document, err := l.parse([]byte(text), true)
	if err != nil {
		return nil, fmt.Errorf("annotation %s of the provider in Omni%w", ConfigAnnotation, err)
	}

	return document, nil
}

// parse reads a document and checks it as far as that goes without the others. Its errors go on behind the document's name.
func (l *layers[C]) parse(data []byte, public bool) (*yaml.Node, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		// A password that begins with an asterisk looks like an alias, and would be quoted.
		if at, _, isAlias := strings.Cut(err.Error(), "unknown anchor"); isAlias {
			err = fmt.Errorf("%sanchors and aliases are not supported; put a text that begins with * in quotes", at)
		}

		return nil, fmt.Errorf(": %w", err)
	}

	if document.Kind == 0 {
		return nil, nil
	}

	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, errors.New(": want a mapping with the sections omni, provider and " + l.program.Name)
	}

	own, others, err := split(root, l.program.Name)
	if err != nil {
		return nil, fmt.Errorf(": %w", err)
	}

	if err := classdata.CheckPart[C]("configuration", own, public); err != nil {
		return nil, fmt.Errorf(", section %s: %w", l.program.Name, err)
	}

	if err := classdata.CheckPart[common]("configuration", others, public); err != nil {
		return nil, fmt.Errorf(" (besides section %s): %w", l.program.Name, err)
	}

	return root, nil
}

// decode takes the settings from a document, which may be nil.
func (s *settings[C]) decode(p Program[C], document *yaml.Node) error {
	own, others, err := split(document, p.Name)
	if err != nil {
		return err
	}

	if s.common, err = classdata.DecodeAs[common]("configuration", others); err != nil {
		return err
	}

	s.nameBy(p)

	if s.config, err = classdata.DecodeAs[C]("configuration", own); err != nil {
		return fmt.Errorf("section %s: %w", p.Name, err)
	}

	return nil
}

// split returns a section of a document, and the document without it.
func split(document *yaml.Node, section string) (own, others string, err error) {
	rest := &yaml.Node{Kind: yaml.MappingNode}

	if document != nil {
		for i := 0; i+1 < len(document.Content); i += 2 {
			key, value := document.Content[i], document.Content[i+1]

			if key.Value != section {
				rest.Content = append(rest.Content, key, value)

				continue
			}

			if own != "" {
				return "", "", fmt.Errorf("section %s is given twice", section)
			}

			text, err := yaml.Marshal(value)
			if err != nil {
				return "", "", fmt.Errorf("section %s: %w", section, err)
			}

			own = string(text)
		}
	}

	text, err := yaml.Marshal(rest)

	return own, string(text), err
}

// merge lays one document over another, key by key; either may be nil.
func merge(below, above *yaml.Node) *yaml.Node {
	switch {
	case below == nil:
		return above
	case above == nil:
		return below
	case below.Kind != yaml.MappingNode || above.Kind != yaml.MappingNode:
		return above
	}

	merged := *below
	merged.Content = slices.Clone(below.Content)

	for i := 0; i+1 < len(above.Content); i += 2 {
		key, value := above.Content[i], above.Content[i+1]

		at := -1

		for j := 0; j+1 < len(merged.Content); j += 2 {
			if merged.Content[j].Value == key.Value {
				at = j + 1
			}
		}

		if at < 0 {
			merged.Content = append(merged.Content, key, value)
		} else {
			merged.Content[at] = merge(merged.Content[at], value)
		}
	}

	return &merged
}
