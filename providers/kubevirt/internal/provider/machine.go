package provider

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// annotationSpec is on a virtual machine with a digest of what it was made as.
const annotationSpec = "omni-infra.dev/spec"

// createMachine makes the virtual machine, switched off, before its Secret: it is what the request is claimed with, and the owner of
// all else, so that whatever deletes it deletes all. KubeVirt begins with its disks meanwhile.
//
// It is made by a create, which fails when there is anything of that name, and is never written again but for its run strategy. One that
// was made from other class data and has not run yet is made anew.
func (m *maker) createMachine(ctx context.Context, t driver.Task) error {
	want := m.machine(t).VirtualMachine()

	digest, err := digestOf(want.Spec)
	if err != nil {
		return err
	}

	strategy := kubevirtv1.RunStrategyHalted
	want.Spec.RunStrategy = &strategy
	want.Annotations[annotationSpec] = digest

	if err := m.notElsewhere(ctx); err != nil {
		return err
	}

	kind := m.cluster.VirtualMachines()

	if ms := m.seen.of(m.req.ProviderID, want.Namespace); ms != nil {
		if vm, ok := ms.vms.Get(want.Name); ok && machine.Owns(m.req.Ref, vm) && vm.DeletionTimestamp == nil && vm.Annotations[annotationSpec] == digest {
			return nil
		}
	}

	if err := m.noStrangersDisks(ctx, want); err != nil {
		return err
	}

	_, err = kind.Create(ctx, want, machine.FieldManager)
	if !cluster.Exists(err) {
		return err
	}

	vm, err := kind.Get(ctx, want.Namespace, want.Name)

	switch {
	case driver.IsNotFound(err):
		return driver.Pending(pause, "virtual machine %q has just gone", want.Name)
	case err != nil:
		return err
	case !machine.Owns(m.req.Ref, vm):
		return foreign("virtual machine", vm)
	case vm.DeletionTimestamp != nil:
		return driver.Pending(pause, "an earlier virtual machine %q is being deleted", vm.Name)
	case vm.Annotations[annotationSpec] != digest && neverRan(vm):
		return m.makeAnew(ctx, vm, "its class has changed")
	default:
		return nil
	}
}

// notElsewhere looks for a virtual machine of the request that was made in another namespace, before its class named this one.
func (m *maker) notElsewhere(ctx context.Context) error {
	for _, namespace := range m.config.Operator.Namespaces {
		if namespace == m.data.Namespace {
			continue
		}

		vms, err := all(ctx, m.mirrorsOf(m.req.ProviderID, namespace).vms, m.cluster.VirtualMachines(), namespace, m.req.ProviderID)
		if err != nil {
			return err
		}

		for _, vm := range owned(m.req.Ref, vms) {
			switch {
			case vm.DeletionTimestamp != nil:
				return driver.Pending(pause, "an earlier virtual machine %q in namespace %q is being deleted", vm.Name, namespace)
			case neverRan(vm):
				return m.makeAnew(ctx, vm, "its class names another namespace")
			default:
				return driver.Terminalf("namespace: the machine runs in namespace %q already, and cannot be moved to %q", namespace, m.data.Namespace)
			}
		}
	}

	return nil
}

// makeAnew deletes a virtual machine that has never run.
func (m *maker) makeAnew(ctx context.Context, vm *kubevirtv1.VirtualMachine, why string) error {
	if err := m.cluster.VirtualMachines().DeleteWhole(ctx, vm); err != nil && !cluster.Conflicts(err) {
		return err
	}

	return driver.Pending(pause, "virtual machine %q is made anew, as %s", vm.Name, why)
}

// neverRan reports whether a virtual machine was never switched on.
func neverRan(vm *kubevirtv1.VirtualMachine) bool {
	return strategyOf(vm) == kubevirtv1.RunStrategyHalted && !vm.Status.Created
}

func digestOf(v any) (string, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encode virtual machine: %w", err)
	}

	sum := sha256.Sum256(data)

	return hex.EncodeToString(sum[:12]), nil
}

// told is which Secrets this process has seen to be right, by a digest of what is in them. Its zero value is ready for use.
type told struct {
	mu   sync.Mutex
	what map[driver.Ref][sha256.Size]byte
}

