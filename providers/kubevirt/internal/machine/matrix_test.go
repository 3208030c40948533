package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/definitions"
)

// testdata/matrix has class data and the objects that it gives: each feature alone, and many together.

// classes are the entries of the matrix.
func classes(t testing.TB) map[string]ClassData {
	t.Helper()

	files, err := filepath.Glob("testdata/matrix/*.class.yaml")
	require.NoError(t, err)
	require.Greater(t, len(files), 30)

	all := map[string]ClassData{}

	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)

		data, err := Decode(string(text), testOperator)
		require.NoError(t, err, file)

		all[strings.TrimSuffix(filepath.Base(file), ".class.yaml")] = data
	}

	return all
}

// objects are all that a machine of the class is made of, the image first.
func objects(t testing.TB, data ClassData) []runtime.Object {
	t.Helper()

	m := testMachine(data)

	var all []runtime.Object
	if data.BootImage() != nil {
		all = append(all, m.Image.DataVolume())
	}

	if data.Image.Source == SourceSnapshot {
		all = append(all, m.Image.Snapshot())
	}

	vm := m.VirtualMachine()
	vm.UID = "11111111-2222-3333-4444-555555555555"

	secret, err := m.Secret("apiVersion: v1alpha1\nkind: SideroLinkConfig\n", vm)
	require.NoError(t, err)

	vm.UID = ""

	return append(all, secret, vm)
}

func render(t testing.TB, data ClassData) string {
	t.Helper()

	var out []string

	for _, o := range objects(t, data) {
		text, err := yaml.Marshal(manifest(t, o))
		require.NoError(t, err)

		out = append(out, string(text))
	}

	return strings.Join(out, "---\n")
}

func TestClassesGiveTheObjectsOfTheMatrix(t *testing.T) {
	for name, data := range classes(t) {
		t.Run(name, func(t *testing.T) {
			got := render(t, data)
			golden(t, filepath.Join("matrix", name+".objects.yaml"), got)
			require.Equal(t, got, render(t, data))
		})
	}

	files, err := filepath.Glob("testdata/matrix/*.objects.yaml")
	require.NoError(t, err)
	require.Len(t, files, len(classes(t)), "objects without class data")
}

// definition is one kind's, as an API server holds objects to it.
type definition struct {
	structural *structuralschema.Structural
	validator  schemavalidation.SchemaValidator
	rules      *cel.Validator
}

func served(t testing.TB) map[string]definition {
	t.Helper()

	crds, err := definitions.All()
	require.NoError(t, err)

	all := map[string]definition{}

	for _, crd := range crds {
		var internal apiextensions.CustomResourceDefinition
		require.NoError(t, apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, &internal, nil))

		for _, v := range internal.Spec.Versions {
			schema := v.Schema
			if schema == nil {
				schema = internal.Spec.Validation
			}

			structural, err := structuralschema.NewStructural(schema.OpenAPIV3Schema)
			require.NoError(t, err, crd.Name)

			validator, _, err := schemavalidation.NewSchemaValidator(schema.OpenAPIV3Schema)
			require.NoError(t, err, crd.Name)

			all[crd.Spec.Group+"/"+v.Name+"/"+crd.Spec.Names.Kind] = definition{
				structural: structural, validator: validator, rules: cel.NewValidator(structural, true, celconfig.PerCallLimit),
			}
		}
	}

	return all
}

// check holds an object to its definition and refuses fields that it does not have.
func (d definition) check(fields map[string]any) error {
	if errs := schemavalidation.ValidateCustomResource(field.NewPath(""), fields, d.validator); len(errs) > 0 {
		return errs.ToAggregate()
	}

	if errs, _ := d.rules.Validate(context.Background(), field.NewPath(""), d.structural, fields, nil, celconfig.RuntimeCELCostBudget); len(errs) > 0 {
		return errs.ToAggregate()
	}

	copied := runtime.DeepCopyJSON(fields)
	opts := structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}

	if unknown := pruning.PruneWithOptions(copied, d.structural, true, opts); len(unknown) > 0 {
		return fmt.Errorf("unknown fields: %s", strings.Join(unknown, ", "))
	}

	return nil
}

func TestEveryObjectIsOneThatTheRealDefinitionsTake(t *testing.T) {
	kinds, seen := served(t), map[string]int{}

	for name, data := range classes(t) {
		for _, o := range objects(t, data) {
			fields := manifest(t, o)
			kind := fmt.Sprint(fields["apiVersion"], "/", fields["kind"])

			if kind == "v1/Secret" {
				raw, err := yaml.Marshal(fields)
				require.NoError(t, err)
				require.NoError(t, yaml.UnmarshalStrict(raw, &corev1.Secret{}, yaml.DisallowUnknownFields), name)

				continue
			}

			d, ok := kinds[kind]
			require.True(t, ok, "no definition of %s", kind)
			require.NoError(t, d.check(fields), "%s: %s", name, kind)

			seen[kind]++
		}
	}

	require.Len(t, seen, 3, "%v", seen)
}

