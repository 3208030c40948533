package machine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Condition is what a cluster's reports on an object come to.
type Condition int

// The conditions.
const (
	// Working says that the cluster is at work, and to look again.
	Working Condition = iota
	// Ready says that it is as it should be.
	Ready
	// Stopped says that the machine is off.
	Stopped
	// NoCapacity says that the cluster has no room for now.
	NoCapacity
	// Stuck says that nothing goes on until somebody changes something in the cluster or in the class. The cluster tries again by
	// itself.
	Stuck
	// Failed says that this object will never come to anything: it has to be made anew.
	Failed
)

// String names the condition.
func (c Condition) String() string {
	return [...]string{"working", "ready", "stopped", "no capacity", "stuck", "failed"}[c]
}

// Status is a condition with one sentence for it.
type Status struct {
	Condition Condition
	Text      string
}

// Err is the status as the error of a phase that waits for Ready, nil when it is.
func (s Status) Err(after time.Duration) error {
	switch s.Condition {
	case Ready:
		return nil
	case Working:
		return driver.Pending(after, "%s", s.Text)
	case NoCapacity:
		return driver.Capacity(errors.New(s.Text))
	default:
		return errors.New(s.Text)
	}
}

// Report is all that a cluster reports of one machine. Every part may be missing.
type Report struct {
	VM          *kubevirtv1.VirtualMachine
	Instance    *kubevirtv1.VirtualMachineInstance
	DataVolumes []cdiv1.DataVolume
	Claims      []corev1.PersistentVolumeClaim
	// Events are those of any of the above and of the machine's pod, in any order.
	Events []corev1.Event
	// Still is since when each volume, by its name, has made no progress.
	Still map[string]time.Time
}

// maxDetail bounds what a sentence repeats of a cluster's own message, in characters.
const maxDetail = 300

// What is said of a machine and what an operator can do about it.
const (
	adviceNode   = "is on a node that does not answer; bring the node back, or delete it from the cluster"
	advicePaused = "is paused; resume it with virtctl unpause"
)

// maxRestarts is how often the pod that fills a volume may begin again before its error is more than a passing one. CDI restarts it
// once by design, when it finds out that it needs scratch space.
const maxRestarts = 3

// Describe says how the machine is.
func (r Report) Describe() Status {
	if r.VM == nil {
		return Status{Working, "the virtual machine is not there yet"}
	}

	if !r.VM.DeletionTimestamp.IsZero() {
		return r.say(Working, "is being deleted", "")
	}

	switch r.VM.Status.PrintableStatus {
	case kubevirtv1.VirtualMachineStatusRunning:
		return r.running()
	case kubevirtv1.VirtualMachineStatusMigrating:
		return r.say(Ready, "runs, and moves to another node", "")
	case kubevirtv1.VirtualMachineStatusStopped:
		return r.stopped()
	case kubevirtv1.VirtualMachineStatusStopping:
		return r.say(Working, "shuts down", "")
	case kubevirtv1.VirtualMachineStatusTerminating:
		return r.say(Working, "is being deleted", "")
	case kubevirtv1.VirtualMachineStatusPaused:
		if status, paused := r.Paused(); paused {
			return status
		}

		return r.say(Stuck, advicePaused, "")
	case kubevirtv1.VirtualMachineStatusCrashLoopBackOff:
		return r.say(Stuck, fmt.Sprintf("stopped right after its start %d times; KubeVirt starts it again", r.failures()), r.failure())
	case kubevirtv1.VirtualMachineStatusUnschedulable:
		return r.unschedulable(cmp.Or(r.instanceCondition(kubevirtv1.VirtualMachineInstanceConditionType(corev1.PodScheduled)), r.failure()))
	case kubevirtv1.VirtualMachineStatusErrImagePull, kubevirtv1.VirtualMachineStatusImagePullBackOff:
		return r.say(Stuck, "waits for a container image that its node cannot fetch", cmp.Or(r.instanceCondition(kubevirtv1.VirtualMachineInstanceSynchronized), r.warning()))
	case kubevirtv1.VirtualMachineStatusPvcNotFound:
		return r.say(Stuck, "waits for a volume that is not there; delete the machine, to be made anew", cmp.Or(r.failure(), r.instanceCondition(kubevirtv1.VirtualMachineInstanceSynchronized)))
	case kubevirtv1.VirtualMachineStatusDataVolumeError, kubevirtv1.VirtualMachineStatusProvisioning, kubevirtv1.VirtualMachineStatusWaitingForVolumeBinding:
		return r.provisioning()
	case kubevirtv1.VirtualMachineStatusUnknown:
		return r.say(Stuck, adviceNode, "")
	case kubevirtv1.VirtualMachineStatusWaitingForReceiver:
		return r.say(Working, "waits to be moved to another cluster", "")
	default:
		return r.starting()
	}
}

