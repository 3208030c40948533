package virt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	kubevirt "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// SubresourceVersion is the API group that virt-api serves behind the API server's aggregation.
var SubresourceVersion = schema.GroupVersion{Group: "subresources.kubevirt.io", Version: "v1"}

const (
	notRunning         = "VM is not running"
	instanceNotRunning = "VMI is not running"
	notPaused          = "VMI is not paused"
)

// Subresources are the resources of SubresourceVersion in its discovery, those that are modelled.
func Subresources() []metav1.APIResource {
	var all []metav1.APIResource

	for _, name := range []string{"start", "stop", "restart"} {
		all = append(all, metav1.APIResource{Name: "virtualmachines/" + name, Namespaced: true, Verbs: metav1.Verbs{"update"}})
	}

	for _, name := range []string{"pause", "unpause", "softreboot", "reset"} {
		all = append(all, metav1.APIResource{Name: "virtualmachineinstances/" + name, Namespaced: true, Verbs: metav1.Verbs{"update"}})
	}

	return all
}

// API serves the group SubresourceVersion: start, stop and restart of machines, pause, unpause, softreboot and reset of instances, with
// the answers of KubeVirt v1.8.2. It acts with the controller's own rights; who may call it is for who serves it.
func (c *Controller) API() http.Handler {
	mux := http.NewServeMux()
	base := "/apis/" + SubresourceVersion.String()
	on := func(resource, name string, do func(ctx context.Context, namespace, name string, body io.Reader) (int, error)) {
		mux.HandleFunc("PUT "+base+"/namespaces/{namespace}/"+resource+"/{name}/"+name, func(w http.ResponseWriter, r *http.Request) {
			status, err := do(r.Context(), r.PathValue("namespace"), r.PathValue("name"), r.Body)
			if err != nil {
				writeError(w, err)

				return
			}

			w.WriteHeader(status)
		})
	}

	mux.HandleFunc("GET "+base, func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: SubresourceVersion.String(), APIResources: Subresources(),
		})
	})

	on("virtualmachines", "start", c.apiStart)
	on("virtualmachines", "stop", c.apiStop)
	on("virtualmachines", "restart", c.apiRestart)
	on("virtualmachineinstances", "pause", c.apiPause)
	on("virtualmachineinstances", "unpause", c.apiUnpause)
	on("virtualmachineinstances", "softreboot", c.apiSoftReboot)
	on("virtualmachineinstances", "reset", c.apiReset)

	return mux
}

func writeJSON(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(answer) //nolint:errcheck // The client is gone.
}

// writeError answers with a Status; what is no error of the API is an internal one.
func writeError(w http.ResponseWriter, err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}

	answer := status.Status()
	answer.Kind, answer.APIVersion = "Status", "v1"
	writeJSON(w, int(answer.Code), answer)
}

func conflict(resource, name, format string, args ...any) error {
	return apierrors.NewConflict(kubevirt.Resource(resource), name, fmt.Errorf(format, args...))
}

func decode(body io.Reader, options any) error {
	if body == nil {
		return nil
	}

	if err := yaml.NewYAMLOrJSONDecoder(body, 1024).Decode(options); err != nil && !errors.Is(err, io.EOF) {
		return apierrors.NewBadRequest(fmt.Sprintf("Can not unmarshal Request body to struct, error: %s", err))
	}

	return nil
}

func dry(options []string) bool { return slices.Contains(options, metav1.DryRunAll) }

func (c *Controller) fetch(ctx context.Context, namespace, name string) (*kubevirt.VirtualMachine, error) {
	vm, err := c.vms.Resource.Get(ctx, namespace, name)

	switch {
	case apierrors.IsNotFound(err):
		return nil, apierrors.NewNotFound(kubevirt.Resource("virtualmachine"), name)
	case err != nil:
		return nil, apierrors.NewInternalError(fmt.Errorf("unable to retrieve vm [%s]: %w", name, err))
	}

	return vm, nil
}

// fetchInstance returns the instance of a machine, nil if there is none.
func (c *Controller) fetchInstance(ctx context.Context, namespace, name string) (*kubevirt.VirtualMachineInstance, error) {
	vmi, err := c.vmis.Resource.Get(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // There is none, as the contract says.
	}

	return vmi, err
}