func TestTheCheckOfDefinitionsFindsWhatIsWrong(t *testing.T) {
	d := served(t)["kubevirt.io/v1/VirtualMachine"]
	good := manifest(t, testMachine(decode(t, "{}")).VirtualMachine())
	require.NoError(t, d.check(good))

	bad := runtime.DeepCopyJSON(good)
	bad["spec"].(map[string]any)["colour"] = "red"
	require.ErrorContains(t, d.check(bad), "spec.colour")

	bad = runtime.DeepCopyJSON(good)
	delete(bad["spec"].(map[string]any), "template")
	require.ErrorContains(t, d.check(bad), "template")

	bad = runtime.DeepCopyJSON(good)
	bad["spec"].(map[string]any)["runStrategy"] = int64(1)
	require.ErrorContains(t, d.check(bad), "runStrategy")
}

// walk calls f for every value in an object.
func walk(value any, path string, f func(path string, value any)) {
	f(path, value)

	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			walk(inner, path+"."+key, f)
		}
	case []any:
		for i, inner := range v {
			walk(inner, fmt.Sprintf("%s[%d]", path, i), f)
		}
	}
}

func TestEveryMachineHasWhatNoneMayLack(t *testing.T) {
	for name, data := range classes(t) {
		m := testMachine(data)
		vm := m.VirtualMachine()
		spec := vm.Spec.Template.Spec

		require.Nil(t, vm.Spec.Running, "%s: running is deprecated, and rules out a run strategy", name)
		require.NotNil(t, vm.Spec.RunStrategy, name)

		require.Equal(t, m.Request.Identity.UUID, string(spec.Domain.Firmware.UUID), name)
		require.Equal(t, m.Request.Identity.UUID, spec.Domain.Firmware.Serial, name)
		require.Equal(t, "workers-x7k2p", spec.Hostname, name)

		for _, o := range []interface {
			GetLabels() map[string]string
			GetAnnotations() map[string]string
		}{vm, &vm.Spec.Template.ObjectMeta} {
			require.Equal(t, "kubevirt", o.GetLabels()[LabelProvider], name)
			require.Equal(t, "workers-x7k2p", o.GetAnnotations()[AnnotationRequest], name)
		}

		boots, volumes := 0, map[string]bool{}

		for i, d := range spec.Domain.Devices.Disks {
			if d.BootOrder != nil {
				boots++

				require.Equal(t, volumeRoot, d.Name, name)
				require.Zero(t, i, name)
			}

			require.NotNil(t, d.Disk, "%s: a seed is a disk as well", name)
			volumes[d.Name] = true
		}

		require.Equal(t, 1, boots, "%s boots from its system disk alone", name)
		require.Len(t, spec.Volumes, len(volumes), name)

		for _, v := range spec.Volumes {
			require.True(t, volumes[v.Name], "%s: volume %s has no disk", name, v.Name)
		}

		require.Len(t, vm.Spec.DataVolumeTemplates, 1+len(data.AdditionalDisks), name)

		for _, dv := range vm.Spec.DataVolumeTemplates {
			require.True(t, Owns(m.Request.Ref, &dv.ObjectMeta), name)
			require.Nil(t, dv.Spec.PVC, "%s: only with storage does CDI add what a file system takes", name)
		}

		require.Len(t, spec.Networks, len(spec.Domain.Devices.Interfaces), name)
		require.LessOrEqual(t, len(vm.Name), 63)
	}
}

func TestTheJoinConfigurationIsInTheSecretAlone(t *testing.T) {
	const canary = "canary-join-token"

	for name, data := range classes(t) {
		m := testMachine(data)

		secret, err := m.Secret("kind: SideroLinkConfig\napiUrl: "+canary, nil)
		require.NoError(t, err)
		require.Contains(t, string(secret.Data[SecretUserData]), canary)
		require.Equal(t, "version: 2\n", string(secret.Data[SecretNetworkData]))
		require.True(t, Owns(m.Request.Ref, secret))
		require.Empty(t, secret.OwnerReferences)

		for _, meta := range []map[string]string{secret.Labels, secret.Annotations} {
			for key, value := range meta {
				require.NotContains(t, key+value, canary)
			}
		}

		vm := manifest(t, m.VirtualMachine())
		walk(vm, "", func(path string, _ any) {
			for _, inline := range []string{".userData", ".userDataBase64", ".networkData", ".networkDataBase64"} {
				require.False(t, strings.HasSuffix(path, inline), "%s: %s", name, path)
			}
		})
	}
}

