// Package controlplane runs a real etcd and a real kube-apiserver on the loopback interface, for tests that hold what is simulated
// or what is written to the judgement of the real thing. There is nothing else of a cluster: no node, no scheduler and no
// controller of Kubernetes' own, so that what those do is up to the test. Tests import it.
package controlplane

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// ProgramsEnv names the environment variable with the folder of the programs etcd and kube-apiserver.
const ProgramsEnv = "KUBE_PROGRAMS"

// startTime is how long the programs may take to start, on a machine that is busy.
const startTime = 3 * time.Minute

// etcdSocket is the file in the folder that etcd listens on.
const etcdSocket = "etcd:0"

// ControlPlane is a running API server with its store. Its data is in memory and goes with it.
type ControlPlane struct {
	folder  *folder
	keys    *keys
	admin   *rest.Config
	etcd    *process
	server  *process
	servers []*http.Server
	// life ends with the programs; its cause says which of them has ended by itself.
	life context.Context //nolint:containedctx // It is that of the programs, not of a call.
	end  context.CancelCauseFunc
}

// errClosed is the cause of an end by Close.
var errClosed = errors.New("the control plane is closed")

// Start starts the programs of the folder that ProgramsEnv names, and returns once the API server says that it is ready. Close ends
// them; they also end when this process does.
func Start(ctx context.Context) (_ *ControlPlane, err error) {
	programs := os.Getenv(ProgramsEnv)
	if programs == "" {
		return nil, fmt.Errorf("$%s names no folder with etcd and kube-apiserver: make conformance-real-kubevirt and make test-real build them "+
			"and set it; by hand, export %s=$(tools/kube/build.sh)", ProgramsEnv, ProgramsEnv)
	}

	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()

	c := &ControlPlane{}
	c.life, c.end = context.WithCancelCause(context.Background())

	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()

	if c.folder, err = newFolder(parent(memory, leastRoom)); err != nil {
		return nil, err
	}

	if c.keys, err = newKeys(c.folder.path); err != nil {
		return nil, fmt.Errorf("make keys: %w", err)
	}

	if err = c.startEtcd(programs); err != nil {
		return nil, err
	}

	if err = c.startServer(ctx, programs); err != nil {
		return nil, err
	}

	go c.watch()

	return c, nil
}

// watch ends the life of the control plane when one of its programs ends.
func (c *ControlPlane) watch() {
	select {
	case <-c.life.Done():
	case <-c.etcd.ended:
		c.end(c.etcd.failure())
	case <-c.server.ended:
		c.end(c.server.failure())
	}
}

// During returns a context that ends with ctx, or with the control plane: when one of the programs ends by itself, for want of room or
// memory, the cause of the context's end says so with the end of the program's log, and whoever waits for an answer need wait no longer.
func (c *ControlPlane) During(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })

	return ctx, func() {
		stop()
		cancel(context.Canceled)
	}
}

func (c *ControlPlane) path(name string) string { return filepath.Join(c.folder.path, name) }

// startEtcd starts etcd on sockets in the folder, so that nobody else can find it and no port is taken. Their names have to look like
// those of a host and a port.
func (c *ControlPlane) startEtcd(programs string) (err error) {
	const peer, client = "unix://peer:0", "unix://" + etcdSocket

	c.etcd, err = start(c.folder.path, "etcd.log", filepath.Join(programs, "etcd"),
		"--data-dir="+c.path("data"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)

	return err
}

// startServer starts the API server on a free port. Somebody else may take it meanwhile: then it is another one.
func (c *ControlPlane) startServer(ctx context.Context, programs string) error {
	token := make([]byte, 16)
	_, _ = rand.Read(token) // It never fails.

	if err := os.WriteFile(c.path("tokens.csv"), []byte(hex.EncodeToString(token)+",admin,admin,system:masters\n"), 0o600); err != nil {
		return err
	}

	for attempt := 1; ; attempt++ {
		port, err := freePort(ctx)
		if err != nil {
			return err
		}

		c.admin = &rest.Config{
			Host: "https://" + net.JoinHostPort("127.0.0.1", port), BearerToken: hex.EncodeToString(token), QPS: -1,
			TLSClientConfig: rest.TLSClientConfig{CAData: c.keys.authority},
		}

		c.server, err = start(c.folder.path, "kube-apiserver.log", filepath.Join(programs, "kube-apiserver"),
			"--etcd-servers=unix://"+c.path(etcdSocket),
			"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port="+port,
			"--tls-cert-file="+c.path("server.crt"), "--tls-private-key-file="+c.path("server.key"), "--cert-dir="+c.folder.path,
			"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.path("server.key"),
			"--service-account-signing-key-file="+c.path("server.key"), "--service-cluster-ip-range=10.0.0.0/24",
			"--token-auth-file="+c.path("tokens.csv"), "--authorization-mode=RBAC", "--allow-privileged=true",
			"--endpoint-reconciler-type=none", "--profiling=false")
		if err != nil {
			return err
		}

		err = c.awaitReady(ctx)
		if err == nil || !c.server.hasEnded() || c.etcd.hasEnded() || attempt == 3 {
			return err
		}
	}
}

func freePort(ctx context.Context) (string, error) {
	var config net.ListenConfig

	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}

	port := listener.Addr().(*net.TCPAddr).Port

	return strconv.Itoa(port), listener.Close()
}

// awaitReady waits until the API server says that it is ready, or one of the programs has ended.
func (c *ControlPlane) awaitReady(ctx context.Context) error {
	client, err := rest.HTTPClientFor(c.admin)
	if err != nil {
		return err
	}

	defer client.CloseIdleConnections()

	for {
		if ready(ctx, client, c.admin.Host) {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready after %s: %s", startTime, c.server.tail())
		case <-c.server.ended:
			return c.server.failure()
		case <-c.etcd.ended:
			return c.etcd.failure()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func ready(ctx context.Context, client *http.Client, host string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/readyz", nil)
	if err != nil {
		return false
	}

	resp, err := client.Do(req)
	if err != nil {
		return false
	}

	_ = resp.Body.Close() // It is only asked for its status.

	return resp.StatusCode == http.StatusOK
}

// Admin returns how to reach the API server as someone who may do everything, without a limit of its own on calls.
func (c *ControlPlane) Admin() *rest.Config { return rest.CopyConfig(c.admin) }

// Log returns the last lines that the API server has logged.
func (c *ControlPlane) Log() string { return c.server.tail() }

// Close ends the programs and removes their data.
func (c *ControlPlane) Close() error {
	c.end(errClosed)

	var errs []error

	for _, s := range c.servers {
		errs = append(errs, s.Close())
	}

	// The API server would wait for its watches to end.
	for _, p := range []*process{c.server, c.etcd} {
		if p != nil {
			errs = append(errs, p.kill())
		}
	}

	if c.folder != nil {
		errs = append(errs, c.folder.remove())
		c.folder = nil
	}

	return errors.Join(errs...)
}

// clip returns the end of a text, in whole lines.
func clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}

	_, text, _ = strings.Cut(text[len(text)-limit:], "\n")

	return text
}
