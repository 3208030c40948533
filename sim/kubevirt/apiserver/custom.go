package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	apiextensionsinternal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver/internal/mvcc"
)

// custom is what a definition says of one version, digested. It is the same for all servers.
type custom struct {
	definition *apiextensions.CustomResourceDefinition
	version    apiextensions.CustomResourceDefinitionVersion
	structural *structuralschema.Structural
	types      managedfields.TypeConverter
	table      rest.TableConvertor
	// store makes the storage of the objects. The rules of the schema are compiled only once, in the strategy that it closes over.
	store func(generic.RESTOptionsGetter) (customresource.CustomResourceStorage, error)
}

func (c *custom) kind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: c.definition.Spec.Group, Version: c.version.Name, Kind: c.definition.Spec.Names.Kind}
}

func (c *custom) resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: c.definition.Spec.Group, Version: c.version.Name, Resource: c.definition.Spec.Names.Plural}
}

func (c *custom) namespaced() bool { return c.definition.Spec.Scope == apiextensions.NamespaceScoped }

func (c *custom) hasStatus() bool {
	return c.version.Subresources != nil && c.version.Subresources.Status != nil
}

// digests keeps what was read of definitions, as many servers are made of the same ones.
var digests = &digested{all: map[string][]*custom{}}

// maxDigests is more than the definitions of a cluster.
const maxDigests = 200

type digested struct {
	mu  sync.Mutex
	all map[string][]*custom
}

func (d *digested) of(definition *apiextensions.CustomResourceDefinition) ([]*custom, error) {
	text, err := json.Marshal(definition.Spec)
	if err != nil {
		return nil, err
	}

	key := definition.Name + "\n" + string(text)

	d.mu.Lock()
	defer d.mu.Unlock()

	if all, ok := d.all[key]; ok {
		return all, nil
	}

	if len(d.all) == maxDigests {
		clear(d.all)
	}

	all, err := digest(definition)
	if err == nil {
		d.all[key] = all
	}

	return all, err
}

// digest reads the served versions of a definition.
func digest(definition *apiextensions.CustomResourceDefinition) ([]*custom, error) {
	definition = definition.DeepCopy()
	apiextensions.SetDefaults_CustomResourceDefinition(definition)
	apiextensions.SetDefaults_CustomResourceDefinitionSpec(&definition.Spec)

	var all []*custom

	for _, version := range definition.Spec.Versions {
		if !version.Served {
			continue
		}

		c := &custom{definition: definition, version: version}
		if err := c.digest(); err != nil {
			return nil, fmt.Errorf("read definition %q, version %q: %w", definition.Name, version.Name, err)
		}

		all = append(all, c)
	}

	return all, nil
}

func (c *custom) digest() error {
	if c.version.Schema == nil || c.version.Schema.OpenAPIV3Schema == nil {
		return errors.New("it has no schema")
	}

	internal := &apiextensionsinternal.CustomResourceValidation{}
	if err := apiextensions.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(c.version.Schema, internal, nil); err != nil {
		return err
	}

	structural, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
	if err != nil {
		return err
	}

	c.structural = structural.DeepCopy()
	if err := defaulting.PruneDefaults(c.structural); err != nil {
		return err
	}

	if c.table, err = tableconvertor.New(c.columns()); err != nil {
		return err
	}

	if err := c.prepareStore(internal.OpenAPIV3Schema); err != nil {
		return err
	}

	models, err := c.models()
	if err != nil {
		return err
	}

	c.types, err = managedfields.NewTypeConverter(models, false)

	return err
}

// columns returns those of the definition, or the one that the real server has for definitions without.
func (c *custom) columns() []apiextensions.CustomResourceColumnDefinition {
	if len(c.version.AdditionalPrinterColumns) > 0 {
		return c.version.AdditionalPrinterColumns
	}

	return []apiextensions.CustomResourceColumnDefinition{{
		Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
	}}
}

func (c *custom) prepareStore(properties *apiextensionsinternal.JSONSchemaProps) error {
	names, of := c.definition.Spec.Names, c.resource().GroupResource()
	singular := schema.GroupResource{Group: of.Group, Resource: names.Singular}

	validator, _, err := validation.NewSchemaValidator(properties)
	if err != nil {
		return err
	}

	var (
		status          *apiextensionsinternal.CustomResourceSubresourceStatus
		statusValidator validation.SchemaValidator
	)

	if c.hasStatus() {
		status = &apiextensionsinternal.CustomResourceSubresourceStatus{}

		if of, ok := properties.Properties["status"]; ok {
			if statusValidator, _, err = validation.NewSchemaValidator(&of); err != nil {
				return err
			}
		}
	}

	strategy := customresource.NewStrategy(
		customTyper{crdserverscheme.NewUnstructuredObjectTyper()}, c.namespaced(), c.kind(), validator, statusValidator, c.structural, status, nil,
		c.version.SelectableFields,
	)

	c.store = func(options generic.RESTOptionsGetter) (customresource.CustomResourceStorage, error) {
		return customresource.NewStorage(
			of, singular, c.kind(), c.kind().GroupVersion().WithKind(names.ListKind), strategy, options, names.Categories,
			c.table, nil,
		)
	}

	return nil
}

// metaModels are the models of the metadata that every definition builds on.
var metaModels = sync.OnceValue(func() map[string]*spec.Schema {
	models := map[string]*spec.Schema{}
	ref := func(name string) spec.Ref { return spec.MustCreateRef("#/components/schemas/" + name) }

	for name, d := range generatedopenapi.GetOpenAPIDefinitions(ref) {
		models[name] = &d.Schema
	}

	return models
})

