package machine

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func volume(phase cdiv1.DataVolumePhase, conditions ...cdiv1.DataVolumeCondition) *cdiv1.DataVolume {
	return &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vol"},
		Status:     cdiv1.DataVolumeStatus{Phase: phase, Conditions: conditions},
	}
}

func condition(of cdiv1.DataVolumeConditionType, status corev1.ConditionStatus, reason, message string) cdiv1.DataVolumeCondition {
	return cdiv1.DataVolumeCondition{Type: of, Status: status, Reason: reason, Message: message}
}

func restarted(dv *cdiv1.DataVolume, times int32) *cdiv1.DataVolume {
	dv.Status.RestartCount = times

	return dv
}

func progress(dv *cdiv1.DataVolume, p string) *cdiv1.DataVolume {
	dv.Status.Progress = cdiv1.DataVolumeProgress(p)

	return dv
}

func warning(kind, name, message string, at int) corev1.Event {
	return corev1.Event{
		Type: corev1.EventTypeWarning, Message: message, InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: "ns", Name: name},
		LastTimestamp: metav1.NewTime(testTime.Add(time.Duration(at) * time.Second)),
	}
}

func TestAVolumeAtWorkStuckAndFailedAreToldApart(t *testing.T) {
	const refused = "Unable to connect to http data source: expected status code 200, got 404"

	bound := condition(cdiv1.DataVolumeBound, corev1.ConditionTrue, "Bound", "PVC vol Bound")
	failing := condition(cdiv1.DataVolumeRunning, corev1.ConditionFalse, "Error", refused)
	told := func(reason, message string) corev1.Event {
		e := warning("PersistentVolumeClaim", "vol", message, 9)
		e.Type, e.Reason = corev1.EventTypeNormal, reason

		return e
	}
	normal := told("WaitForFirstConsumer", "waiting for first consumer to be created before binding")

	for _, test := range []struct {
		name   string
		dv     *cdiv1.DataVolume
		claim  *corev1.PersistentVolumeClaim
		events []corev1.Event
		want   Status
	}{
		{"just made", volume(""), nil, nil, Status{Working, "volume ns/vol waits for storage"}},
		{"filled", volume(cdiv1.Succeeded), nil, nil, Status{Ready, "volume ns/vol is filled"}},
		{"filled after trouble", volume(cdiv1.Succeeded, failing), nil, []corev1.Event{warning("DataVolume", "vol", refused, 1)}, Status{Ready, "volume ns/vol is filled"}},
		{"failed", volume(cdiv1.Failed, failing), nil, nil, Status{Failed, "volume ns/vol could not be filled: " + refused}},
		{"failed by its events", volume(cdiv1.Failed), nil, []corev1.Event{warning("DataVolume", "vol", "no", 1)}, Status{Failed, "volume ns/vol could not be filled: no"}},
		{"failed without a word", volume(cdiv1.Failed), nil, nil, Status{Failed, "volume ns/vol could not be filled"}},
		{"importing", progress(volume(cdiv1.ImportInProgress, bound), "42.10%"), nil, nil, Status{Working, "volume ns/vol is being imported, 42.10%"}},
		{"no progress known", progress(volume(cdiv1.ImportInProgress, bound), "N/A"), nil, nil, Status{Working, "volume ns/vol is being imported"}},
		{"cloning", volume(cdiv1.CSICloneInProgress, bound), nil, nil, Status{Working, "volume ns/vol is being cloned"}},
		{"a snapshot's clone", volume(cdiv1.CloneFromSnapshotSourceInProgress, bound), nil, nil, Status{Working, "volume ns/vol is being cloned"}},
		{"growing", volume(cdiv1.ExpansionInProgress, bound), nil, nil, Status{Working, "volume ns/vol is being enlarged"}},
		{
			"import began again", restarted(volume(cdiv1.ImportInProgress, bound, failing), 1), nil, nil,
			Status{Working, "volume ns/vol is being imported; CDI tries again: " + refused},
		},
		{
			"import begins again for ever", restarted(volume(cdiv1.ImportInProgress, bound, failing), 7), nil, nil,
			Status{Stuck, "volume ns/vol cannot be filled; CDI has tried 8 times and goes on: " + refused},
		},
		{
			"import recovered", restarted(volume(cdiv1.ImportInProgress, bound, condition(cdiv1.DataVolumeRunning, corev1.ConditionTrue, "Pod is running", "")), 7),
			nil, []corev1.Event{warning("DataVolume", "vol", refused, 1)}, Status{Working, "volume ns/vol is being imported"},
		},
		{
			"scratch space", restarted(volume(cdiv1.ImportInProgress, bound, condition(cdiv1.DataVolumeRunning, corev1.ConditionFalse, "Error", "scratch space required and none found")), 1),
			nil, nil, Status{Working, "volume ns/vol is being imported"},
		},
		{
			"scratch space, as CDI says it now", restarted(volume(cdiv1.ImportInProgress, bound,
				condition(cdiv1.DataVolumeRunning, corev1.ConditionFalse, "Scratch space required", "scratch space required and none found")), 1),
			nil, nil, Status{Working, "volume ns/vol is being imported"},
		},
		{
			"disk too small", restarted(volume(cdiv1.ImportInProgress, bound, condition(cdiv1.DataVolumeRunning, corev1.ConditionFalse, "Error", "DataVolume too small to contain image: no space left on device")), 0),
			nil, nil, Status{NoCapacity, "volume ns/vol is being imported, but there is no room: DataVolume too small to contain image: no space left on device"},
		},
		{
			"importer's image", volume(cdiv1.ImportScheduled, condition(cdiv1.DataVolumeRunning, corev1.ConditionFalse, "ImagePullFailed", "back-off pulling image")), nil, nil,
			Status{Stuck, "volume ns/vol cannot be filled: back-off pulling image"},
		},
		{
			"importer finds no node", volume(cdiv1.ImportScheduled, condition(cdiv1.DataVolumeRunning, corev1.ConditionFalse, "Unschedulable", "Importer pod cannot be scheduled")), nil, nil,
			Status{Stuck, "volume ns/vol cannot be filled: Importer pod cannot be scheduled"},
		},
		{
			"both ends of a copy", restarted(volume(cdiv1.CloneInProgress, bound, condition(cdiv1.DataVolumeRunning, corev1.ConditionFalse, "Error and Error", "a and b")), 3), nil, nil,
			Status{Stuck, "volume ns/vol cannot be filled; CDI has tried 4 times and goes on: a and b"},
		},
		{
			"quota, as an event", volume(cdiv1.Pending), nil,
			[]corev1.Event{warning("DataVolume", "vol", `persistentvolumeclaims "vol" is forbidden: exceeded quota: q, requested: requests.storage=20Gi`, 1)},
			Status{NoCapacity, `volume ns/vol gets no storage for lack of room: persistentvolumeclaims "vol" is forbidden: exceeded quota: q, requested: requests.storage=20Gi`},
		},
		{
			"quota, as a condition", volume(cdiv1.Pending, condition(cdiv1.DataVolumeBound, corev1.ConditionUnknown, "ErrExceededQuota", "exceeded quota: q")), nil, nil,
			Status{NoCapacity, "volume ns/vol gets no storage for lack of room: exceeded quota: q"},
		},
		{
			"storage class that is not there", volume(cdiv1.Pending), &corev1.PersistentVolumeClaim{},
			[]corev1.Event{warning("PersistentVolumeClaim", "vol", `storageclass.storage.k8s.io "fsat" not found`, 1)},
			Status{Stuck, `volume ns/vol gets no storage: storageclass.storage.k8s.io "fsat" not found`},
		},
		{
			"no storage class", volume(cdiv1.Pending), &corev1.PersistentVolumeClaim{}, []corev1.Event{told("FailedBinding", "no storage class is set")},
			Status{Stuck, "volume ns/vol gets no storage: no storage class is set"},
		},
		{
			"a provisioner that may still answer", volume(cdiv1.Pending), &corev1.PersistentVolumeClaim{},
			[]corev1.Event{told("ExternalProvisioning", "waiting for the provisioner x")},
			Status{Working, "volume ns/vol waits for storage: waiting for the provisioner x"},
		},
		{
			"an importer whose volume nobody provides", volume(cdiv1.ImportScheduled, condition(cdiv1.DataVolumeRunning, corev1.ConditionFalse, "Unschedulable", "Importer pod cannot be scheduled")),
			&corev1.PersistentVolumeClaim{}, []corev1.Event{told("ExternalProvisioning", "waiting for the provisioner x")},
			Status{Stuck, "volume ns/vol cannot be filled: waiting for the provisioner x"},
		},
		{
			"access mode that no profile has", volume(cdiv1.Pending), nil, []corev1.Event{warning("DataVolume", "vol", "no accessMode specified in StorageProfile x", 1)},
			Status{Stuck, "volume ns/vol gets no storage: no accessMode specified in StorageProfile x"},
		},
		{"first consumer", volume(cdiv1.WaitForFirstConsumer), nil, []corev1.Event{normal}, Status{Working, "volume ns/vol waits for the node of its machine"}},
		{
			"the claim that CDI fills", volume(cdiv1.PendingPopulation), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "u-1"}},
			[]corev1.Event{warning("PersistentVolumeClaim", "prime-u-1", "failed to provision volume: pool is read-only", 1)},
			Status{Stuck, "volume ns/vol gets no storage: failed to provision volume: pool is read-only"},
		},
		{
			"the newest of many", volume(cdiv1.Pending), nil, []corev1.Event{
				warning("DataVolume", "vol", "second", 5), warning("DataVolume", "vol", "first", 1), warning("DataVolume", "other", "of another", 9),
				warning("Pod", "vol", "of a pod", 9), {Type: corev1.EventTypeWarning, Message: "elsewhere", InvolvedObject: corev1.ObjectReference{Kind: "DataVolume", Namespace: "x", Name: "vol"}},
			},
			Status{Stuck, "volume ns/vol gets no storage: second"},
		},
		{
			"lost", volume(cdiv1.Pending), &corev1.PersistentVolumeClaim{Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimLost}}, nil,
			Status{Failed, "volume ns/vol has lost its storage; look at its volume claim, whose persistent volume is gone"},
		},
		{"unknown", volume(cdiv1.Unknown), nil, nil, Status{Stuck, "volume ns/vol is on a node that does not answer; bring the node back, or delete it from the cluster"}},
		{"paused", volume(cdiv1.Paused), nil, nil, Status{Stuck, "volume ns/vol is paused; delete it, to be made anew"}},
		{"of a phase to come", volume("Teleporting"), nil, nil, Status{Working, "volume ns/vol is being filled"}},
		{
			"being deleted", func() *cdiv1.DataVolume {
				v := volume(cdiv1.Failed)
				v.DeletionTimestamp = new(metav1.NewTime(testTime))
				return v
			}(), nil, nil,
			Status{Working, "volume ns/vol is being deleted"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, DescribeVolume(test.dv, test.claim, test.events, time.Time{}))
		})
	}
}