func (r Report) say(c Condition, what, detail string) Status {
	return Status{c, withDetail(fmt.Sprintf("virtual machine %s/%s %s", r.VM.Namespace, r.VM.Name, what), detail)}
}

// withDetail adds the cluster's own words in one line.
func withDetail(sentence, detail string) string {
	detail = strings.Join(strings.Fields(detail), " ")
	if detail == "" {
		return sentence
	}

	if utf8.RuneCountInString(detail) > maxDetail {
		detail = string([]rune(detail)[:maxDetail]) + "…"
	}

	return sentence + ": " + detail
}

func (r Report) running() Status {
	if why := r.instanceFalse(kubevirtv1.VirtualMachineInstanceSynchronized); why != "" {
		return r.say(Ready, "runs, but KubeVirt could not apply all of it", why)
	}

	return r.say(Ready, "runs", "")
}

// stopped tells a machine that is off from one that has not begun.
func (r Report) stopped() Status {
	if r.starts() && r.VM.Status.Created {
		return r.say(Working, "stopped; KubeVirt starts it again", r.failure())
	}

	if why := r.failure(); why != "" && r.starts() {
		return r.refused(why)
	}

	if r.starts() {
		return r.say(Working, "is about to start", "")
	}

	return r.say(Stopped, "is off", "")
}

// starts says whether KubeVirt is told to have the machine running.
func (r Report) starts() bool {
	s := r.VM.Spec.RunStrategy

	return s != nil && (*s == kubevirtv1.RunStrategyAlways || *s == kubevirtv1.RunStrategyRerunOnFailure && r.VM.Status.RunStrategy == "")
}

// Paused says how the machine is whose instance is paused; paused is false for any other.
func (r Report) Paused() (status Status, paused bool) {
	for _, c := range instanceConditions(r.Instance) {
		switch {
		case c.Type != kubevirtv1.VirtualMachineInstancePaused || c.Status != corev1.ConditionTrue:
		case c.Reason == "PausedIOError":
			return r.say(Stuck, "is paused, as a disk of it cannot be written: there may be no room on its storage", c.Message), true
		default:
			return r.say(Stuck, advicePaused, c.Message), true
		}
	}

	return Status{}, false
}

// starting is any state from which the machine may be on its way, with the first reason that it may not.
func (r Report) starting() Status {
	if why := r.instanceFalse(kubevirtv1.VirtualMachineInstanceConditionType(corev1.PodScheduled)); why != "" {
		return r.unschedulable(why)
	}

	if why := cmp.Or(r.failure(), r.instanceFalse(kubevirtv1.VirtualMachineInstanceSynchronized)); why != "" {
		return r.refused(why)
	}

	if volume, all := r.worstVolume(); !all {
		return volume
	}

	if why := r.warning(); why != "" {
		return r.say(Working, "starts", "the cluster warns of "+why)
	}

	return r.say(Working, "starts", "")
}

// refused is a machine of which KubeVirt could not make an instance or a pod.
func (r Report) refused(why string) Status {
	if lacksRoom(why) {
		return r.say(NoCapacity, "cannot start for lack of room", why)
	}

	return r.say(Stuck, "cannot start", why)
}

