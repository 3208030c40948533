// Command definitions writes the CustomResourceDefinitions of KubeVirt, its Containerized Data Importer, volume snapshots and
// Multus networks into a folder, as controller-gen derives them from the Go types that those projects publish, which is how
// the projects themselves make them. Descriptions are left out: they are most of the bytes, and no rule.
//
//	go run . FOLDER
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/controller-tools/pkg/crd"
	"sigs.k8s.io/controller-tools/pkg/genall"
	"sigs.k8s.io/controller-tools/pkg/loader"

	_ "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	_ "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	_ "kubevirt.io/api/core/v1"
	_ "kubevirt.io/api/instancetype/v1beta1"
	_ "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// packages are where the types lie; the imports above keep their modules in go.mod.
var packages = []string{
	"github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1",
	"github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1",
	"kubevirt.io/api/core/v1",
	"kubevirt.io/api/instancetype/v1beta1",
	"kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1",
}

// wanted are the definitions that are written, with what the projects change in them elsewhere than in the types.
var wanted = map[string]func(definition string) string{
	"cdi.kubevirt.io_datasources.yaml":                                 nil,
	"cdi.kubevirt.io_datavolumes.yaml":                                 nil,
	"cdi.kubevirt.io_storageprofiles.yaml":                             nil,
	"instancetype.kubevirt.io_virtualmachineclusterinstancetypes.yaml": ofTheCluster,
	"instancetype.kubevirt.io_virtualmachineclusterpreferences.yaml":   ofTheCluster,
	"instancetype.kubevirt.io_virtualmachineinstancetypes.yaml":        nil,
	"instancetype.kubevirt.io_virtualmachinepreferences.yaml":          nil,
	"k8s.cni.cncf.io_networkattachmentdefinitions.yaml":                hyphens,
	"kubevirt.io_virtualmachineinstances.yaml":                         nil,
	"kubevirt.io_virtualmachines.yaml":                                 statusSubresource,
	"snapshot.storage.k8s.io_volumesnapshotclasses.yaml":               approved,
	"snapshot.storage.k8s.io_volumesnapshotcontents.yaml":              approved,
	"snapshot.storage.k8s.io_volumesnapshots.yaml":                     approved,
}

// statusSubresource adds what KubeVirt's operator adds to a definition in its crds.go. The version is the last thing in the file.
func statusSubresource(definition string) string {
	return definition + "    subresources:\n      status: {}\n"
}

// ofTheCluster makes a kind one without a namespace, as KubeVirt's operator does in its crds.go.
func ofTheCluster(definition string) string {
	return strings.Replace(definition, "  scope: Namespaced\n", "  scope: Cluster\n", 1)
}

// hyphens gives the resource the name that Multus' own manifest has.
func hyphens(definition string) string {
	return strings.ReplaceAll(definition, "networkattachmentdefinition", "network-attachment-definition")
}

// approved adds what an API server asks of every definition in a group of Kubernetes' own, as the manifests of
// external-snapshotter have it.
func approved(definition string) string {
	return strings.Replace(definition, "metadata:\n", "metadata:\n  annotations:\n"+
		"    api-approved.kubernetes.io: https://github.com/kubernetes-csi/external-snapshotter/pull/814\n", 1)
}

// generated is what controller-gen says of itself in every definition. Which version it names depends on how this was built.
var generated = regexp.MustCompile(`  annotations:\n    controller-gen\.kubebuilder\.io/version: .*\n`)

// files keeps what the generator writes.
type files map[string]*bytes.Buffer

type file struct{ *bytes.Buffer }

func (file) Close() error { return nil }

// Open implements genall.OutputRule.
func (f files) Open(_ *loader.Package, path string) (io.WriteCloser, error) {
	f[path] = &bytes.Buffer{}

	return file{f[path]}, nil
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: definitions FOLDER")
	}

	if err := generate(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func generate(folder string) error {
	var (
		dangerous   = true // sizes as floating point numbers, which CDI has
		description = 0
		written     = files{}
	)

	generator := genall.Generator(crd.Generator{AllowDangerousTypes: &dangerous, MaxDescLen: &description})

	runtime, err := genall.Generators{&generator}.ForRoots(packages...)
	if err != nil {
		return fmt.Errorf("load packages: %w", err)
	}

	runtime.OutputRules = genall.OutputRules{Default: written}

	if runtime.Run() {
		return errors.New("controller-gen failed; its errors are above")
	}

	for name, change := range wanted {
		content, ok := written[name]
		if !ok {
			return fmt.Errorf("definition %s: controller-gen did not write it", name)
		}

		definition := generated.ReplaceAllString(content.String(), "")
		if change != nil {
			definition = change(definition)
		}

		definition, err := shownAs[name].in(definition)
		if err != nil {
			return fmt.Errorf("definition %s: %w", name, err)
		}

		if err := os.WriteFile(filepath.Join(folder, name), []byte(definition), 0o644); err != nil { //nolint:gosec // for everybody to read
			return err
		}
	}

	return nil
}