func (c *Controller) apiStart(ctx context.Context, namespace, name string, body io.Reader) (int, error) {
	vm, err := c.fetch(ctx, namespace, name)
	if err != nil {
		return 0, err
	}

	vmi, err := c.fetchInstance(ctx, namespace, name)
	if err != nil {
		return 0, err
	}

	if vmi != nil && !vmi.IsFinal() && vmi.Status.Phase != kubevirt.Unknown && vmi.Status.Phase != kubevirt.VmPhaseUnset {
		return 0, conflict("virtualmachine", name, "VM is already running")
	}

	var options kubevirt.StartOptions
	if err := decode(body, &options); err != nil {
		return 0, err
	}

	strategy, err := vm.RunStrategy()
	if err != nil {
		return 0, err
	}

	start := kubevirt.VirtualMachineStateChangeRequest{Action: kubevirt.StartRequest}
	if options.Paused {
		start.Data = map[string]string{kubevirt.StartRequestDataPausedKey: kubevirt.StartRequestDataPausedTrue}
	}

	switch {
	case strategy == kubevirt.RunStrategyHalted && !options.Paused:
		return c.setRunning(ctx, vm, true, options.DryRun)
	case strategy == kubevirt.RunStrategyHalted:
		return c.request(ctx, vm, options.DryRun, start)
	case strategy == kubevirt.RunStrategyManual || strategy == kubevirt.RunStrategyRerunOnFailure:
		over := vmi != nil && (vmi.Status.Phase == kubevirt.Succeeded || vmi.IsFinal() && strategy == kubevirt.RunStrategyManual)

		switch {
		case over:
			return c.request(ctx, vm, options.DryRun, stopOf(vmi), start)
		case vmi != nil && vmi.Status.Phase == kubevirt.Failed:
			return 0, conflict("virtualmachine", name, "%v does not support starting VM from failed state", strategy)
		}

		return c.request(ctx, vm, options.DryRun, start)
	default:
		return 0, conflict("virtualmachine", name, "%v does not support manual start requests", strategy)
	}
}

func stopOf(vmi *kubevirt.VirtualMachineInstance) kubevirt.VirtualMachineStateChangeRequest {
	return kubevirt.VirtualMachineStateChangeRequest{Action: kubevirt.StopRequest, UID: &vmi.UID}
}

func (c *Controller) apiStop(ctx context.Context, namespace, name string, body io.Reader) (int, error) {
	var options kubevirt.StopOptions
	if err := decode(body, &options); err != nil {
		return 0, err
	}

	vm, err := c.fetch(ctx, namespace, name)
	if err != nil {
		return 0, err
	}

	strategy, err := vm.RunStrategy()
	if err != nil {
		return 0, err
	}

	vmi, err := c.fetchInstance(ctx, namespace, name)
	if err != nil {
		return 0, err
	}

	runs := vmi != nil && !vmi.IsFinal()
	before := int64(0)

	if runs && options.GracePeriod != nil {
		if vmi.Spec.TerminationGracePeriodSeconds != nil {
			before = *vmi.Spec.TerminationGracePeriodSeconds
		}

		if !dry(options.DryRun) {
			if err := c.shorten(ctx, vmi, *options.GracePeriod); err != nil {
				return 0, err
			}
		}
	}

	switch strategy {
	case kubevirt.RunStrategyHalted:
		switch {
		case !runs:
			return 0, conflict("virtualmachine", name, notRunning)
		case options.GracePeriod == nil || vmi.Spec.TerminationGracePeriodSeconds != nil && *options.GracePeriod >= before:
			return 0, conflict("virtualmachine", name, "%v only supports manual stop requests with a shorter graceperiod", strategy)
		}

		return c.request(ctx, vm, options.DryRun, stopOf(vmi))
	case kubevirt.RunStrategyRerunOnFailure, kubevirt.RunStrategyManual:
		if !runs {
			return 0, conflict("virtualmachine", name, notRunning)
		}

		return c.request(ctx, vm, options.DryRun, stopOf(vmi))
	default:
		return c.setRunning(ctx, vm, false, options.DryRun)
	}
}