func (r Report) unschedulable(why string) Status {
	if lacksRoom(why) || why == "" {
		return r.say(NoCapacity, "waits for a node with room", why)
	}

	return r.say(Stuck, "finds no node that fits", why)
}

// provisioning is a machine that waits for its volumes.
func (r Report) provisioning() Status {
	if volume, all := r.worstVolume(); !all {
		return volume
	}

	if why := r.failure(); why != "" {
		return r.refused(why)
	}

	return r.say(Working, "waits for its volumes", r.warning())
}

// worstVolume is the status of the volume that keeps the machine waiting most, and whether all are ready.
func (r Report) worstVolume() (Status, bool) {
	worst, found := Status{}, false

	for i := range r.DataVolumes {
		dv := &r.DataVolumes[i]

		s := DescribeVolume(dv, r.claimOf(dv), r.Events, r.Still[dv.Name])
		if s.Condition != Ready && (!found || s.Condition > worst.Condition) {
			worst, found = s, true
		}
	}

	return worst, !found
}

func (r Report) claimOf(dv *cdiv1.DataVolume) *corev1.PersistentVolumeClaim {
	for i := range r.Claims {
		if r.Claims[i].Namespace == dv.Namespace && r.Claims[i].Name == cmp.Or(dv.Status.ClaimName, dv.Name) {
			return &r.Claims[i]
		}
	}

	return nil
}

func (r Report) failures() int {
	if f := r.VM.Status.StartFailure; f != nil {
		return f.ConsecutiveFailCount
	}

	return 0
}

// failure is what KubeVirt says of a machine that it could not start.
func (r Report) failure() string {
	for _, c := range r.VM.Status.Conditions {
		if c.Type == kubevirtv1.VirtualMachineFailure && c.Status == corev1.ConditionTrue {
			return cmp.Or(c.Message, c.Reason)
		}
	}

	return ""
}

func instanceConditions(vmi *kubevirtv1.VirtualMachineInstance) []kubevirtv1.VirtualMachineInstanceCondition {
	if vmi == nil {
		return nil
	}

	return vmi.Status.Conditions
}

// instanceCondition is what the condition of the instance says, true or not.
func (r Report) instanceCondition(of kubevirtv1.VirtualMachineInstanceConditionType) string {
	for _, c := range instanceConditions(r.Instance) {
		if c.Type == of {
			return cmp.Or(c.Message, c.Reason)
		}
	}

	return ""
}

// instanceFalse is what a condition of the instance says that does not hold.
func (r Report) instanceFalse(of kubevirtv1.VirtualMachineInstanceConditionType) string {
	for _, c := range instanceConditions(r.Instance) {
		if c.Type == of && c.Status == corev1.ConditionFalse {
			return cmp.Or(c.Message, c.Reason, string(c.Type)+" is false")
		}
	}

	return ""
}

// warning is the newest warning on the virtual machine, its instance or its pod.
func (r Report) warning() string {
	return newest(r.Events, func(e corev1.Event) bool {
		o := e.InvolvedObject
		if !warns(e) {
			return false
		}

		switch o.Kind {
		case "VirtualMachine", "VirtualMachineInstance":
			return o.Name == r.VM.Name
		case "Pod":
			return r.hasPod(o.UID)
		default:
			return false
		}
	})
}

// hasPod says whether a pod is the machine's. Its name says nothing: Kubernetes cuts long ones.
func (r Report) hasPod(uid types.UID) bool {
	if r.Instance == nil {
		return false
	}

	_, ok := r.Instance.Status.ActivePods[uid]

	return ok
}

// The reasons of what Kubernetes tells of a claim without calling it a warning: that nothing will provide its volume, and that a
// provisioner has not answered yet.
const (
	eventFailedBinding        = "FailedBinding"
	eventExternalProvisioning = "ExternalProvisioning"
)

func warns(e corev1.Event) bool {
	return e.Type == corev1.EventTypeWarning || e.Reason == eventFailedBinding
}

