//go:build real

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWrongPartnerEndsInOneLine gets past the settings: libvirt is its own simulation, which needs no daemon, and Omni is on
// loopback.
func TestWrongPartnerEndsInOneLine(t *testing.T) {
	t.Parallel()

	o, endpoint := serveOmni(t)
	ctx := t.Context()

	key, err := o.CreateProvider(ctx, "libvirt")
	require.NoError(t, err)

	_, err = o.CreateProvider(ctx, "other")
	require.NoError(t, err)

	nobody := listen(t)
	unreachable := "http://" + nobody.Addr().String()
	require.NoError(t, nobody.Close())

	stranger := newKey(t)

	for _, test := range []struct {
		name, endpoint, key string
		args, want          []string
	}{
		{"pool that is missing", endpoint, key, []string{"--storage-pool", "nothing"}, []string{`"nothing"`, "default-pool"}},
		{"key of another Omni", endpoint, stranger, nil, []string{endpoint, "does not accept the service account key"}},
		{"id of another provider", endpoint, key, []string{"--id", "other"}, []string{"provider id"}},
		{"Omni that is not there", unreachable, key, nil, []string{unreachable, "does not answer"}},
		{"libvirt driver that does not exist", endpoint, key, []string{"--libvirt-uri", "nothing:///x"}, []string{`"nothing:///x"`, "URI is right"}},
		{
			"libvirt host that is not there", endpoint, key, []string{"--libvirt-uri", "qemu+tcp://user:pass-word@127.0.0.1:1/system"},
			[]string{"127.0.0.1:1", "refused"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			env := []string{"OMNI_ENDPOINT=" + test.endpoint, "OMNI_SERVICE_ACCOUNT_KEY=" + test.key, "LIBVIRT_URI=test:///default"}
			got := execute(t, env, test.args...)
			requireOneError(t, got, test.key, test.want...)
			assert.NotContains(t, got.stderr, "pass-word")
			t.Log(strings.TrimSpace(got.stderr))
		})
	}
}
