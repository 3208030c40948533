package apiserver

import (
	apps "k8s.io/api/apps/v1"
	authorization "k8s.io/api/authorization/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	scheduling "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// scheme has the types of the built-in kinds. What the server keeps is what it serves: there are no internal versions.
var scheme = newScheme()

var codecs = serializer.NewCodecFactory(scheme)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()

	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})

	for _, add := range []func(*runtime.Scheme) error{
		core.AddToScheme, apps.AddToScheme, storagev1.AddToScheme, coordination.AddToScheme, authorization.AddToScheme, scheduling.AddToScheme, rbac.AddToScheme,
	} {
		utilruntime.Must(add(s))
	}

	addDefaults(s)
	addFieldLabels(s)

	return s
}

// builtin is a kind that the server knows without a definition.
type builtin struct {
	version            schema.GroupVersion
	kind               string
	plural, singular   string
	short              []string
	cluster            bool // cluster-scoped
	status             bool // has the status subresource
	conditionalUpdates bool // an update has to name the version that it is made to
	newObject, newList func() runtime.Object
}

func (b builtin) resource() schema.GroupVersionResource { return b.version.WithResource(b.plural) }

// returnsDeleted says whether the answer to a deletion is the object, and not a status.
func (b builtin) returnsDeleted() bool {
	switch b.kind {
	case "Namespace", "PersistentVolume", "PersistentVolumeClaim", "Pod", "ResourceQuota", "Service", "ServiceAccount", "StorageClass":
		return true
	default:
		return false
	}
}

// builtins are the kinds that are kept as they come in; see strategy for what is done to some of them.
var builtins = []builtin{
	{
		version: core.SchemeGroupVersion, kind: "Namespace", plural: "namespaces", singular: "namespace", short: []string{"ns"},
		cluster: true, status: true, newObject: object[core.Namespace], newList: object[core.NamespaceList],
	},
	{
		version: core.SchemeGroupVersion, kind: "Secret", plural: "secrets", singular: "secret",
		newObject: object[core.Secret], newList: object[core.SecretList],
	},
	{
		version: core.SchemeGroupVersion, kind: "ConfigMap", plural: "configmaps", singular: "configmap", short: []string{"cm"},
		newObject: object[core.ConfigMap], newList: object[core.ConfigMapList],
	},
	{
		version: core.SchemeGroupVersion, kind: "Event", plural: "events", singular: "event", short: []string{"ev"},
		newObject: object[core.Event], newList: object[core.EventList],
	},
	{
		version: core.SchemeGroupVersion, kind: "PersistentVolumeClaim", plural: "persistentvolumeclaims", singular: "persistentvolumeclaim",
		short: []string{"pvc"}, status: true, newObject: object[core.PersistentVolumeClaim], newList: object[core.PersistentVolumeClaimList],
	},
	{
		version: core.SchemeGroupVersion, kind: "PersistentVolume", plural: "persistentvolumes", singular: "persistentvolume",
		short: []string{"pv"}, cluster: true, status: true,
		newObject: object[core.PersistentVolume], newList: object[core.PersistentVolumeList],
	},
	{
		version: core.SchemeGroupVersion, kind: "Pod", plural: "pods", singular: "pod", short: []string{"po"}, status: true,
		newObject: object[core.Pod], newList: object[core.PodList],
	},
	{
		version: core.SchemeGroupVersion, kind: "Service", plural: "services", singular: "service", short: []string{"svc"}, status: true,
		newObject: object[core.Service], newList: object[core.ServiceList],
	},
	{
		version: core.SchemeGroupVersion, kind: "ServiceAccount", plural: "serviceaccounts", singular: "serviceaccount",
		short: []string{"sa"}, newObject: object[core.ServiceAccount], newList: object[core.ServiceAccountList],
	},
	{
		version: core.SchemeGroupVersion, kind: "Node", plural: "nodes", singular: "node", short: []string{"no"}, cluster: true, status: true,
		newObject: object[core.Node], newList: object[core.NodeList],
	},
	{
		version: core.SchemeGroupVersion, kind: "ResourceQuota", plural: "resourcequotas", singular: "resourcequota",
		short: []string{"quota"}, status: true, newObject: object[core.ResourceQuota], newList: object[core.ResourceQuotaList],
	},
	{
		version: apps.SchemeGroupVersion, kind: "ControllerRevision", plural: "controllerrevisions", singular: "controllerrevision",
		newObject: object[apps.ControllerRevision], newList: object[apps.ControllerRevisionList],
	},
	{
		version: storagev1.SchemeGroupVersion, kind: "StorageClass", plural: "storageclasses", singular: "storageclass",
		short: []string{"sc"}, cluster: true, newObject: object[storagev1.StorageClass], newList: object[storagev1.StorageClassList],
	},
	{
		version: coordination.SchemeGroupVersion, kind: "Lease", plural: "leases", singular: "lease", conditionalUpdates: true,
		newObject: object[coordination.Lease], newList: object[coordination.LeaseList],
	},
	{
		version: scheduling.SchemeGroupVersion, kind: "PriorityClass", plural: "priorityclasses", singular: "priorityclass",
		short: []string{"pc"}, cluster: true, newObject: object[scheduling.PriorityClass], newList: object[scheduling.PriorityClassList],
	},
	{
		version: rbac.SchemeGroupVersion, kind: "Role", plural: "roles", singular: "role",
		newObject: object[rbac.Role], newList: object[rbac.RoleList],
	},
	{
		version: rbac.SchemeGroupVersion, kind: "RoleBinding", plural: "rolebindings", singular: "rolebinding",
		newObject: object[rbac.RoleBinding], newList: object[rbac.RoleBindingList],
	},
	{
		version: rbac.SchemeGroupVersion, kind: "ClusterRole", plural: "clusterroles", singular: "clusterrole", cluster: true,
		newObject: object[rbac.ClusterRole], newList: object[rbac.ClusterRoleList],
	},
	{
		version: rbac.SchemeGroupVersion, kind: "ClusterRoleBinding", plural: "clusterrolebindings", singular: "clusterrolebinding",
		cluster: true, newObject: object[rbac.ClusterRoleBinding], newList: object[rbac.ClusterRoleBindingList],
	},
}

func object[T any, P interface {
	*T
	runtime.Object
}]() runtime.Object {
	return P(new(T))
}
