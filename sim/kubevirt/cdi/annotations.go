package cdi

// Annotations that CDI puts on claims, and reads from DataVolumes.
const (
	annPrefix            = "cdi.kubevirt.io/"
	annPodPhase          = annPrefix + "storage.pod.phase"
	annPodRestarts       = annPrefix + "storage.pod.restarts"
	annPodSchedulable    = annPrefix + "storage.pod.schedulable"
	annFatal             = annPrefix + "storage.import.fatalError"
	annEndpoint          = annPrefix + "storage.import.endpoint"
	annSource            = annPrefix + "storage.import.source"
	annImportPod         = annPrefix + "storage.import.importPodName"
	annContentType       = annPrefix + "storage.contentType"
	annRunning           = annPrefix + "storage.condition.running"
	annRunningMessage    = annPrefix + "storage.condition.running.message"
	annRunningReason     = annPrefix + "storage.condition.running.reason"
	annPopulatedFor      = annPrefix + "storage.populatedFor"
	annUsePopulator      = annPrefix + "storage.usePopulator"
	annPopulatorProgress = annPrefix + "storage.populator.progress"
	annImmediate         = annPrefix + "storage.bind.immediate.requested"
	annCollect           = annPrefix + "storage.deleteAfterCompletion"
	annClone             = "k8s.io/CloneRequest"
	annCloneOf           = "k8s.io/CloneOf"
	annCloneType         = annPrefix + "cloneType"
	annAdopt             = annPrefix + "allowClaimAdoption"
	annCreatedFor        = annPrefix + "createdForDataVolume"

	selectedNode   = "volume.kubernetes.io/selected-node"
	defaultClass   = "storageclass.kubernetes.io/is-default-class"
	defaultVirtual = "storageclass.kubevirt.io/is-default-virt-class"
)