func TestAnyJoinConfigurationThatASecretTakesIsTaken(t *testing.T) {
	m := testMachine(decode(t, "{}"))

	for _, size := range []int{2047, 2048, 2049, 16384, MaxUserData} {
		secret, err := m.Secret("#"+strings.Repeat("a", size-1), nil)
		require.NoError(t, err)
		require.Len(t, secret.Data[SecretUserData], size)
	}

	for _, data := range []string{"#" + strings.Repeat("a", MaxUserData), "", "#cloud-config\n"} {
		_, err := m.Secret(data, nil)
		require.Error(t, err)
	}
}

func TestSecureBootIsAWholeOfImageFirmwareAndTPMOrNothing(t *testing.T) {
	type artefacts struct{ Image, EFI, Signed, Variables, SMM, TPM bool }

	of := func(extra string) artefacts {
		m := testMachine(decode(t, extra))
		d := m.VirtualMachine().Spec.Template.Spec.Domain
		a := artefacts{
			Image: m.Data.BootImage().SecureBoot, SMM: d.Features != nil && *d.Features.SMM.Enabled, TPM: d.Devices.TPM != nil && *d.Devices.TPM.Persistent,
		}

		if b := d.Firmware.Bootloader; b != nil && b.EFI != nil {
			a.EFI, a.Signed, a.Variables = true, *b.EFI.SecureBoot, b.EFI.Persistent != nil && *b.EFI.Persistent
		}

		return a
	}

	require.Equal(t, artefacts{Image: true, EFI: true, Signed: true, Variables: true, SMM: true, TPM: true}, of("secure_boot: true"))
	require.Equal(t, artefacts{EFI: true}, of("firmware: uefi"))
	require.Equal(t, artefacts{EFI: true, Variables: true}, of("{firmware: uefi, persistent_efi: true}"))
	require.Equal(t, artefacts{TPM: true}, of("tpm: true"))
	require.Equal(t, artefacts{}, of("firmware: bios"))
	require.Equal(t, artefacts{}, of("{}"))
}

func TestAnExtensionIsInTheImageWhenTheClassSaysSo(t *testing.T) {
	require.Equal(t, []string{GuestAgentExtension, "siderolabs/iscsi-tools"}, decode(t, "extensions: [siderolabs/iscsi-tools]").BootImage().Extensions)
	require.Empty(t, decode(t, "guest_agent: false").BootImage().Extensions)
	require.Nil(t, decode(t, "image: {source: container_disk, reference: 'r/t:{version}'}").BootImage())
}

func TestOneRequestInTwoNamespacesOfTwoProvidersIsTwoMachines(t *testing.T) {
	a := testMachine(decode(t, "{}"))
	b := testMachine(decode(t, "namespace: lab"))
	b.Request.ProviderID = "other"
	b.Request = testRequestOf(b.Request.Ref)

	first, second := a.VirtualMachine(), b.VirtualMachine()
	require.NotEqual(t, first.Spec.Template.Spec.Domain.Firmware.UUID, second.Spec.Template.Spec.Domain.Firmware.UUID)
	require.NotEqual(t, first.Name, second.Name)
	require.NotEqual(t, a.Data.Patches(a.Request.Ref), b.Data.Patches(b.Request.Ref))
}

func TestNodesAreFoundByTheirProvidersID(t *testing.T) {
	m := testMachine(decode(t, "config_patches: ['machine: {sysctls: {a.b: \"1\"}}']"))
	patches := m.Data.Patches(m.Request.Ref)

	require.Len(t, patches, 2)
	require.Equal(t, "machine:\n  kubelet:\n    extraArgs:\n      provider-id: kubevirt://"+m.VirtualMachine().Name+"\n", patches["provider-id"])
	require.Contains(t, patches["class-00"], "sysctls")
}

func interfaces(m Machine) []kubevirtv1.Interface {
	return m.VirtualMachine().Spec.Template.Spec.Domain.Devices.Interfaces
}

func TestHardwareAddressesAreDerivedButForThePodsOwn(t *testing.T) {
	m := testMachine(decode(t, "{}"))
	require.Empty(t, interfaces(m)[0].MacAddress, "a network plugin may know no address but that of the pod")

	id := m.Request.Identity
	m = testMachine(decode(t, `networks: [{mac: derived}, {type: multus, network: lab/storage}, {type: multus, network: vlan7, mac: "52:54:00:AB:cd:ef"}]`))
	nics := interfaces(m)
	require.Equal(t, id.MAC(0).String(), nics[0].MacAddress)
	require.Equal(t, id.MAC(1).String(), nics[1].MacAddress)
	require.Equal(t, "52:54:00:ab:cd:ef", nics[2].MacAddress)
	require.Equal(t, []string{"lab/storage", "machines/vlan7"}, m.Data.NetworkAttachments())

	m = testMachine(decode(t, "network_binding: masquerade"))
	require.Equal(t, id.MAC(0).String(), interfaces(m)[0].MacAddress)
}
