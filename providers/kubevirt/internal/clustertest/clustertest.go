// Package clustertest runs tests on a real Kubernetes API server, with the resource definitions of KubeVirt, its Containerized Data
// Importer and others, and with the simulated controllers of all of them as its clients. Only tests with the build tag "real" use it.
package clustertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	registration "k8s.io/api/admissionregistration/v1"
	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/deploy"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/cdi"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/controlplane"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/definitions"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

// startTime limits the start of all, on a machine that is busy.
const startTime = 4 * time.Minute

// rightsTime limits how long the rights of a new account take to be known.
const rightsTime = 2 * time.Minute

// Cluster is a running cluster. Its methods may be called from several goroutines.
type Cluster struct {
	*controlplane.ControlPlane
	// Controllers are those of KubeVirt and its importer.
	Controllers *kubevirt.Controllers

	end        context.CancelFunc
	background sync.WaitGroup
	namespaces atomic.Int64
}

// Start starts a cluster whose controllers work as they are told to. Close ends it.
func Start(opts kubevirt.ControllerOptions) (_ *Cluster, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()

	plane, err := controlplane.Start(ctx)
	if err != nil {
		return nil, err
	}

	c := &Cluster{ControlPlane: plane, end: func() {}}

	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()

	ctx, done := plane.During(ctx)
	defer done()

	all, err := definitions.All()
	if err != nil {
		return nil, err
	}

	if err := plane.Define(ctx, all); err != nil {
		return nil, err
	}

	return c, c.install(ctx, opts)
}

// install brings the controllers, webhooks and subresources.
func (c *Cluster) install(ctx context.Context, opts kubevirt.ControllerOptions) (err error) {
	if c.Controllers, err = kubevirt.NewControllers(c.Admin(), opts); err != nil {
		return err
	}

	if err := c.Controllers.Prepare(ctx); err != nil {
		return err
	}

	var webhooks []controlplane.Webhook

	for _, of := range []struct {
		name, path      string
		mutating        bool
		group, resource string
	}{
		{"virtualmachines-mutator.kubevirt.io", virt.MutatePath, true, "kubevirt.io", "virtualmachines"},
		{"virtualmachine-validator.kubevirt.io", virt.ValidatePath, false, "kubevirt.io", "virtualmachines"},
		{"virtualmachineinstances-mutator.kubevirt.io", virt.MutatePath, true, "kubevirt.io", "virtualmachineinstances"},
		{"virtualmachineinstances-create-validator.kubevirt.io", virt.ValidatePath, false, "kubevirt.io", "virtualmachineinstances"},
		{"datavolume-validate.cdi.kubevirt.io", cdi.ValidatePath, false, "cdi.kubevirt.io", "datavolumes"},
	} {
		webhooks = append(webhooks, controlplane.Webhook{
			Name: of.name, Path: of.path, Mutating: of.mutating, Resource: schema.GroupResource{Group: of.group, Resource: of.resource},
			Operations: []registration.OperationType{registration.Create, registration.Update},
		})
	}

	if err := c.AddWebhooks(ctx, "virt-api", c.Controllers.Webhooks(), webhooks...); err != nil {
		return err
	}

	if err := c.Aggregate(ctx, virt.SubresourceVersion, virt.Subresources(), c.Controllers.API()); err != nil {
		return err
	}

	life, end := context.WithCancel(context.Background())
	c.end = end

	c.background.Go(func() { c.Controllers.Run(life) })

	return nil
}

// Close ends all of the cluster.
func (c *Cluster) Close() error {
	c.end()
	c.background.Wait()

	return c.ControlPlane.Close()
}

// NewNamespace makes a namespace with the provider's account in it, which has the rights of the provider's own manifest and no other, and
// returns how that account reaches the API server.
func (c *Cluster) NewNamespace(ctx context.Context) (string, *rest.Config, error) {
	namespace := fmt.Sprintf("machines-%d", c.namespaces.Add(1))

	documents, err := inNamespace(deploy.RBAC, namespace)
	if err != nil {
		return "", nil, err
	}

	documents = append([][]byte{fmt.Appendf(nil, "{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", namespace)}, documents...)
	if err := c.Apply(ctx, documents...); err != nil {
		return "", nil, err
	}

	config, err := c.As(ctx, namespace, deploy.Account)
	if err != nil {
		return "", nil, err
	}

	return namespace, config, awaitRights(ctx, config, namespace)
}

// inNamespace puts the documents of a manifest into another namespace. What belongs to the whole cluster gets a name of its own.
func inNamespace(manifest []byte, namespace string) (documents [][]byte, err error) {
	for document := range bytes.SplitSeq(manifest, []byte("---\n")) {
		var u unstructured.Unstructured
		if err := yaml.Unmarshal(document, &u.Object); err != nil {
			return nil, err
		}

		if u.Object == nil {
			continue
		}

		if u.GetNamespace() != "" {
			u.SetNamespace(namespace)
		} else if strings.HasSuffix(u.GetKind(), "Binding") {
			u.SetName(u.GetName() + "-" + namespace)
		}

		if subjects, ok, _ := unstructured.NestedSlice(u.Object, "subjects"); ok {
			for _, subject := range subjects {
				if fields, ok := subject.(map[string]any); ok && fields["namespace"] == deploy.Namespace {
					fields["namespace"] = namespace
				}
			}

			if err := unstructured.SetNestedSlice(u.Object, subjects, "subjects"); err != nil {
				return nil, err
			}
		}

		text, err := yaml.Marshal(u.Object)
		if err != nil {
			return nil, err
		}

		documents = append(documents, text)
	}

	return slices.Clip(documents), nil
}

// awaitRights waits until a role that has just been bound is known everywhere in the API server.
func awaitRights(ctx context.Context, account *rest.Config, namespace string) error {
	client, err := kubernetes.NewForConfig(account)
	if err != nil {
		return err
	}

	asked := &authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorization.ResourceAttributes{Namespace: namespace, Verb: "list", Group: "kubevirt.io", Resource: "virtualmachines"},
	}}

	ctx, cancel := context.WithTimeout(ctx, rightsTime)
	defer cancel()

	for {
		answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, asked, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("ask for rights: %w", err)
		}

		if answer.Status.Allowed {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("the manifest gives the account %q no right to list machines in its namespace: %w", deploy.Account, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
