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

const (
	// annotationSpec is on a virtual machine with a digest of what it was made as.
	annotationSpec = "omni-infra.dev/spec"
	// annotationStarted is on a virtual machine that was ever switched on. It comes with the run strategy and is never taken off.
	annotationStarted = "omni-infra.dev/started"
)

// createMachine makes the virtual machine, switched off, before its Secret: it is what the request is claimed with, and the owner of
// all else, so that whatever deletes it deletes all. KubeVirt begins with its disks meanwhile.
//
// It is made by a create, which fails when there is anything of that name, and is never written again but for its run strategy. One that
// was made from other class data and has not run yet is made anew.
func (m *maker) createMachine(ctx context.Context, t driver.Task) error {
	want := m.machine(t).VirtualMachine()

	digest, err := m.digest(t)
	if err != nil {
		return err
	}

	strategy := kubevirtv1.RunStrategyHalted
	want.Spec.RunStrategy = &strategy
	want.Annotations[annotationSpec] = digest

	asWanted := func(vm *kubevirtv1.VirtualMachine) bool {
		return vm.Annotations[annotationSpec] == digest || hasRun(vm)
	}
	mirror := m.mirrorsOf(m.req.ProviderID, want.Namespace).vms

	if mirror != nil {
		if vm, ok := mirror.Get(want.Name); ok && machine.Owns(m.req.Ref, vm) && vm.DeletionTimestamp == nil && asWanted(vm) {
			return nil
		}
	}

	if err := m.notElsewhere(ctx); err != nil {
		return err
	}

	if err := m.noStrangersDisks(ctx, want); err != nil {
		return err
	}

	vm, made, err := create(ctx, mirror, m.cluster.VirtualMachines(), want)

	switch {
	case err != nil || made:
		return err
	case !machine.Owns(m.req.Ref, vm):
		return foreign("virtual machine", vm)
	case vm.DeletionTimestamp != nil:
		return driver.Pending(pause, "an earlier virtual machine %q is being deleted", vm.Name)
	case asWanted(vm):
		return nil
	default:
		return m.makeAnew(ctx, vm, "its class has changed")
	}
}

// create makes an object, or returns the one of that name. What the watch does not show is most likely not there: then it takes one call.
// Else it is looked for first, as a quota or a rule of the cluster that refuses a new object must not hold up one that is there.
func create[T metav1.Object](ctx context.Context, mirror *cluster.Mirror[T], kind cluster.Kind[T], want T) (there T, made bool, err error) {
	unseen := absent(mirror, want.GetName())

	if !unseen {
		if there, err = kind.Get(ctx, want.GetNamespace(), want.GetName()); !driver.IsNotFound(err) {
			return there, false, err
		}
	}

	there, err = kind.Create(ctx, want, machine.FieldManager)
	refused := driver.KindOf(err) == driver.KindCapacity || driver.KindOf(err) == driver.KindTerminal

	switch {
	case err == nil:
		return there, true, nil
	case !cluster.Exists(err) && (!refused || !unseen):
		return there, false, err
	}

	there, getErr := kind.Get(ctx, want.GetNamespace(), want.GetName())

	switch {
	case driver.IsNotFound(getErr) && cluster.Exists(err):
		return there, false, driver.Pending(pause, "%s %q has just gone", kind.Resource, want.GetName())
	case driver.IsNotFound(getErr):
		return there, false, err
	default:
		return there, false, getErr
	}
}