// newest is the text of the newest event of those that are asked for.
func newest(events []corev1.Event, wanted func(corev1.Event) bool) string {
	var last *corev1.Event

	for i := range events {
		if e := &events[i]; wanted(*e) && (last == nil || !eventTime(e).Before(eventTime(last))) {
			last = e
		}
	}

	if last == nil {
		return ""
	}

	return cmp.Or(last.Message, last.Reason)
}

func eventTime(e *corev1.Event) time.Time {
	latest := slices.MaxFunc(
		[]time.Time{e.LastTimestamp.Time, e.EventTime.Time, e.FirstTimestamp.Time, e.CreationTimestamp.Time}, time.Time.Compare,
	)

	if e.Series != nil && e.Series.LastObservedTime.After(latest) {
		return e.Series.LastObservedTime.Time
	}

	return latest
}

// roomWords are how schedulers, quotas and storage say that there is no room, in lower case.
var roomWords = []string{
	"exceeded quota", "insufficient ", "too many pods", "no space left", "not enough free", "not have enough free", "resourceexhausted", "out of capacity",
	"outofcpu", "outofmemory", "exceed max volume count",
}

// lacksRoom says whether a message is about room that may come free.
func lacksRoom(message string) bool {
	// A registry has insufficient permissions, which no waiting mends.
	message = strings.ReplaceAll(strings.ToLower(message), "insufficient permission", "")

	return slices.ContainsFunc(roomWords, func(w string) bool { return strings.Contains(message, w) })
}

// DescribeVolume says how a DataVolume is, from its phase and conditions, its claim, the events on both, and since when it has made no
// progress; claim may be nil, and still zero.
func DescribeVolume(dv *cdiv1.DataVolume, claim *corev1.PersistentVolumeClaim, events []corev1.Event, still time.Time) Status {
	v := volumeReport{dv: dv, claim: claim, events: events, still: still}

	if !dv.DeletionTimestamp.IsZero() {
		return v.say(Working, "is being deleted", "")
	}

	switch dv.Status.Phase {
	case cdiv1.Succeeded:
		return v.say(Ready, "is filled", "")
	case cdiv1.Failed:
		return v.say(Failed, "could not be filled", cmp.Or(v.condition(cdiv1.DataVolumeRunning), v.warning()))
	case cdiv1.Paused:
		return v.say(Stuck, "is paused; delete it, to be made anew", "")
	case cdiv1.Unknown:
		return v.say(Stuck, adviceNode, "")
	case cdiv1.WaitForFirstConsumer, cdiv1.PendingPopulation:
		// The machine's pod says where the volume has to be.
		return v.waiting("waits for the node of its machine")
	case cdiv1.PhaseUnset, cdiv1.Pending:
		return v.waiting("waits for storage")
	default:
		return v.filling()
	}
}

type volumeReport struct {
	dv     *cdiv1.DataVolume
	claim  *corev1.PersistentVolumeClaim
	events []corev1.Event
	still  time.Time
}

func (v volumeReport) say(c Condition, what, detail string) Status {
	return Status{c, withDetail(fmt.Sprintf("volume %s/%s %s", v.dv.Namespace, v.dv.Name, what), detail)}
}

// waiting is a volume of which nothing has been written yet.
func (v volumeReport) waiting(what string) Status {
	why := v.warning()

	for _, c := range v.dv.Status.Conditions {
		// CDI tells of a quota by a condition that it knows nothing of.
		if c.Type == cdiv1.DataVolumeBound && c.Status != corev1.ConditionTrue && (c.Reason == "ErrExceededQuota" || c.Reason == "ErrClaimNotValid") {
			why = cmp.Or(c.Message, c.Reason)
		}
	}

	switch {
	case why == "" && v.claim != nil && v.claim.Status.Phase == corev1.ClaimLost:
		return v.say(Failed, "has lost its storage; look at its volume claim, whose persistent volume is gone", "")
	case why == "":
		return v.goesOn(what, fmt.Sprintf("volume claim %s/%s, and at the provisioner of its storage class", v.dv.Namespace, v.dv.Name))
	case lacksRoom(why):
		return v.say(NoCapacity, "gets no storage for lack of room", why)
	default:
		return v.say(Stuck, "gets no storage", why)
	}
}