// shorten gives an instance another grace period.
func (c *Controller) shorten(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, seconds int64) error {
	patch := fmt.Sprintf(`{"spec":{"terminationGracePeriodSeconds":%d}}`, seconds)

	updated, err := c.vmis.Patch(ctx, vmi.Namespace, vmi.Name, types.MergePatchType, []byte(patch))
	if err != nil {
		return err
	}

	c.vmis.Put(updated)
	c.instances.Add(kube.Key(updated))

	return nil
}

func (c *Controller) apiRestart(ctx context.Context, namespace, name string, body io.Reader) (int, error) {
	var options kubevirt.RestartOptions
	if err := decode(body, &options); err != nil {
		return 0, err
	}

	if seconds := options.GracePeriodSeconds; seconds != nil {
		switch {
		case *seconds > 0:
			return 0, apierrors.NewBadRequest("For force restart, only gracePeriod=0 is supported for now")
		case *seconds < 0:
			return 0, apierrors.NewBadRequest("gracePeriod has to be greater or equal to 0")
		}
	}

	vm, err := c.fetch(ctx, namespace, name)
	if err != nil {
		return 0, err
	}

	strategy, err := vm.RunStrategy()
	if err != nil {
		return 0, err
	}

	if strategy == kubevirt.RunStrategyHalted || strategy == kubevirt.RunStrategyOnce {
		return 0, conflict("virtualmachine", name, "RunStategy %v does not support manual restart requests", strategy)
	}

	vmi, err := c.fetchInstance(ctx, namespace, name)

	switch {
	case err != nil:
		return 0, err
	case vmi == nil:
		return 0, conflict("virtualmachine", name, "VM is not running: %v", kubevirt.RunStrategyHalted)
	}

	status, err := c.request(ctx, vm, options.DryRun, stopOf(vmi), kubevirt.VirtualMachineStateChangeRequest{Action: kubevirt.StartRequest})
	if err == nil && options.GracePeriodSeconds != nil && !dry(options.DryRun) {
		if d := c.domain(vmi.UID); d != nil {
			c.cut(d, kubevirt.Failed)
			c.instances.Add(d.key)
		}
	}

	return status, err
}

// request writes requests for a change into the status of a machine.
func (c *Controller) request(ctx context.Context, vm *kubevirt.VirtualMachine, options []string, changes ...kubevirt.VirtualMachineStateChangeRequest) (int, error) {
	waiting := vm.Status.StateChangeRequests
	if len(waiting) > 0 && (len(changes) != 1 || changes[0].Action != kubevirt.StopRequest) {
		return 0, errors.New("unable to complete request: stop/start already underway")
	}

	if dry(options) {
		return http.StatusAccepted, nil
	}

	var operations []any

	if vm.Status.PrintableStatus == "" && len(vm.Status.Conditions) == 0 {
		operations = append(operations, operation{"add", "/status", kubevirt.VirtualMachineStatus{StateChangeRequests: changes}})
	} else {
		if len(waiting) > 0 {
			operations = append(operations, operation{"test", "/status/stateChangeRequests", waiting})
		}

		operations = append(operations, operation{"add", "/status/stateChangeRequests", changes})
	}

	if vm.Status.StartFailure != nil {
		operations = append(operations, map[string]string{"op": "remove", "path": "/status/startFailure"})
	}

	return patched(vm, c.patchStatus(ctx, vm, operations...))
}

// setRunning changes the strategy of a machine, in whichever of the two fields it has it.
func (c *Controller) setRunning(ctx context.Context, vm *kubevirt.VirtualMachine, running bool, options []string) (int, error) {
	if dry(options) {
		return http.StatusAccepted, nil
	}

	strategy := kubevirt.RunStrategyHalted
	if running {
		strategy = kubevirt.RunStrategyAlways
	}

	operations := []operation{{"test", "/spec/running", vm.Spec.Running}, {"replace", "/spec/running", running}}
	if vm.Spec.RunStrategy != nil {
		operations = []operation{{"test", "/spec/runStrategy", vm.Spec.RunStrategy}, {"replace", "/spec/runStrategy", strategy}}
	}

	patch, err := json.Marshal(operations)
	if err != nil {
		return 0, err
	}

	updated, err := c.vms.Patch(ctx, vm.Namespace, vm.Name, types.JSONPatchType, patch)
	if err == nil {
		c.vms.Put(updated)
		c.machines.Add(kube.Key(updated))
	}

	return patched(vm, err)
}

