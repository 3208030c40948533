package provider

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/nocloud"
)

// maker makes one machine. Each phase looks first and makes only what is missing, so that one which is repeated after a crash or a
// lost reply finds what the first try made.
type maker struct {
	*Driver

	req  driver.Request
	data machine.ClassData
}

// Plan checks the class data against itself and against what the cluster has, and names everything.
func (d *Driver) Plan(ctx context.Context, req driver.Request) (driver.Plan, error) {
	data, err := machine.Decode(req.ClassData, d.config.Operator)
	if err != nil {
		return driver.Plan{}, err
	}

	if err := data.CheckRequest(req); err != nil {
		return driver.Plan{}, err
	}

	// The seed's own rules, above all for the hostname, hold for any user data.
	if _, err := nocloud.New(nocloud.Config{Hostname: machine.HostnameOf(req.Ref), UserData: "---"}); err != nil {
		return driver.Plan{}, err
	}

	if err := d.checkReferences(ctx, data); err != nil {
		return driver.Plan{}, err
	}

	m := &maker{Driver: d, req: req, data: data}

	var phases []driver.Phase
	if data.BootImage() != nil {
		phases = append(phases, driver.Phase{Name: "import-image", Ensure: m.ensureImage})
	}

	return driver.Plan{
		UUID:    req.Identity.UUID,
		Image:   data.BootImage(),
		Names:   machine.NamesOf(req.Ref).All(len(data.AdditionalDisks)),
		Patches: data.Patches(req.Ref),
		Phases: append(phases,
			driver.Phase{Name: "create-machine", Ensure: brief(m.createMachine)},
			driver.Phase{Name: "create-secret", Ensure: brief(m.createSecret)},
			driver.Phase{Name: "start-machine", Ensure: brief(m.start)},
		),
	}, nil
}

// machine is what the objects of the machine follow from.
func (m *maker) machine(t driver.Task) machine.Machine {
	out := machine.Machine{Request: m.req, Data: m.data, Version: m.config.Version}

	if t.Image != nil {
		out.Image = m.data.ImageVolume(m.req, t.Image, m.config.Version)
		out.Image.CertConfigMap = m.config.Operator.ImageCertConfigMap
	}

	return out
}

// reference is something that a class names and that has to be there, or the snapshot that a request needs of an image.
type reference struct {
	field                     string
	resource, namespace, name string
}

// lookupAge is how long the answer that something is there holds.
const lookupAge = 5 * time.Minute

// lookups remembers what was found to be there. Its zero value is ready for use.
type lookups struct {
	mu    sync.Mutex
	found map[reference]time.Time
}

func (l *lookups) knows(r reference) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return time.Since(l.found[r]) < lookupAge
}

func (l *lookups) note(r reference) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.found == nil {
		l.found = map[reference]time.Time{}
	}

	for old, at := range l.found {
		if time.Since(at) >= lookupAge {
			delete(l.found, old)
		}
	}

	l.found[r] = time.Now()
}

// checkReferences says what a class names and the cluster does not have, before anything is made. What the provider has no right to see
// is not checked: the rights for it are optional, and KubeVirt tells later.
func (d *Driver) checkReferences(ctx context.Context, c machine.ClassData) error {
	for _, r := range referencesOf(c) {
		if d.looked.knows(r) {
			continue
		}

		err := d.cluster.Lookup(ctx, r.resource, r.namespace, r.name)

		switch {
		case cluster.Forbidden(err):
		case driver.IsNotFound(err):
			return driver.Terminalf("%s: the cluster has no such object: %w", r.field, err)
		case err != nil:
			return fmt.Errorf("%s: %w", r.field, err)
		}

		d.looked.note(r)
	}

	return nil
}

func referencesOf(c machine.ClassData) []reference {
	var refs []reference

	add := func(field, resource, namespace, name string) {
		if name != "" {
			refs = append(refs, reference{field, resource, namespace, name})
		}
	}

	add("storage_class_name", "storageclasses.storage.k8s.io", "", c.StorageClassName)

	for i, disk := range c.AdditionalDisks {
		add(fmt.Sprintf("additional_disks[%d].storage_class_name", i), "storageclasses.storage.k8s.io", "", disk.StorageClassName)
	}

	addMatcher := func(field string, m machine.Matcher, ofCluster, ofNamespace string) {
		if m.Kind == "namespace" {
			add(field, ofNamespace, c.Namespace, m.Name)
		} else {
			add(field, ofCluster, "", m.Name)
		}
	}

	addMatcher("instancetype.name", c.Instancetype, "virtualmachineclusterinstancetypes.instancetype.kubevirt.io", "virtualmachineinstancetypes.instancetype.kubevirt.io")
	addMatcher("preference.name", c.Preference, "virtualmachineclusterpreferences.instancetype.kubevirt.io", "virtualmachinepreferences.instancetype.kubevirt.io")

	for _, name := range c.NetworkAttachments() {
		namespace, rest, ok := cutNamespace(name)
		if !ok {
			namespace = c.Namespace
		}

		add("networks", "network-attachment-definitions.k8s.cni.cncf.io", namespace, rest)
	}

	add("priority_class", "priorityclasses.scheduling.k8s.io", "", c.PriorityClass)

	return refs
}

// listOf selects the objects of the request's machine.
func listOf(ref driver.Ref) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: machine.SelectorOf(ref).String()}
}
