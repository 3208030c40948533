package apiserver

import (
	"fmt"

	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	scheduling "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// addDefaults registers what the server fills in. Of a pod's and a service's many defaults it has those that a client reads back.
func addDefaults(s *runtime.Scheme) {
	s.AddTypeDefaultingFunc(&core.Secret{}, func(o any) { defaultSecret(o.(*core.Secret)) })
	s.AddTypeDefaultingFunc(&core.PersistentVolumeClaim{}, func(o any) { defaultClaim(o.(*core.PersistentVolumeClaim)) })
	s.AddTypeDefaultingFunc(&core.PersistentVolume{}, func(o any) { defaultVolume(o.(*core.PersistentVolume)) })
	s.AddTypeDefaultingFunc(&core.Namespace{}, func(o any) { defaultNamespace(o.(*core.Namespace)) })
	s.AddTypeDefaultingFunc(&core.Pod{}, func(o any) { defaultPod(o.(*core.Pod)) })
	s.AddTypeDefaultingFunc(&core.Service{}, func(o any) { defaultService(o.(*core.Service)) })
	s.AddTypeDefaultingFunc(&scheduling.PriorityClass{}, func(o any) {
		fillPointer(&o.(*scheduling.PriorityClass).PreemptionPolicy, core.PreemptLowerPriority)
	})
	s.AddTypeDefaultingFunc(&rbac.RoleBinding{}, func(o any) {
		defaultBinding(&o.(*rbac.RoleBinding).RoleRef, o.(*rbac.RoleBinding).Subjects)
	})
	s.AddTypeDefaultingFunc(&rbac.ClusterRoleBinding{}, func(o any) {
		defaultBinding(&o.(*rbac.ClusterRoleBinding).RoleRef, o.(*rbac.ClusterRoleBinding).Subjects)
	})
	s.AddTypeDefaultingFunc(&storagev1.StorageClass{}, func(o any) { defaultStorageClass(o.(*storagev1.StorageClass)) })
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func fillPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

func defaultSecret(s *core.Secret) {
	fill(&s.Type, core.SecretTypeOpaque)
	moveStringData(s)
}

func defaultClaim(c *core.PersistentVolumeClaim) {
	fill(&c.Status.Phase, core.ClaimPending)
	fillPointer(&c.Spec.VolumeMode, core.PersistentVolumeFilesystem)
}

func defaultVolume(v *core.PersistentVolume) {
	fill(&v.Status.Phase, core.VolumePending)
	fill(&v.Spec.PersistentVolumeReclaimPolicy, core.PersistentVolumeReclaimRetain)
	fillPointer(&v.Spec.VolumeMode, core.PersistentVolumeFilesystem)
}

func defaultNamespace(n *core.Namespace) {
	fill(&n.Status.Phase, core.NamespaceActive)

	if n.Name != "" {
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}

		n.Labels[core.LabelMetadataName] = n.Name
	}
}

const defaultGraceSeconds = int64(core.DefaultTerminationGracePeriodSeconds)

func defaultPod(p *core.Pod) {
	fill(&p.Spec.RestartPolicy, core.RestartPolicyAlways)
	fill(&p.Spec.DNSPolicy, core.DNSClusterFirst)
	fill(&p.Spec.SchedulerName, core.DefaultSchedulerName)
	fillPointer(&p.Spec.TerminationGracePeriodSeconds, defaultGraceSeconds)
	fillPointer(&p.Spec.EnableServiceLinks, core.DefaultEnableServiceLinks)

	if p.Spec.SecurityContext == nil {
		p.Spec.SecurityContext = &core.PodSecurityContext{}
	}

	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		fill(&c.TerminationMessagePath, core.TerminationMessagePathDefault)
		fill(&c.TerminationMessagePolicy, core.TerminationMessageReadFile)
		fill(&c.ImagePullPolicy, core.PullIfNotPresent)
	}
}

func defaultService(s *core.Service) {
	fill(&s.Spec.Type, core.ServiceTypeClusterIP)
	fill(&s.Spec.SessionAffinity, core.ServiceAffinityNone)

	for i := range s.Spec.Ports {
		fill(&s.Spec.Ports[i].Protocol, core.ProtocolTCP)
	}
}

func defaultBinding(role *rbac.RoleRef, subjects []rbac.Subject) {
	fill(&role.APIGroup, rbac.GroupName)

	for i := range subjects {
		if subjects[i].Kind == rbac.UserKind || subjects[i].Kind == rbac.GroupKind {
			fill(&subjects[i].APIGroup, rbac.GroupName)
		}
	}
}

func defaultStorageClass(c *storagev1.StorageClass) {
	fillPointer(&c.ReclaimPolicy, core.PersistentVolumeReclaimDelete)
	fillPointer(&c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
}

// fieldLabels are the field selectors of a kind beside metadata.name and metadata.namespace.
var fieldLabels = map[string]func(runtime.Object) fields.Set{
	"Namespace": func(o runtime.Object) fields.Set {
		return fields.Set{"status.phase": string(o.(*core.Namespace).Status.Phase)}
	},
	"Secret": func(o runtime.Object) fields.Set { return fields.Set{"type": string(o.(*core.Secret).Type)} },
	"Pod": func(o runtime.Object) fields.Set {
		p := o.(*core.Pod)

		return fields.Set{
			"spec.nodeName": p.Spec.NodeName, "spec.restartPolicy": string(p.Spec.RestartPolicy), "spec.schedulerName": p.Spec.SchedulerName,
			"spec.serviceAccountName": p.Spec.ServiceAccountName, "spec.hostNetwork": fmt.Sprint(p.Spec.HostNetwork),
			"status.phase": string(p.Status.Phase), "status.podIP": p.Status.PodIP, "status.nominatedNodeName": p.Status.NominatedNodeName,
		}
	},
	"Node": func(o runtime.Object) fields.Set {
		return fields.Set{"spec.unschedulable": fmt.Sprint(o.(*core.Node).Spec.Unschedulable)}
	},
	"Service": func(o runtime.Object) fields.Set {
		s := o.(*core.Service)

		return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
	},
	"Event": func(o runtime.Object) fields.Set {
		e := o.(*core.Event)
		source := e.Source.Component
		fill(&source, e.ReportingController)

		return fields.Set{
			"involvedObject.kind": e.InvolvedObject.Kind, "involvedObject.namespace": e.InvolvedObject.Namespace,
			"involvedObject.name": e.InvolvedObject.Name, "involvedObject.uid": string(e.InvolvedObject.UID),
			"involvedObject.apiVersion": e.InvolvedObject.APIVersion, "involvedObject.resourceVersion": e.InvolvedObject.ResourceVersion,
			"involvedObject.fieldPath": e.InvolvedObject.FieldPath, "reason": e.Reason, "reportingComponent": e.ReportingController,
			"source": source, "type": e.Type,
		}
	},
}

func addFieldLabels(s *runtime.Scheme) {
	for _, b := range builtins {
		labels := fieldLabels[b.kind]
		if labels == nil {
			continue
		}

		known := labels(b.newObject())
		utilruntime.Must(s.AddFieldLabelConversionFunc(b.version.WithKind(b.kind), func(label, value string) (string, string, error) {
			if _, ok := known[label]; ok || label == "metadata.name" || label == "metadata.namespace" {
				return label, value, nil
			}

			return "", "", fmt.Errorf("field label not supported: %s", label)
		}))
	}
}
