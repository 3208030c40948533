package cluster_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
)

const account = "system:serviceaccount:omni:provider"

func listSecrets(ctx context.Context, k *cluster.Cluster) error {
	_, err := k.Secrets().List(ctx, "default", metav1.ListOptions{})

	return err
}

func TestRotatedTokenIsReadAfterTheFirstRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, config := serve(t)
		config.BearerToken = ""

		file := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(file, []byte(token), 0o600))

		k := connect(t, cluster.Config{Rest: config, TokenFile: file})
		require.NoError(t, listSecrets(t.Context(), k))

		time.Sleep(time.Second)
		require.True(t, s.RotateToken(account, "canary-next"))
		require.NoError(t, os.WriteFile(file, []byte("canary-next"), 0o600))

		rotated := time.Now()
		require.ErrorContains(t, listSecrets(t.Context(), k), "does not accept the provider's credentials")
		time.Sleep(time.Second)
		require.NoError(t, listSecrets(t.Context(), k))
		assert.LessOrEqual(t, time.Since(rotated), time.Second, "client-go reads it again after a minute otherwise")
	})
}

func TestImpersonatedUsersRightsAreAllThereAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, config := serve(t)

		// Who runs the provider may do nothing but be that user.
		s.SetUser(apiserver.User{Name: account, Token: token, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"impersonate"}, APIGroups: []string{""}, Resources: []string{"users"}, ResourceNames: []string{"machines", "powerless"}},
			{Verbs: []string{"impersonate"}, APIGroups: []string{""}, Resources: []string{"groups"}, ResourceNames: []string{"operators"}},
		}})

		secrets := []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"secrets"}}}
		s.SetUser(apiserver.User{Name: "machines", Token: "none", NamespaceRules: map[string][]rbacv1.PolicyRule{"default": secrets}})
		s.SetUser(apiserver.User{Name: "powerless", Token: "none-either", NamespaceRules: map[string][]rbacv1.PolicyRule{"other": secrets}})
		s.SetUser(apiserver.User{Name: "stranger", Token: "nor-this", Rules: secrets})

		for _, test := range []struct {
			name   string
			user   string
			groups []string
			want   string
		}{
			{"nobody", "", nil, `User "` + account + `" cannot list resource "secrets"`},
			{"the user", "machines", nil, ""},
			{"the user in a group", "machines", []string{"operators"}, ""},
			{"the user in a group that is not to be had", "machines", []string{"wheel"}, `cannot impersonate resource "groups"`},
			{"a user without the right", "powerless", nil, `User "powerless" cannot list resource "secrets"`},
			{"a user who is not to be impersonated", "stranger", nil, `User "` + account + `" cannot impersonate resource "users"`},
		} {
			k := connect(t, cluster.Config{Rest: config, ImpersonateUser: test.user, ImpersonateGroups: test.groups})

			err := listSecrets(t.Context(), k)
			if test.want == "" {
				assert.NoError(t, err, test.name)
			} else {
				assert.ErrorContains(t, err, test.want, test.name)
			}
		}
	})
}
