package main

import (
	"errors"
	"fmt"
	"strings"
)

// shown is how kubectl knows a kind and lists its objects.
type shown struct {
	short []string
	// all says that `kubectl get all` has them.
	all     bool
	columns []column
}

type column struct {
	name, kind, path, description string
	// priority is 1 for what only `-o wide` shows.
	priority int
}

// shownAs is what the projects say elsewhere than in the types: KubeVirt's operator in its crds.go, Multus in its manifest.
var shownAs = map[string]shown{
	"kubevirt.io_virtualmachines.yaml": {short: []string{"vm", "vms"}, all: true, columns: []column{
		{name: "Age", kind: "date", path: ".metadata.creationTimestamp"},
		{name: "Status", kind: "string", path: ".status.printableStatus", description: "Human Readable Status"},
		{name: "Ready", kind: "string", path: condition("Ready")},
	}},
	"kubevirt.io_virtualmachineinstances.yaml": {short: []string{"vmi", "vmis"}, all: true, columns: []column{
		{name: "Age", kind: "date", path: ".metadata.creationTimestamp"},
		{name: "Phase", kind: "string", path: ".status.phase"},
		{name: "IP", kind: "string", path: ".status.interfaces[0].ipAddress"},
		{name: "NodeName", kind: "string", path: ".status.nodeName"},
		{name: "Ready", kind: "string", path: condition("Ready")},
		{name: "Live-Migratable", kind: "string", path: condition("LiveMigratable"), priority: 1},
		{name: "Paused", kind: "string", path: condition("Paused"), priority: 1},
	}},
	"instancetype.kubevirt.io_virtualmachineinstancetypes.yaml": {
		short: []string{"vminstancetype", "vminstancetypes", "vmf", "vmfs"}, all: true,
	},
	"instancetype.kubevirt.io_virtualmachineclusterinstancetypes.yaml": {
		short: []string{"vmclusterinstancetype", "vmclusterinstancetypes", "vmcf", "vmcfs"},
	},
	"instancetype.kubevirt.io_virtualmachinepreferences.yaml":        {short: []string{"vmpref", "vmprefs", "vmp", "vmps"}, all: true},
	"instancetype.kubevirt.io_virtualmachineclusterpreferences.yaml": {short: []string{"vmcp", "vmcps"}},
	"k8s.cni.cncf.io_networkattachmentdefinitions.yaml":              {short: []string{"net-attach-def"}},
}

func condition(name string) string {
	return fmt.Sprintf(".status.conditions[?(@.type=='%s')].status", name)
}

// in adds it to a definition of one version, where controller-gen would write it.
func (s shown) in(definition string) (string, error) {
	var categories, short, columns strings.Builder

	if s.all {
		categories.WriteString("    categories:\n    - all\n")
	}

	if len(s.short) > 0 {
		fmt.Fprintf(&short, "    shortNames:\n    - %s\n", strings.Join(s.short, "\n    - "))
	}

	for _, c := range s.columns {
		before := "    - "
		line := func(key string, value any) {
			fmt.Fprintf(&columns, "%s%s: %v\n", before, key, value)
			before = "      "
		}

		if c.description != "" {
			line("description", c.description)
		}

		line("jsonPath", c.path)
		line("name", c.name)

		if c.priority != 0 {
			line("priority", c.priority)
		}

		line("type", c.kind)
	}

	for _, part := range []struct{ before, text string }{
		{"    kind: ", categories.String()},
		{"    singular: ", short.String()},
	} {
		at := strings.Index(definition, "\n"+part.before)
		if at < 0 {
			return "", fmt.Errorf("there is no %q to add something to", strings.TrimSpace(part.before))
		}

		definition = definition[:at+1] + part.text + definition[at+1:]
	}

	if columns.Len() == 0 {
		return definition, nil
	}

	const version = "\n  - name: "

	at := strings.Index(definition, version)
	if at < 0 {
		return "", errors.New("there is no version without columns")
	}

	return definition[:at] + "\n  - additionalPrinterColumns:\n" + columns.String() + "    name: " + definition[at+len(version):], nil
}
