package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExportLinesAreRead(t *testing.T) {
	t.Parallel()

	name := filepath.Join(t.TempDir(), "env")
	require.NoError(t, os.WriteFile(name, []byte("# a comment\nexport A=b\nexport KEY=c29tZSBrZXk=\n\nC=d\n"), 0o600))

	env, err := readEnv(name)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"A": "b", "KEY": "c29tZSBrZXk="}, env)
}

func TestWitnessFindsFilesByName(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "lab-dir"), 0o700))

	for _, name := range []string{"lab-1.qcow2", "lab-dir/lab-2_VARS.fd", "other"} {
		require.NoError(t, os.WriteFile(filepath.Join(root, name), nil, 0o600))
	}

	found, err := files(root, "lab-")
	require.NoError(t, err)
	assert.Equal(t, []string{filepath.Join(root, "lab-1.qcow2"), filepath.Join(root, "lab-dir/lab-2_VARS.fd")}, found)

	none, err := files(filepath.Join(root, "missing"), "")
	require.NoError(t, err)
	assert.Empty(t, none)
}

func TestRequestIsReadOffADomainsName(t *testing.T) {
	t.Parallel()

	for domain, request := range map[string]string{
		"lab-pjwgjb-91cbcc8f5fa7": "lab-pjwgjb",
		"somebody-elses":          "somebody-elses",
		"a-91cbcc8f5fa":           "a-91cbcc8f5fa",
	} {
		assert.Equal(t, request, nameSuffix.ReplaceAllString(domain, ""))
	}
}
