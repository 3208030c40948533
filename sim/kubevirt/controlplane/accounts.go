package controlplane

import (
	"context"
	"fmt"

	authentication "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// As returns how to reach the API server as a service account, which has to be there, with a token that holds for an hour. Like
// Admin's, the configuration has no limit of its own on calls.
func (c *ControlPlane) As(ctx context.Context, namespace, account string) (*rest.Config, error) {
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return nil, err
	}

	hour := int64(3600)

	answer, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account,
		&authentication.TokenRequest{Spec: authentication.TokenRequestSpec{ExpirationSeconds: &hour}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create a token of service account %q: %w", account, err)
	}

	config := c.Admin()
	config.BearerToken = answer.Status.Token

	return config, nil
}