// notElsewhere looks for a virtual machine of the request that was made in another namespace, before its class named this one. It asks
// the API server: that the watches show none yet would make two.
func (m *maker) notElsewhere(ctx context.Context) error {
	for _, namespace := range m.config.Operator.Namespaces {
		if namespace == m.data.Namespace {
			continue
		}

		vms, err := m.cluster.VirtualMachines().List(ctx, namespace, listOf(m.req.Ref))
		if err != nil {
			return err
		}

		for _, vm := range owned(m.req.Ref, vms) {
			switch {
			case vm.DeletionTimestamp != nil:
				return driver.Pending(pause, "an earlier virtual machine %q in namespace %q is being deleted", vm.Name, namespace)
			case hasRun(vm):
				return driver.Terminalf("namespace: the machine runs in namespace %q already, and cannot be moved to %q", namespace, m.data.Namespace)
			default:
				return m.makeAnew(ctx, vm, "its class names another namespace")
			}
		}
	}

	return nil
}

// makeAnew deletes a virtual machine that has never run, as it was just seen: one that somebody has changed since is looked at again.
func (m *maker) makeAnew(ctx context.Context, vm *kubevirtv1.VirtualMachine, why string) error {
	_, err := m.cluster.Instances().Get(ctx, vm.Namespace, vm.Name)

	switch {
	case err == nil:
		return driver.Pending(pause, "virtual machine %q is not made anew although %s: there is an instance of it", vm.Name, why)
	case !driver.IsNotFound(err):
		return err
	}

	if err := m.cluster.VirtualMachines().DeleteUnchanged(ctx, vm); err != nil && !cluster.Conflicts(err) {
		return err
	}

	return driver.Pending(pause, "virtual machine %q is made anew, as %s", vm.Name, why)
}

// hasRun reports whether a virtual machine was ever switched on, or may have been: its disks are not to be lost then. Whoever switches it
// on for this provider notes that. The rest is what KubeVirt shows of one that somebody else has switched on, or an earlier release: that
// there is an instance is forgotten with it, but not its last run strategy and generation. What is true of a machine once stays true.
func hasRun(vm *kubevirtv1.VirtualMachine) bool {
	if vm.Annotations[annotationStarted] != "" || strategyOf(vm) != kubevirtv1.RunStrategyHalted {
		return true
	}

	s := vm.Status
	if s.Created || s.Ready || s.StartFailure != nil || s.RunStrategy != "" || s.ObservedGeneration != 0 || len(s.StateChangeRequests) > 0 {
		return true
	}

	switch s.PrintableStatus {
	case "", kubevirtv1.VirtualMachineStatusStopped, kubevirtv1.VirtualMachineStatusProvisioning,
		kubevirtv1.VirtualMachineStatusWaitingForVolumeBinding, kubevirtv1.VirtualMachineStatusDataVolumeError:
		return false
	default:
		return true
	}
}

// digest tells apart what virtual machines are made as for a request and its class, whatever release of the provider makes them.
func (m *maker) digest(t driver.Task) (string, error) {
	of := m.machine(t)
	of.Version = ""

	return digestOf(of.VirtualMachine().Spec)
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

	secret, made, err := create(ctx, m.mirrorsOf(m.req.ProviderID, want.Namespace).secrets, m.cluster.Secrets(), want)
	if err == nil && !made {
		err = m.correctSecret(ctx, secret, want)
	}

	if err == nil {
		m.told.set(m.req.Ref, digest)
	}

	return err
}

// hasSecret reports whether a Secret that was made is still there, as far as the watches show.
func (m *maker) hasSecret(want *corev1.Secret) bool {
	return !absent(m.mirrorsOf(m.req.ProviderID, want.Namespace).secrets, want.Name)
}

// correctSecret makes a Secret that is there what it should be.
func (m *maker) correctSecret(ctx context.Context, secret, want *corev1.Secret) error {
	switch {
	case !machine.Owns(m.req.Ref, secret):
		return foreign("secret", secret)
	case secret.DeletionTimestamp != nil:
		return driver.Pending(pause, "an earlier secret %q is being deleted", want.Name)
	case maps.EqualFunc(secret.Data, want.Data, bytes.Equal) && slices.Equal(uidsOf(secret), uidsOf(want)):
		return nil
	}

	_, err := m.cluster.Secrets().Apply(ctx, secret, map[string]any{
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
