package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/runner"
)

// TestProviderIsConfiguredWithOmnictl does what the documents say: an administrator labels the provider and sets the annotation,
// and the provider, with its own key, sees that and every change.
func TestProviderIsConfiguredWithOmnictl(t *testing.T) {
	s := serve(t)
	c := s.provider(s.omnictl("infraprovider", "create", "fakecloud"))
	provider := infra.NewProvider("fakecloud").Metadata()

	_, err := c.Omni().State().Get(t.Context(), provider)
	require.True(t, state.IsNotFoundError(err), "without its label the provider does not see it: %v", err)

	events := make(chan state.Event)
	require.NoError(t, c.Omni().State().Watch(t.Context(), provider, events))

	// seen returns the annotation of the next event.
	seen := func() string {
		for {
			select {
			case event := <-events:
				require.NoError(t, event.Error)

				return event.Resource.Metadata().Annotations().Raw()[runner.ConfigAnnotation]
			case <-time.After(time.Minute):
				require.Fail(t, "the provider is told of nothing")
			}
		}
	}

	document := strings.Join([]string{
		"metadata:",
		"  namespace: infra-provider",
		"  type: InfraProviders.omni.sidero.dev",
		"  id: fakecloud",
		"  labels:",
		"    " + omni.LabelInfraProviderID + ": fakecloud",
		"  annotations:",
		"    " + runner.ConfigAnnotation + `: '{"provider":{"concurrency":4}}'`,
		"spec: {}",
		"",
	}, "\n")

	s.omnictl("apply", "-f", s.write(document))
	assert.Equal(t, `{"provider":{"concurrency":4}}`, seen())

	res, err := c.Omni().State().Get(t.Context(), provider)
	require.NoError(t, err)
	assert.Equal(t, `{"provider":{"concurrency":4}}`, res.Metadata().Annotations().Raw()[runner.ConfigAnnotation])

	out := s.omnictl("get", "infraprovider", "fakecloud", "-o", "yaml")
	assert.Contains(t, out, runner.ConfigAnnotation+`: '{"provider":{"concurrency":4}}'`)

	editor := filepath.Join(t.TempDir(), "editor")
	require.NoError(t, os.WriteFile(editor, []byte("#!/bin/sh\nexec sed -i 's/\"concurrency\":4/\"concurrency\":16/' \"$1\"\n"), 0o700)) //nolint:gosec // it is run
	t.Setenv("OMNI_EDITOR", editor)

	s.omnictl("edit", "infraprovider", "fakecloud")

	for seen() != `{"provider":{"concurrency":16}}` {
	}

	s.omnictl("apply", "-f", s.write(strings.Replace(document, `'{"provider":{"concurrency":4}}'`, `'{"log":{"level":"debug"}}'`, 1)))

	for seen() != `{"log":{"level":"debug"}}` {
	}

	// Omni's own hold on the provider comes back after each apply.
	require.Eventually(t, func() bool {
		return strings.Contains(s.omnictl("get", "infraprovider", "fakecloud", "-o", "yaml"), "finalizers")
	}, time.Minute, 200*time.Millisecond)
}