// patched is the answer to a request that patched a machine: one that was changed meanwhile is a conflict.
func patched(vm *kubevirt.VirtualMachine, err error) (int, error) {
	switch {
	case err == nil:
		return http.StatusAccepted, nil
	case apierrors.IsConflict(err) || strings.Contains(err.Error(), "test operation does not apply") || strings.Contains(err.Error(), "testing value"):
		return 0, conflict("virtualmachine", vm.Name, "%w", err)
	default:
		return 0, apierrors.NewInternalError(err)
	}
}

// running returns the instance that a request is about.
func (c *Controller) running(ctx context.Context, namespace, name, otherwise string) (*kubevirt.VirtualMachineInstance, error) {
	vmi, err := c.fetchInstance(ctx, namespace, name)

	switch {
	case err != nil:
		return nil, apierrors.NewInternalError(fmt.Errorf("unable to retrieve vmi [%s]: %w", name, err))
	case vmi == nil:
		return nil, apierrors.NewNotFound(kubevirt.Resource("virtualmachineinstance"), name)
	case vmi.Status.Phase != kubevirt.Running:
		return nil, conflict("virtualmachineinstance", name, "%s", otherwise)
	}

	return vmi, nil
}

func (c *Controller) apiPause(ctx context.Context, namespace, name string, body io.Reader) (int, error) {
	var options kubevirt.PauseOptions
	if err := decode(body, &options); err != nil {
		return 0, err
	}

	vmi, err := c.running(ctx, namespace, name, notRunning)

	switch {
	case err != nil:
		return 0, err
	case vmi.Spec.LivenessProbe != nil:
		return 0, apierrors.NewForbidden(kubevirt.Resource("virtualmachineinstance"), name,
			errors.New("Pausing VMIs with LivenessProbe is currently not supported")) //nolint:staticcheck // As KubeVirt words it.
	case condition(vmi, kubevirt.VirtualMachineInstancePaused) != nil:
		return 0, conflict("virtualmachineinstance", name, "VMI is already paused")
	case dry(options.DryRun):
		return http.StatusOK, nil
	}

	return http.StatusOK, c.pause(vmi.UID, true)
}

func (c *Controller) apiUnpause(ctx context.Context, namespace, name string, body io.Reader) (int, error) {
	var options kubevirt.UnpauseOptions
	if err := decode(body, &options); err != nil {
		return 0, err
	}

	vmi, err := c.running(ctx, namespace, name, instanceNotRunning)

	switch {
	case err != nil:
		return 0, err
	case condition(vmi, kubevirt.VirtualMachineInstancePaused) == nil:
		return 0, conflict("virtualmachineinstance", name, notPaused)
	case dry(options.DryRun):
		return http.StatusOK, nil
	}

	return http.StatusOK, c.pause(vmi.UID, false)
}

func (c *Controller) apiSoftReboot(ctx context.Context, namespace, name string, _ io.Reader) (int, error) {
	vmi, err := c.running(ctx, namespace, name, notRunning)
	if err != nil {
		return 0, err
	}

	if holds(vmi, kubevirt.VirtualMachineInstancePaused) {
		return 0, conflict("virtualmachineinstance", name, "VMI is paused")
	}

	if f := vmi.Spec.Domain.Features; f != nil && f.ACPI.Enabled != nil && !*f.ACPI.Enabled {
		return 0, conflict("virtualmachineinstance", name, "VMI neither have the agent connected nor the ACPI feature enabled")
	}

	if c.fault(namespace + "/" + name).Deaf {
		return http.StatusOK, nil // The guest was asked, and does not listen.
	}

	return http.StatusOK, c.reset(vmi.UID)
}

func (c *Controller) apiReset(ctx context.Context, namespace, name string, _ io.Reader) (int, error) {
	vmi, err := c.fetchInstance(ctx, namespace, name)

	switch {
	case err != nil:
		return 0, err
	case vmi == nil:
		return 0, apierrors.NewNotFound(kubevirt.Resource("virtualmachineinstance"), name)
	case !vmi.IsRunning():
		return 0, apierrors.NewInternalError(fmt.Errorf("Failed to reset non-running VMI with phase %s: %w", vmi.Status.Phase, errNoDomain)) //nolint:staticcheck // As KubeVirt words it.
	}

	return http.StatusOK, c.reset(vmi.UID)
}