func (t *told) is(ref driver.Ref, digest [sha256.Size]byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()

	return t.what[ref] == digest
}

func (t *told) set(ref driver.Ref, digest [sha256.Size]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.what == nil {
		t.what = map[driver.Ref][sha256.Size]byte{}
	}

	t.what[ref] = digest
}

func (t *told) forget(ref driver.Ref) {
	t.mu.Lock()
	defer t.mu.Unlock()

	delete(t.what, ref)
}

// createSecret hands over what the machine is told at its first boot. The virtual machine owns the Secret.
func (m *maker) createSecret(ctx context.Context, t driver.Task) error {
	vm, err := m.ours(ctx)
	if err != nil {
		return err
	}

	want, err := m.machine(t).Secret(t.Join.UserData, vm)
	if err != nil {
		return err
	}

	digest := sha256.Sum256(append([]byte(vm.UID), t.Join.UserData...))
	if m.told.is(m.req.Ref, digest) && m.hasSecret(want) {
		return nil
	}

	kind := m.cluster.Secrets()

	_, err = kind.Create(ctx, want, machine.FieldManager)
	if cluster.Exists(err) {
		err = m.correctSecret(ctx, want)
	}

	if err == nil {
		m.told.set(m.req.Ref, digest)
	}

	return err
}

// hasSecret reports whether a Secret that was made is still there, as far as the watches show.
func (m *maker) hasSecret(want *corev1.Secret) bool {
	mirror := m.mirrorsOf(m.req.ProviderID, want.Namespace).secrets
	if mirror == nil {
		return true
	}

	if _, live := mirror.All(); !live {
		return true
	}

	_, ok := mirror.Get(want.Name)

	return ok
}

// correctSecret makes a Secret that is there what it should be.
func (m *maker) correctSecret(ctx context.Context, want *corev1.Secret) error {
	kind := m.cluster.Secrets()

	secret, err := kind.Get(ctx, want.Namespace, want.Name)

	switch {
	case driver.IsNotFound(err):
		return driver.Pending(pause, "secret %q has just gone", want.Name)
	case err != nil:
		return err
	case !machine.Owns(m.req.Ref, secret):
		return foreign("secret", secret)
	case secret.DeletionTimestamp != nil:
		return driver.Pending(pause, "an earlier secret %q is being deleted", want.Name)
	case maps.EqualFunc(secret.Data, want.Data, bytes.Equal) && slices.Equal(uidsOf(secret), uidsOf(want)):
		return nil
	}

	_, err = kind.Apply(ctx, secret, map[string]any{
		"apiVersion": "v1", "kind": "Secret", "data": want.Data,
		"metadata": map[string]any{"ownerReferences": want.OwnerReferences},
	}, machine.FieldManager)

	return err
}

func uidsOf(o metav1.Object) []string {
	var uids []string
	for _, r := range o.GetOwnerReferences() {
		uids = append(uids, string(r.UID))
	}

	return uids
}

// ours returns the virtual machine that createMachine has made. What is done to it next names its UID.
func (m *maker) ours(ctx context.Context) (*kubevirtv1.VirtualMachine, error) {
	name := machine.NamesOf(m.req.Ref).VM

	vm, err := now(ctx, m.mirrorsOf(m.req.ProviderID, m.data.Namespace).vms, m.cluster.VirtualMachines(), m.data.Namespace, name)

	switch {
	case driver.IsNotFound(err):
		// It would be taken for the end of the machine otherwise.
		return nil, driver.Pending(pause, "virtual machine %q has just gone", name)
	case err != nil:
		return nil, err
	case !machine.Owns(m.req.Ref, vm):
		return nil, foreign("virtual machine", vm)
	case vm.DeletionTimestamp != nil:
		return nil, driver.Pending(pause, "virtual machine %q is being deleted", name)
	default:
		return vm, nil
	}
}

// cutNamespace cuts the namespace off a name that has one.
func cutNamespace(name string) (namespace, rest string, ok bool) {
	if before, after, found := strings.Cut(name, "/"); found {
		return before, after, true
	}

	return "", name, false
}