// filling is a volume that is written to, or would be.
func (v volumeReport) filling() Status {
	verb, look := "is being filled", fmt.Sprintf("volume claim %s/%s, and at the pods of CDI", v.dv.Namespace, v.dv.Name)

	switch v.dv.Status.Phase {
	case cdiv1.ImportScheduled, cdiv1.ImportInProgress:
		verb, look = "is being imported", fmt.Sprintf("pod %s/%s and its log", v.dv.Namespace, v.importer())
	case cdiv1.CloneScheduled, cdiv1.CloneInProgress, cdiv1.SnapshotForSmartCloneInProgress, cdiv1.CloneFromSnapshotSourceInProgress,
		cdiv1.SmartClonePVCInProgress, cdiv1.CSICloneInProgress, cdiv1.NamespaceTransferInProgress, cdiv1.PrepClaimInProgress, cdiv1.RebindInProgress:
		verb = "is being cloned"
	case cdiv1.ExpansionInProgress:
		verb = "is being enlarged"
	}

	if v.tells() {
		verb += ", " + string(v.dv.Status.Progress)
	}

	why, final := v.trouble()

	switch {
	case why == "":
		return v.goesOn(verb, look)
	case lacksRoom(why):
		return v.say(NoCapacity, verb+", but there is no room", why)
	case final:
		return v.say(Stuck, "cannot be filled", why)
	case v.dv.Status.RestartCount >= maxRestarts:
		return v.say(Stuck, fmt.Sprintf("cannot be filled; CDI has tried %d times and goes on", v.dv.Status.RestartCount+1), why)
	case v.overdue():
		return v.say(Stuck, verb+", with no progress since "+v.still.UTC().Format(time.RFC3339), why)
	default:
		return v.say(Working, verb+"; CDI tries again", why)
	}
}

// A volume that makes no progress for as long as this is stuck. CDI tells none of what the storage does by itself, which takes its time.
const (
	quietFor       = 15 * time.Minute
	quietUntoldFor = time.Hour
)

func (v volumeReport) overdue() bool {
	limit := quietFor

	switch v.dv.Status.Phase {
	case cdiv1.PhaseUnset, cdiv1.Pending, cdiv1.PVCBound, cdiv1.WaitForFirstConsumer, cdiv1.PendingPopulation, cdiv1.ImportScheduled, cdiv1.CloneScheduled:
	default:
		if !v.tells() {
			limit = quietUntoldFor
		}
	}

	return !v.still.IsZero() && time.Since(v.still) >= limit
}

// tells says whether CDI knows how far the volume is.
func (v volumeReport) tells() bool {
	return v.dv.Status.Progress != "" && v.dv.Status.Progress != "N/A"
}

// goesOn is a volume of which nothing is known that keeps it, with what to look at when it takes too long all the same.
func (v volumeReport) goesOn(what, look string) Status {
	if v.overdue() {
		return v.say(Stuck, what, fmt.Sprintf("no progress since %s; look at %s", v.still.UTC().Format(time.RFC3339), look))
	}

	if v.claim == nil || v.claim.Status.Phase == corev1.ClaimBound {
		return v.say(Working, what, "")
	}

	return v.say(Working, what, v.provisioner())
}

func (v volumeReport) importer() string {
	if v.claim == nil {
		return importerStem + v.dv.Name
	}

	return ImporterOf(v.claim)
}