func TestAVolumeWithoutProgressIsStuckWithSomethingToLookAt(t *testing.T) {
	populated := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "u-1", Name: "vol", Annotations: map[string]string{annotationPopulator: "true"}}}
	creating := condition(cdiv1.DataVolumeRunning, corev1.ConditionFalse, "ContainerCreating", "")

	for _, test := range []struct {
		name   string
		dv     *cdiv1.DataVolume
		claim  *corev1.PersistentVolumeClaim
		events []corev1.Event
		still  time.Duration
		want   string
	}{
		{"import", progress(volume(cdiv1.ImportInProgress), "0.00%"), nil, nil, 15 * time.Minute, "volume ns/vol is being imported, 0.00%: no progress since SINCE; look at pod ns/importer-vol and its log"},
		{"a populator's import", progress(volume(cdiv1.ImportInProgress), "7.00%"), populated, nil, time.Hour, "volume ns/vol is being imported, 7.00%: no progress since SINCE; look at pod ns/importer-prime-u-1 and its log"},
		{"import that does not begin", volume(cdiv1.ImportScheduled, creating), nil, nil, 20 * time.Minute, "volume ns/vol is being imported: no progress since SINCE; look at pod ns/importer-vol and its log"},
		{
			"importer that is not made", volume(cdiv1.ImportScheduled, creating), nil, []corev1.Event{warning("Pod", "importer-vol", "MountVolume.SetUp failed", 1)}, 20 * time.Minute,
			"volume ns/vol is being imported, with no progress since SINCE: MountVolume.SetUp failed",
		},
		{"storage that never comes", volume(cdiv1.Pending), nil, nil, 20 * time.Minute, "volume ns/vol waits for storage: no progress since SINCE; look at volume claim ns/vol, and at the provisioner of its storage class"},
		{"the storage's own copy", volume(cdiv1.CSICloneInProgress), nil, nil, 61 * time.Minute, "volume ns/vol is being cloned: no progress since SINCE; look at volume claim ns/vol, and at the pods of CDI"},
		{"import that nothing is told of, yet", progress(volume(cdiv1.ImportInProgress), "N/A"), nil, nil, 50 * time.Minute, ""},
		{"the storage's own copy, yet", volume(cdiv1.CSICloneInProgress), nil, nil, 50 * time.Minute, ""},
		{"import, yet", progress(volume(cdiv1.ImportInProgress), "0.00%"), nil, nil, 14 * time.Minute, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			since := time.Now().Add(-test.still)
			got := DescribeVolume(test.dv, test.claim, test.events, since)

			if test.want == "" {
				require.Equal(t, Working, got.Condition, got.Text)

				return
			}

			require.Equal(t, Status{Stuck, strings.Replace(test.want, "SINCE", since.UTC().Format(time.RFC3339), 1)}, got)
		})
	}
}

