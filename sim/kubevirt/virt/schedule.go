package virt

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirt "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// schedule looks for a node for an instance, and waits there until its launcher is ready.
func (c *Controller) schedule(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) error {
	podScheduled := kubevirt.VirtualMachineInstanceConditionType(corev1.PodScheduled)
	fault := c.fault(kube.Key(vmi))

	node, message := c.place(vmi)
	if message != "" {
		set(vmi, podScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, message)

		return nil
	}

	drop(vmi, podScheduled)

	if fault.Pull != "" {
		return c.pullError(vmi, fault.Pull)
	}

	seed, missing, err := c.seed(vmi)

	switch {
	case err != nil:
		return err
	case missing != "":
		c.warn(ctx, vmi, "FailedMount", fmt.Sprintf("MountVolume.SetUp failed for volume %q : secret %q not found", seed.volume, missing))

		return nil
	case fault.Kubelet != "":
		reason, text, _ := strings.Cut(fault.Kubelet, ": ")
		c.warn(ctx, vmi, reason, text)
		c.instances.After(kube.Key(vmi), backOff)

		return nil
	}

	if left := time.Until(entered(vmi).Add(c.opts.Times.Pull)); left > 0 {
		c.instances.After(kube.Key(vmi), left)

		return nil
	}

	if vmi.Labels == nil {
		vmi.Labels = map[string]string{}
	}

	vmi.Labels[kubevirt.NodeNameLabel] = node
	vmi.Status.NodeName = node
	vmi.Status.QOSClass = new(corev1.PodQOSBurstable)
	vmi.Status.ActivePods = map[types.UID]string{launcher(vmi).UID: node}
	enter(vmi, kubevirt.Scheduled)

	return nil
}

// launcher is the pod that a machine runs in, as far as there is one. It is in no books: nobody but the kubelet acts on it.
func launcher(vmi *kubevirt.VirtualMachineInstance) *metav1.ObjectMeta {
	tail := string(vmi.UID)

	return &metav1.ObjectMeta{
		Namespace: vmi.Namespace, Name: "virt-launcher-" + vmi.Name + "-" + tail[max(0, len(tail)-5):], UID: types.UID("pod-" + tail),
	}
}

// warn is what the kubelet says of a launcher that does not get ready.
func (c *Controller) warn(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, reason, text string) {
	c.kubelet.Event(ctx, launcher(vmi), kube.Pods, corev1.EventTypeWarning, reason, text)
}

// backOff is how long a pull that failed is shown as an error until it is shown as backing off.
const backOff = 15 * time.Second

func (c *Controller) pullError(vmi *kubevirt.VirtualMachineInstance, message string) error {
	if left := time.Until(entered(vmi).Add(backOff)); left > 0 {
		c.instances.After(kube.Key(vmi), left)

		return &problem{errImagePull, fmt.Errorf("%s", message)}
	}

	c.instances.After(kube.Key(vmi), backOff)

	return &problem{imagePullBackOff, fmt.Errorf("Back-off pulling image: %s", message)} //nolint:staticcheck // As the kubelet words it.
}

// place returns a node that has room, or the scheduler's message.
func (c *Controller) place(vmi *kubevirt.VirtualMachineInstance) (node, message string) {
	if message := c.fault(kube.Key(vmi)).Unschedulable; message != "" {
		return "", message
	}

	lacks, hopeless := map[string]int{}, 0

	for _, n := range c.opts.Nodes {
		reasons, final := c.unfit(vmi, n)
		if len(reasons) == 0 {
			return n.Name, ""
		}

		for _, reason := range reasons {
			lacks[reason]++
		}

		if final {
			hopeless++
		}
	}

	return "", unschedulable(len(c.opts.Nodes), hopeless, lacks)
}

// used sums up what the instances on a node request, that one excepted.
func (c *Controller) used(node string, except types.UID) (cpu, memory resource.Quantity) {
	for _, vmi := range c.vmis.List() {
		if vmi.Status.NodeName != node || vmi.UID == except || vmi.IsFinal() {
			continue
		}

		wantsCPU, wantsMemory := requests(vmi)
		cpu.Add(wantsCPU)
		memory.Add(wantsMemory)
	}

	return cpu, memory
}

// Every launcher needs some memory besides the guest's, and a processor of a guest counts as a tenth of one of the node.
const (
	launcherMemory = 240 << 20
	allocation     = 10
)

// requests are those of the launcher's pod.
func requests(vmi *kubevirt.VirtualMachineInstance) (cpu, memory resource.Quantity) {
	domain := &vmi.Spec.Domain
	cpu, memory = domain.Resources.Requests[corev1.ResourceCPU], domain.Resources.Requests[corev1.ResourceMemory]

	if cpu.IsZero() {
		cpu = *resource.NewMilliQuantity(processors(domain.CPU)*1000/allocation, resource.DecimalSI)
	}

	if memory.IsZero() && domain.Memory != nil && domain.Memory.Guest != nil {
		memory = domain.Memory.Guest.DeepCopy()
	}

	memory.Add(*resource.NewQuantity(launcherMemory, resource.BinarySI))

	return cpu, memory
}

func processors(cpu *kubevirt.CPU) int64 {
	if cpu == nil {
		return 1
	}

	return int64(max(cpu.Sockets, 1)) * int64(max(cpu.Cores, 1)) * int64(max(cpu.Threads, 1))
}

// seed is what the cloud-init volume of a machine holds.
type seed struct {
	volume                string
	userData, networkData []byte
}

// seed reads the cloud-init volume of an instance, or says which secret is missing.
func (c *Controller) seed(vmi *kubevirt.VirtualMachineInstance) (s seed, missing string, err error) {
	for _, v := range vmi.Spec.Volumes {
		var user, network *corev1.LocalObjectReference
		var userText, user64, networkText, network64 string

		switch {
		case v.CloudInitNoCloud != nil:
			n := v.CloudInitNoCloud
			user, userText, user64 = n.UserDataSecretRef, n.UserData, n.UserDataBase64
			network, networkText, network64 = n.NetworkDataSecretRef, n.NetworkData, n.NetworkDataBase64
		case v.CloudInitConfigDrive != nil:
			n := v.CloudInitConfigDrive
			user, userText, user64 = n.UserDataSecretRef, n.UserData, n.UserDataBase64
			network, networkText, network64 = n.NetworkDataSecretRef, n.NetworkData, n.NetworkDataBase64
		default:
			continue
		}

		s.volume = v.Name

		if s.userData, missing, err = c.document(vmi.Namespace, user, userText, user64, "userdata", "userData"); err != nil || missing != "" {
			return s, missing, err
		}

		if s.networkData, missing, err = c.document(vmi.Namespace, network, networkText, network64, "networkdata", "networkData"); err != nil || missing != "" {
			return s, missing, err
		}
	}

	return s, "", nil
}

func (c *Controller) document(namespace string, ref *corev1.LocalObjectReference, text, base string, keys ...string) (data []byte, missing string, err error) {
	switch {
	case ref != nil && ref.Name != "":
		secret := c.secrets.Get(namespace, ref.Name)
		if secret == nil {
			return nil, ref.Name, nil
		}

		for _, key := range keys {
			if data, ok := secret.Data[key]; ok {
				return data, "", nil
			}
		}

		return nil, "", &problem{failedCreate, fmt.Errorf("no cloud-init data found at volume: secret %q has none of %s", ref.Name, strings.Join(keys, ", "))}
	case base != "":
		data, err = base64.StdEncoding.DecodeString(base)

		return data, "", err
	default:
		return []byte(text), "", nil
	}
}