func (c *custom) models() (map[string]*spec.Schema, error) {
	built, err := builder.BuildOpenAPIV3(c.definition, c.version.Name, builder.Options{})
	if err != nil {
		return nil, err
	}

	static := &spec3.OpenAPI{Version: "3.0.0", Info: &spec.Info{}, Components: &spec3.Components{Schemas: metaModels()}}

	merged, err := builder.MergeSpecsV3(static, built)
	if err != nil {
		return nil, err
	}

	return merged.Components.Schemas, nil
}

// newCustom makes the resource of a defined kind.
func newCustom(db *mvcc.DB, may authorizer.Authorizer, c *custom) (*resource, error) {
	names, of := c.definition.Spec.Names, c.resource().GroupResource()

	stores, err := c.store(inMemory{db: db, prefix: "/registry/" + of.Group + "/" + of.Resource, codec: customCodec{kind: c.kind()}})
	if err != nil {
		return nil, fmt.Errorf("make resource %q: %w", of, err)
	}

	r := &resource{main: stores.CustomResource, patches: customPatches, info: metav1.APIResource{
		Name: names.Plural, SingularName: names.Singular, Namespaced: c.namespaced(), Kind: names.Kind,
		Verbs: customVerbs, ShortNames: names.ShortNames, Categories: names.Categories,
		StorageVersionHash: discovery.StorageVersionHash(of.Group, c.version.Name, names.Kind),
	}}

	if r.scope, err = c.scope(may, "", stores.CustomResource); err != nil || stores.Status == nil {
		return r, err
	}

	scope, err := c.scope(may, "status", stores.Status)
	if err != nil {
		return nil, err
	}

	r.subresources = map[string]subresource{"status": {of: stores.Status, scope: scope}}

	return r, nil
}

func (c *custom) scope(may authorizer.Authorizer, subresource string, reset rest.ResetFieldsStrategy) (*handlers.RequestScope, error) {
	kind := c.kind()
	equivalent := runtime.NewEquivalentResourceRegistry()
	equivalent.RegisterKindFor(c.resource(), subresource, kind)

	convertor, serializer := customConvertor{custom: c}, newCustomSerializer(c)

	scope := &handlers.RequestScope{
		Namer: handlers.ContextBasedNaming{
			Namer: runtime.Namer(meta.NewAccessor()), ClusterScoped: !c.namespaced(),
		},
		Serializer: serializer, StandardSerializers: serializer.withoutProtobuf(), ParameterCodec: runtime.NewParameterCodec(scheme),
		Creater: customCreater{}, Convertor: convertor, Defaulter: c, Typer: customTyper{crdserverscheme.NewUnstructuredObjectTyper()},
		UnsafeConvertor: convertor, EquivalentResourceMapper: equivalent, TableConvertor: c.table, Authorizer: may,
		Resource: c.resource(), Kind: kind, Subresource: subresource,
		HubGroupVersion: kind.GroupVersion(), MetaGroupVersion: metav1.SchemeGroupVersion, MaxRequestBodyBytes: maxBody,
	}

	manager, err := managedfields.NewDefaultCRDFieldManager(
		c.types, convertor, c, customCreater{}, kind, kind.GroupVersion(), subresource, fieldpath.NewExcludeFilterSetMap(reset.GetResetFields()),
	)
	if err != nil {
		return nil, fmt.Errorf("make field manager of %q: %w", c.resource().Resource, err)
	}

	scope.FieldManager = manager

	return scope, nil
}

// Default implements runtime.ObjectDefaulter.
func (c *custom) Default(in runtime.Object) {
	if u, ok := in.(*unstructured.Unstructured); ok && u.GroupVersionKind() == c.kind() {
		defaulting.Default(u.Object, c.structural)
	}
}

// customTyper knows the options of requests beside the objects of defined kinds.
type customTyper struct{ runtime.ObjectTyper }

// ObjectKinds implements runtime.ObjectTyper.
func (t customTyper) ObjectKinds(o runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	if _, ok := o.(runtime.Unstructured); ok {
		return t.ObjectTyper.ObjectKinds(o)
	}

	return scheme.ObjectKinds(o)
}

// customCreater makes objects of defined kinds.
type customCreater struct{}

// New implements runtime.ObjectCreater.
func (customCreater) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)

	return u, nil
}

// customConvertor converts as a definition without a webhook does: only the version's name changes.
type customConvertor struct{ custom *custom }

// Convert implements runtime.ObjectConvertor.
func (customConvertor) Convert(in, out, _ any) error {
	from, ok := in.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("input type %T is no custom resource", in)
	}

	to, ok := out.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("output type %T is no custom resource", out)
	}

	to.Object = from.DeepCopy().Object

	return nil
}

// ConvertToVersion implements runtime.ObjectConvertor.
func (customConvertor) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	kind := in.GetObjectKind().GroupVersionKind()
	if to, ok := target.KindForGroupVersionKinds([]schema.GroupVersionKind{kind}); ok {
		in.GetObjectKind().SetGroupVersionKind(to)
	}

	return in, nil
}

// ConvertFieldLabel implements runtime.ObjectConvertor.
func (c customConvertor) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	switch {
	case label == "metadata.name", label == "metadata.namespace" && c.custom.namespaced():
		return label, value, nil
	}

	for _, f := range c.custom.version.SelectableFields {
		if "."+label == f.JSONPath {
			return label, value, nil
		}
	}

	return "", "", fmt.Errorf("field label not supported: %s", label)
}