func vm(status kubevirtv1.VirtualMachinePrintableStatus, failure string) *kubevirtv1.VirtualMachine {
	strategy := kubevirtv1.RunStrategyAlways
	v := &kubevirtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"},
		Spec:       kubevirtv1.VirtualMachineSpec{RunStrategy: &strategy},
		Status:     kubevirtv1.VirtualMachineStatus{PrintableStatus: status},
	}

	if failure != "" {
		v.Status.Conditions = []kubevirtv1.VirtualMachineCondition{{Type: kubevirtv1.VirtualMachineFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: failure}}
	}

	return v
}

func with(v *kubevirtv1.VirtualMachine, change func(*kubevirtv1.VirtualMachine)) *kubevirtv1.VirtualMachine {
	change(v)

	return v
}

func vmi(of kubevirtv1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus, reason, message string) *kubevirtv1.VirtualMachineInstance {
	return &kubevirtv1.VirtualMachineInstance{Status: kubevirtv1.VirtualMachineInstanceStatus{
		Conditions: []kubevirtv1.VirtualMachineInstanceCondition{{Type: of, Status: status, Reason: reason, Message: message}},
	}}
}

// launched is an instance with a pod.
func launched(pod types.UID) *kubevirtv1.VirtualMachineInstance {
	return &kubevirtv1.VirtualMachineInstance{Status: kubevirtv1.VirtualMachineInstanceStatus{ActivePods: map[types.UID]string{pod: ""}}}
}

