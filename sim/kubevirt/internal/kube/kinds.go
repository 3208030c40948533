package kube

import "k8s.io/apimachinery/pkg/runtime/schema"

func kind(group, version, name, resource string) Kind {
	return Kind{GroupVersionKind: schema.GroupVersionKind{Group: group, Version: version, Kind: name}, Resource: resource}
}

func clusterKind(group, version, name, resource string) Kind {
	k := kind(group, version, name, resource)
	k.Cluster = true

	return k
}

// The kinds that the controllers look after.
var (
	VirtualMachines         = kind("kubevirt.io", "v1", "VirtualMachine", "virtualmachines")
	VirtualMachineInstances = kind("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances")
	DataVolumes             = kind("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes")
	StorageProfiles         = clusterKind("cdi.kubevirt.io", "v1beta1", "StorageProfile", "storageprofiles")
	Claims                  = kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
	Secrets                 = kind("", "v1", "Secret", "secrets")
	Pods                    = kind("", "v1", "Pod", "pods")
	ConfigMaps              = kind("", "v1", "ConfigMap", "configmaps")
	Events                  = kind("", "v1", "Event", "events")
	Namespaces              = clusterKind("", "v1", "Namespace", "namespaces")
	Quotas                  = kind("", "v1", "ResourceQuota", "resourcequotas")
	ControllerRevisions     = kind("apps", "v1", "ControllerRevision", "controllerrevisions")
	StorageClasses          = clusterKind("storage.k8s.io", "v1", "StorageClass", "storageclasses")
	VolumeSnapshots         = kind("snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots")
	VolumeSnapshotContents  = clusterKind("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent", "volumesnapshotcontents")
	VolumeSnapshotClasses   = clusterKind("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass", "volumesnapshotclasses")
	InstanceTypes           = kind("instancetype.kubevirt.io", "v1beta1", "VirtualMachineInstancetype", "virtualmachineinstancetypes")
	ClusterInstanceTypes    = clusterKind("instancetype.kubevirt.io", "v1beta1", "VirtualMachineClusterInstancetype",
		"virtualmachineclusterinstancetypes")
	Preferences        = kind("instancetype.kubevirt.io", "v1beta1", "VirtualMachinePreference", "virtualmachinepreferences")
	ClusterPreferences = clusterKind("instancetype.kubevirt.io", "v1beta1", "VirtualMachineClusterPreference",
		"virtualmachineclusterpreferences")
)
