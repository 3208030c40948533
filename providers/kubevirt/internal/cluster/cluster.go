// Package cluster is the connection to a Kubernetes cluster with KubeVirt and its Containerized Data Importer: how it is reached, how
// calls are made, what their errors mean, and copies of what it holds that its watches keep up to date. Package provider imports it.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clienttransport "k8s.io/client-go/transport"
	"kubevirt.io/client-go/containerizeddataimporter"
	"kubevirt.io/client-go/kubevirt"
)

// Cluster is a cluster that can be asked. Its methods may be called from several goroutines.
//
// The clientsets are used through Call, which bounds, tells apart and counts what is asked.
type Cluster struct {
	Core     kubernetes.Interface
	KubeVirt kubevirt.Interface
	CDI      containerizeddataimporter.Interface
	// Dynamic is for kinds that are only looked up, as network attachments.
	Dynamic dynamic.Interface

	transport *transport
	http      *http.Client
	timeout   time.Duration
}

// New makes the connection. Nothing is asked yet.
func New(c Config) (*Cluster, error) {
	config, err := c.restConfig()
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes cluster: %w", err)
	}

	k := &Cluster{timeout: cmp.Or(c.CallTimeout, DefaultCallTimeout), transport: &transport{}}

	// The innermost: it sees each request as it goes out, whatever client-go makes of it.
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		k.transport.next = next

		return k.transport
	})

	// client-go reads a token file again after a minute. This does at once when the token is refused.
	if file := config.BearerTokenFile; file != "" {
		config.BearerToken, config.BearerTokenFile = "", ""
		config.Wrap(clienttransport.ResettableTokenSourceWrapTransport(clienttransport.NewCachedFileTokenSource(file)))
	}

	if k.http, err = rest.HTTPClientFor(config); err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes cluster: %w", err)
	}

	core, errCore := kubernetes.NewForConfigAndClient(config, k.http)
	virt, errVirt := kubevirt.NewForConfigAndClient(config, k.http)
	cdi, errCDI := containerizeddataimporter.NewForConfigAndClient(config, k.http)
	other, errOther := dynamic.NewForConfigAndClient(config, k.http)

	if err := errors.Join(errCore, errVirt, errCDI, errOther); err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes cluster: %w", err)
	}

	k.Core, k.KubeVirt, k.CDI, k.Dynamic = core, virt, cdi, other

	return k, nil
}

// Close ends idle connections.
func (k *Cluster) Close() { k.http.CloseIdleConnections() }

// Trusted reports whether the last call that the cluster had to answer was answered as by one that works and knows us. A watch
// that is open says nothing of that, as it was let in long ago.
func (k *Cluster) Trusted() bool { return !k.transport.troubled.Load() }

// Call makes one request: f calls one method of a clientset. The call has a deadline, is made once, and its error has a kind. What is
// done to what is told by op, for errors.
func Call[T any](ctx context.Context, k *Cluster, op Op, f func(ctx context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, k.timeout, fmt.Errorf("the Kubernetes API has not answered within %s", k.timeout))
	defer cancel()

	v, err := f(once(ctx))
	if err != nil {
		var none T

		return none, classify(ctx, op, err)
	}

	return v, nil
}

// Do is Call for what returns nothing but an error.
func Do(ctx context.Context, k *Cluster, op Op, f func(ctx context.Context) error) error {
	_, err := Call(ctx, k, op, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })

	return err
}