func ofPod(uid types.UID, message string, at int) corev1.Event {
	e := warning("Pod", "virt-launcher-m-"+string(uid), message, at)
	e.InvolvedObject.UID = uid

	return e
}

func TestAMachinesStateIsOneSentence(t *testing.T) {
	const (
		scheduled = kubevirtv1.VirtualMachineInstanceConditionType(corev1.PodScheduled)
		synced    = kubevirtv1.VirtualMachineInstanceSynchronized
		paused    = kubevirtv1.VirtualMachineInstancePaused
		full      = "0/3 nodes are available: 3 Insufficient memory. preemption: 0/3 nodes are available"
		nowhere   = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector"
		quota     = `failed to create virtual machine pod: pods "virt-launcher-m-x" is forbidden: exceeded quota: q`
	)

	manual, rerun, halted := kubevirtv1.RunStrategyManual, kubevirtv1.RunStrategyRerunOnFailure, kubevirtv1.RunStrategyHalted

	for _, test := range []struct {
		name   string
		report Report
		want   Status
	}{
		{"nothing", Report{}, Status{Working, "the virtual machine is not there yet"}},
		{"not looked at", Report{VM: vm("", "")}, Status{Working, "virtual machine ns/m starts"}},
		{"running", Report{VM: vm("Running", "")}, Status{Ready, "virtual machine ns/m runs"}},
		{"running, not in step", Report{VM: vm("Running", ""), Instance: vmi(synced, "False", "x", "cannot attach")}, Status{Ready, "virtual machine ns/m runs, but KubeVirt could not apply all of it: cannot attach"}},
		{"moving", Report{VM: vm("Migrating", "")}, Status{Ready, "virtual machine ns/m runs, and moves to another node"}},
		{"halted", Report{VM: with(vm("Stopped", ""), func(v *kubevirtv1.VirtualMachine) { v.Spec.RunStrategy = &halted })}, Status{Stopped, "virtual machine ns/m is off"}},
		{"manual", Report{VM: with(vm("Stopped", ""), func(v *kubevirtv1.VirtualMachine) { v.Spec.RunStrategy = &manual })}, Status{Stopped, "virtual machine ns/m is off"}},
		{"shut down by itself", Report{VM: with(vm("Stopped", ""), func(v *kubevirtv1.VirtualMachine) {
			v.Spec.RunStrategy, v.Status.RunStrategy = &rerun, rerun
		})}, Status{Stopped, "virtual machine ns/m is off"}},
		{"never begun", Report{VM: with(vm("Stopped", ""), func(v *kubevirtv1.VirtualMachine) { v.Spec.RunStrategy = &rerun })}, Status{Working, "virtual machine ns/m is about to start"}},
		{"stopped, to go on", Report{VM: with(vm("Stopped", ""), func(v *kubevirtv1.VirtualMachine) { v.Status.Created = true })}, Status{Working, "virtual machine ns/m stopped; KubeVirt starts it again"}},
		{"refused", Report{VM: vm("Stopped", "admission webhook denied the request: bridge on pod network is not enabled")}, Status{Stuck, "virtual machine ns/m cannot start: admission webhook denied the request: bridge on pod network is not enabled"}},
		{"stopping", Report{VM: vm("Stopping", "")}, Status{Working, "virtual machine ns/m shuts down"}},
		{"terminating", Report{VM: vm("Terminating", "")}, Status{Working, "virtual machine ns/m is being deleted"}},
		{"deleted while running", Report{VM: with(vm("Running", ""), func(v *kubevirtv1.VirtualMachine) { v.DeletionTimestamp = new(metav1.NewTime(testTime)) })}, Status{Working, "virtual machine ns/m is being deleted"}},
		{"paused", Report{VM: vm("Paused", ""), Instance: vmi(paused, "True", "PausedByUser", "VMI was paused by user")}, Status{Stuck, "virtual machine ns/m is paused; resume it with virtctl unpause: VMI was paused by user"}},
		{"disk full", Report{VM: vm("Paused", ""), Instance: vmi(paused, "True", "PausedIOError", "low-level IO error")}, Status{Stuck, "virtual machine ns/m is paused, as a disk of it cannot be written: there may be no room on its storage: low-level IO error"}},
		{"paused for no reason", Report{VM: vm("Paused", "")}, Status{Stuck, "virtual machine ns/m is paused; resume it with virtctl unpause"}},
		{"crashing", Report{VM: with(vm("CrashLoopBackOff", "guest failed"), func(v *kubevirtv1.VirtualMachine) {
			v.Status.StartFailure = &kubevirtv1.VirtualMachineStartFailure{ConsecutiveFailCount: 4}
		})}, Status{Stuck, "virtual machine ns/m stopped right after its start 4 times; KubeVirt starts it again: guest failed"}},
		{"no room", Report{VM: vm("ErrorUnschedulable", ""), Instance: vmi(scheduled, "False", "Unschedulable", full)}, Status{NoCapacity, "virtual machine ns/m waits for a node with room: " + full}},
		{"no node fits", Report{VM: vm("ErrorUnschedulable", ""), Instance: vmi(scheduled, "False", "Unschedulable", nowhere)}, Status{Stuck, "virtual machine ns/m finds no node that fits: " + nowhere}},
		{"unschedulable for no reason", Report{VM: vm("ErrorUnschedulable", "")}, Status{NoCapacity, "virtual machine ns/m waits for a node with room"}},
		{"container image", Report{VM: vm("ErrImagePull", ""), Instance: vmi(synced, "False", "ErrImagePull", "rpc error: not found")}, Status{Stuck, "virtual machine ns/m waits for a container image that its node cannot fetch: rpc error: not found"}},
		{"container image, later", Report{VM: vm("ImagePullBackOff", ""), Instance: launched("p-1"), Events: []corev1.Event{ofPod("p-1", "Failed to pull image", 1)}}, Status{Stuck, "virtual machine ns/m waits for a container image that its node cannot fetch: Failed to pull image"}},
		{"claim that is gone", Report{VM: vm("ErrorPvcNotFound", ""), Instance: vmi(synced, "False", "FailedPvcNotFound", "PVC ns/m-root does not exist")}, Status{Stuck, "virtual machine ns/m waits for a volume that is not there; delete the machine, to be made anew: PVC ns/m-root does not exist"}},
		{"node away", Report{VM: vm("Unknown", "")}, Status{Stuck, "virtual machine ns/m is on a node that does not answer; bring the node back, or delete it from the cluster"}},
		{"receiver", Report{VM: vm("WaitingForReceiver", "")}, Status{Working, "virtual machine ns/m waits to be moved to another cluster"}},
		{"volumes", Report{VM: vm("Provisioning", ""), DataVolumes: []cdiv1.DataVolume{*volume(cdiv1.Succeeded), *progress(volume(cdiv1.CloneInProgress), "10%")}}, Status{Working, "volume ns/vol is being cloned, 10%"}},
		{"the worst volume", Report{VM: vm("DataVolumeError", ""), DataVolumes: []cdiv1.DataVolume{*volume(cdiv1.CloneInProgress), *volume(cdiv1.Failed)}}, Status{Failed, "volume ns/vol could not be filled"}},
		{
			"volume without storage",
			Report{VM: vm("WaitingForVolumeBinding", ""), DataVolumes: []cdiv1.DataVolume{*volume(cdiv1.Pending)}, Events: []corev1.Event{warning("PersistentVolumeClaim", "vol", `storageclass "x" not found`, 1)}},
			Status{Stuck, `volume ns/vol gets no storage: storageclass "x" not found`},
		},
		{"volumes not made", Report{VM: vm("Provisioning", "")}, Status{Working, "virtual machine ns/m waits for its volumes"}},
		{"volumes refused", Report{VM: vm("Provisioning", "failed to create DataVolume: exceeded quota: q")}, Status{NoCapacity, "virtual machine ns/m cannot start for lack of room: failed to create DataVolume: exceeded quota: q"}},
		{"starting", Report{VM: vm("Starting", ""), DataVolumes: []cdiv1.DataVolume{*volume(cdiv1.Succeeded)}}, Status{Working, "virtual machine ns/m starts"}},
		{"starting, waits for its volume", Report{VM: vm("Starting", ""), DataVolumes: []cdiv1.DataVolume{*volume(cdiv1.WaitForFirstConsumer)}}, Status{Working, "volume ns/vol waits for the node of its machine"}},
		{"starting, unschedulable", Report{VM: vm("Starting", ""), Instance: vmi(scheduled, "False", "Unschedulable", full)}, Status{NoCapacity, "virtual machine ns/m waits for a node with room: " + full}},
		{"starting, quota", Report{VM: vm("Starting", ""), Instance: vmi(synced, "False", "FailedCreate", quota)}, Status{NoCapacity, "virtual machine ns/m cannot start for lack of room: " + quota}},
		{"starting, pod refused", Report{VM: vm("Starting", ""), Instance: vmi(synced, "False", "FailedCreate", "violates PodSecurity")}, Status{Stuck, "virtual machine ns/m cannot start: violates PodSecurity"}},
		{"starting, no words", Report{VM: vm("Starting", ""), Instance: vmi(synced, "False", "", "")}, Status{Stuck, "virtual machine ns/m cannot start: Synchronized is false"}},
		{"starting, warned of", Report{VM: vm("Starting", ""), Instance: launched("p-1"), Events: []corev1.Event{
			ofPod("p-1", `MountVolume.SetUp failed: secret "m-user-data" not found`, 2), ofPod("p-2", "of another", 3),
		}}, Status{Working, `virtual machine ns/m starts: the cluster warns of MountVolume.SetUp failed: secret "m-user-data" not found`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, test.report.Describe())
		})
	}
}

func TestASentenceIsOneLineOfBoundedLength(t *testing.T) {
	s := Report{VM: vm("Stopped", "a\n\n\tb "+strings.Repeat("ü", 10_000))}.Describe()
	require.Contains(t, s.Text, ": a b ü")
	require.NotContains(t, s.Text, "\n")
	require.Less(t, len([]rune(s.Text)), maxDetail+100)
}

func TestAStatusIsAnErrorOfItsKind(t *testing.T) {
	require.NoError(t, Status{Ready, "x"}.Err(time.Second))

	pending := Status{Working, "100 % done"}.Err(time.Second)
	require.Equal(t, driver.KindPending, driver.KindOf(pending))
	require.Equal(t, time.Second, driver.PauseOf(pending))
	require.EqualError(t, pending, "100 % done")

	require.Equal(t, driver.KindCapacity, driver.KindOf(Status{NoCapacity, "x"}.Err(0)))

	for _, c := range []Condition{Stuck, Failed, Stopped} {
		err := Status{c, "x"}.Err(0)
		require.Equal(t, driver.KindTransient, driver.KindOf(err), c)
		require.EqualError(t, err, "x")
		require.NotEmpty(t, c.String())
	}
}