// trouble is what keeps the volume from being filled, and whether trying again is of no use.
func (v volumeReport) trouble() (why string, final bool) {
	for _, c := range v.dv.Status.Conditions {
		switch {
		case c.Type == cdiv1.DataVolumeRunning && c.Status == corev1.ConditionFalse && strings.Contains(c.Reason, "Error"):
			// The pod ends that way when it needs scratch space, and goes on with it.
			if strings.Contains(c.Message, "scratch space required") {
				continue
			}

			return cmp.Or(c.Message, c.Reason), false
		case c.Type == cdiv1.DataVolumeRunning && c.Status == corev1.ConditionFalse && c.Reason == "ImagePullFailed":
			return cmp.Or(c.Message, c.Reason), true
		case c.Type == cdiv1.DataVolumeRunning && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable:
			return v.unscheduled(c.Message), true
		case c.Type == cdiv1.DataVolumeBound && c.Status != corev1.ConditionTrue && c.Reason == "ErrExceededQuota":
			return cmp.Or(c.Message, c.Reason), false
		}
	}

	// A pod that runs, or ended for another reason, has outlived what the events warn of, unless its claim is still without storage.
	if says := v.condition(cdiv1.DataVolumeRunning); says == "" || says == "ContainerCreating" || v.claim != nil && v.claim.Status.Phase == corev1.ClaimPending {
		return v.warning(), false
	}

	return "", false
}

// condition is what a condition of the DataVolume says.
func (v volumeReport) condition(of cdiv1.DataVolumeConditionType) string {
	for _, c := range v.dv.Status.Conditions {
		if c.Type == of {
			return cmp.Or(c.Message, c.Reason)
		}
	}

	return ""
}

// PrimeOf is the name of the claim that CDI fills in the place of another, to which it gives the volume afterwards. What is wrong with
// storage is told of that one.
func PrimeOf(claim *corev1.PersistentVolumeClaim) string { return "prime-" + string(claim.UID) }

// CDI's notes on a claim that it fills: the pod that does it, and whether another claim is filled in its place.
const (
	annotationImporter  = "cdi.kubevirt.io/storage.import.importPodName"
	annotationPopulator = "cdi.kubevirt.io/storage.usePopulator"
	importerStem        = "importer-"
)

// ImporterOf is the name of the pod that fills a claim by an import.
func ImporterOf(claim *corev1.PersistentVolumeClaim) string {
	switch {
	case claim.Annotations[annotationImporter] != "":
		return claim.Annotations[annotationImporter]
	case claim.Annotations[annotationPopulator] == "true":
		return importerStem + PrimeOf(claim)
	default:
		return importerStem + claim.Name
	}
}

// warning is the newest warning on the DataVolume, its claim, the claim that CDI fills in its place, and the pod that fills it.
func (v volumeReport) warning() string {
	return newest(v.events, func(e corev1.Event) bool { return warns(e) && v.concerns(e.InvolvedObject) })
}

// unscheduled is why the pod that fills the volume has no node. That it has no volume either is the provisioner's doing.
func (v volumeReport) unscheduled(message string) string {
	why := cmp.Or(v.warning(), message)

	if hint := v.provisioner(); hint != "" && (why == message || strings.Contains(why, "unbound immediate PersistentVolumeClaims")) {
		return hint
	}

	return why
}

// provisioner is what Kubernetes says of a provisioner that has not answered yet.
func (v volumeReport) provisioner() string {
	return newest(v.events, func(e corev1.Event) bool {
		return e.Reason == eventExternalProvisioning && v.concerns(e.InvolvedObject)
	})
}

// concerns says whether an object is the volume, its claim, the claim that CDI fills for it, or the pod that fills it.
func (v volumeReport) concerns(o corev1.ObjectReference) bool {
	if o.Namespace != "" && o.Namespace != v.dv.Namespace {
		return false
	}

	prime := ""
	if v.claim != nil && v.claim.UID != "" {
		prime = PrimeOf(v.claim)
	}

	return (o.Kind == "DataVolume" || o.Kind == "PersistentVolumeClaim") && o.Name == v.dv.Name ||
		prime != "" && o.Kind == "PersistentVolumeClaim" && o.Name == prime || o.Kind == "Pod" && o.Name == v.importer()
}
