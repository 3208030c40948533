package apiserver_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

var update = flag.Bool("update", false, "write the golden files anew, from what the server at hand answers")

// step is one request of a script. A body that begins with { is JSON.
type step struct {
	name, method, path string
	// media is the type of the body, application/json if it is empty.
	media string
	// accept is what the client wants, application/json if it is empty.
	accept string
	// as is whom an administrator plays; token is that of another user.
	as, token string
	// body and path may have {version} and {continue} in them, from the last answer that had one, and {first}, the first version of all.
	body string
}

const (
	pathNamespace = "/api/v1/namespaces/fidelity"
	pathMachines  = "/apis/kubevirt.io/v1/namespaces/fidelity/virtualmachines"
	pathInstances = "/apis/kubevirt.io/v1/namespaces/fidelity/virtualmachineinstances"
	pathVolumes   = "/apis/cdi.kubevirt.io/v1beta1/namespaces/fidelity/datavolumes"
	pathPods      = pathNamespace + "/pods"
	pathBindings  = "/apis/rbac.authorization.k8s.io/v1/namespaces/fidelity/rolebindings"
	pathClasses   = "/apis/storage.k8s.io/v1/storageclasses"
	pathPriority  = "/apis/scheduling.k8s.io/v1/priorityclasses"

	jsonPatch      = "application/json-patch+json"
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
	applyPatch     = "application/apply-patch+yaml"

	onlyMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	asTable      = "application/json;as=Table;g=meta.k8s.io;v=v1"
)

func vm(name, more string) string {
	return fmt.Sprintf(`{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","metadata":{"name":%q%s},"spec":{"runStrategy":"Halted",`+
		`"template":{"spec":{"domain":{"devices":{}}}}}}`, name, more)
}

func config(name, more string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}%s}`, name, more)
}

// fidelity is the script whose answers a simulated and a real server must give alike. It has to begin without the namespace fidelity.
var fidelity = []step{
	{name: "readyz", method: "GET", path: "/readyz"},
	{name: "unknown path", method: "GET", path: "/nowhere"},
	{name: "unknown group", method: "GET", path: "/apis/none.example/v1/things"},
	{name: "unknown resource of a built-in group", method: "GET", path: "/api/v1/namespaces/default/things"},
	{name: "unknown resource of a defined group", method: "GET", path: "/apis/kubevirt.io/v1/namespaces/default/things"},
	{name: "group", method: "GET", path: "/apis/kubevirt.io"},
	{name: "create in a namespace that is not there", method: "POST", path: pathMachines, body: vm("a", "")},
	{name: "list in a namespace that is not there", method: "GET", path: pathMachines},
	{name: "get in a namespace that is not there", method: "GET", path: pathMachines + "/a"},
	{name: "get a namespace that is not there", method: "GET", path: pathNamespace},
	{name: "create namespace", method: "POST", path: "/api/v1/namespaces",
		body: `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"fidelity"}}`},
	{name: "create namespace again", method: "POST", path: "/api/v1/namespaces",
		body: `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"fidelity"}}`},
	{name: "namespace with a bad name", method: "POST", path: "/api/v1/namespaces",
		body: `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"Bad_Name"}}`},

	// Writing.
	{name: "dry run", method: "POST", path: pathMachines + "?dryRun=All", body: vm("a", "")},
	{name: "dry run made nothing", method: "GET", path: pathMachines + "/a"},
	{name: "unknown dry run", method: "POST", path: pathMachines + "?dryRun=Some", body: vm("a", "")},
	{name: "create", method: "POST", path: pathMachines + "?fieldManager=script", body: vm("a", "")},
	{name: "create again", method: "POST", path: pathMachines, body: vm("a", "")},
	{name: "create without name", method: "POST", path: pathMachines, body: vm("", "")},
	{name: "create with a bad name", method: "POST", path: pathMachines, body: vm("A_b", "")},
	{name: "create with a bad label", method: "POST", path: pathMachines, body: vm("b", `,"labels":{"a":"not a label!"}`)},
	{name: "create with resourceVersion", method: "POST", path: pathMachines, body: vm("b", `,"resourceVersion":"1"`)},
	{name: "create in another namespace than the path's", method: "POST", path: pathMachines, body: vm("b", `,"namespace":"default"`)},
	{name: "create another kind", method: "POST", path: pathMachines, body: strings.ReplaceAll(vm("b", ""), `"VirtualMachine"`, `"Pod"`)},
	{name: "create another group", method: "POST", path: pathMachines, body: strings.ReplaceAll(vm("b", ""), "kubevirt.io/v1", "v1")},
	{name: "create without template", method: "POST", path: pathMachines,
		body: `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","metadata":{"name":"b"},"spec":{"runStrategy":"Halted"}}`},
	{name: "create with a wrong type", method: "POST", path: pathMachines,
		body: strings.ReplaceAll(vm("b", ""), `"Halted"`, `7`)},
	{name: "create no JSON", method: "POST", path: pathMachines, body: `{"apiVersion":`},
	{name: "create with an empty body", method: "POST", path: pathMachines},
	{name: "create of an unknown media type", method: "POST", path: pathMachines, media: "text/plain", body: "x"},
	{name: "unknown field, strict", method: "POST", path: pathMachines + "?fieldValidation=Strict",
		body: strings.ReplaceAll(vm("b", ""), `"runStrategy"`, `"nothing":1,"runStrategy"`)},
	{name: "field twice, strict", method: "POST", path: pathMachines + "?fieldValidation=Strict",
		body: strings.ReplaceAll(vm("b", ""), `"runStrategy"`, `"runStrategy":"Always","runStrategy"`)},
	{name: "unknown field in metadata, strict", method: "POST", path: pathMachines + "?fieldValidation=Strict",
		body: vm("b", `,"nothing":1`)},
	{name: "unknown field, warning", method: "POST", path: pathMachines + "?fieldValidation=Warn&dryRun=All",
		body: strings.ReplaceAll(vm("b", ""), `"runStrategy"`, `"nothing":1,"runStrategy"`)},
	{name: "unknown field, ignored", method: "POST", path: pathMachines + "?fieldValidation=Ignore&dryRun=All",
		body: strings.ReplaceAll(vm("b", ""), `"runStrategy"`, `"nothing":1,"runStrategy"`)},
	{name: "unknown field validation", method: "POST", path: pathMachines + "?fieldValidation=Odd", body: vm("b", "")},
	{name: "unknown field of a built-in kind, strict", method: "POST", path: pathNamespace + "/configmaps?fieldValidation=Strict",
		body: config("c", `,"nothing":1`)},
	{name: "wrong type in a built-in kind", method: "POST", path: pathNamespace + "/configmaps", body: config("c", `,"data":{"a":1}`)},
	{name: "method not allowed", method: "POST", path: pathMachines + "/a", body: vm("a", "")},
	{name: "update without resourceVersion", method: "PUT", path: pathMachines + "/a", body: vm("a", "")},
	{name: "update with an old resourceVersion", method: "PUT", path: pathMachines + "/a", body: vm("a", `,"resourceVersion":"1"`)},
	{name: "update of what is not there", method: "PUT", path: pathMachines + "/none", body: vm("none", `,"resourceVersion":"1"`)},
	{name: "update under another name", method: "PUT", path: pathMachines + "/a", body: vm("b", "")},
	{name: "update with another uid", method: "PUT", path: pathMachines + "/a", body: vm("a", `,"uid":"00000000-0000-0000-0000-000000000000"`)},
	{name: "status by a merge patch", method: "PATCH", path: pathMachines + "/a/status?fieldManager=script", media: mergePatch,
		body: `{"status":{"ready":true,"printableStatus":"Running"},"spec":{"runStrategy":"Always"}}`},
	{name: "status by a patch of the object is dropped", method: "PATCH", path: pathMachines + "/a?fieldManager=script", media: mergePatch,
		body: `{"status":{"ready":false}}`},
	{name: "instances have no status subresource", method: "GET", path: pathInstances + "/a/status"},
	{name: "unknown subresource", method: "GET", path: pathMachines + "/a/scale"},

	// Patches.
	{name: "merge patch", method: "PATCH", path: pathMachines + "/a?fieldManager=script", media: mergePatch,
		body: `{"metadata":{"labels":{"x":"y"}},"spec":{"runStrategy":"Always"}}`},
	{name: "merge patch with an old resourceVersion", method: "PATCH", path: pathMachines + "/a", media: mergePatch,
		body: `{"metadata":{"resourceVersion":"1","labels":{"x":"z"}}}`},
	{name: "merge patch of what is not there", method: "PATCH", path: pathMachines + "/none", media: mergePatch, body: `{}`},
	{name: "merge patch to what the schema refuses", method: "PATCH", path: pathMachines + "/a", media: mergePatch,
		body: `{"spec":{"runStrategy":7}}`},
	{name: "merge patch that is none", method: "PATCH", path: pathMachines + "/a", media: mergePatch, body: `[`},
	{name: "JSON patch", method: "PATCH", path: pathMachines + "/a?fieldManager=script", media: jsonPatch,
		body: `[{"op":"test","path":"/spec/runStrategy","value":"Always"},{"op":"replace","path":"/spec/runStrategy","value":"Halted"}]`},
	{name: "JSON patch whose test fails", method: "PATCH", path: pathMachines + "/a", media: jsonPatch,
		body: `[{"op":"test","path":"/spec/runStrategy","value":"Always"}]`},
	{name: "JSON patch of a path that is not there", method: "PATCH", path: pathMachines + "/a", media: jsonPatch,
		body: `[{"op":"remove","path":"/metadata/annotations/none"}]`},
	{name: "JSON patch that is none", method: "PATCH", path: pathMachines + "/a", media: jsonPatch, body: `{}`},
	{name: "strategic merge patch of a custom resource", method: "PATCH", path: pathMachines + "/a", media: strategicPatch, body: `{}`},
	{name: "patch of an unknown type", method: "PATCH", path: pathMachines + "/a", media: "application/json", body: `{}`},
	{name: "configmap", method: "POST", path: pathNamespace + "/configmaps?fieldManager=script", body: config("c", `,"data":{"a":"1"}`)},
	{name: "strategic merge patch", method: "PATCH", path: pathNamespace + "/configmaps/c?fieldManager=script", media: strategicPatch,
		body: `{"data":{"b":"2"}}`},

	// Server-side apply.
	{name: "apply without manager", method: "PATCH", path: pathNamespace + "/configmaps/d", media: applyPatch, body: config("d", "")},
	{name: "apply creates", method: "PATCH", path: pathNamespace + "/configmaps/d?fieldManager=one", media: applyPatch,
		body: config("d", `,"data":{"a":"1"}`)},
	{name: "apply of another", method: "PATCH", path: pathNamespace + "/configmaps/d?fieldManager=two", media: applyPatch,
		body: config("d", `,"data":{"a":"2"}`)},
	{name: "apply of another, by force", method: "PATCH", path: pathNamespace + "/configmaps/d?fieldManager=two&force=true", media: applyPatch,
		body: config("d", `,"data":{"a":"2"}`)},
	{name: "apply to a custom resource", method: "PATCH", path: pathMachines + "/b?fieldManager=one", media: applyPatch, body: vm("b", "")},
	{name: "apply to a custom resource of another", method: "PATCH", path: pathMachines + "/b?fieldManager=two", media: applyPatch,
		body: strings.ReplaceAll(vm("b", ""), "Halted", "Always")},
	{name: "apply with managedFields", method: "PATCH", path: pathMachines + "/b?fieldManager=one", media: applyPatch,
		body: vm("b", `,"managedFields":[{"manager":"x","operation":"Apply","apiVersion":"kubevirt.io/v1"}]`)},
	{name: "apply of an unknown field, strict", method: "PATCH", path: pathMachines + "/b?fieldManager=one&fieldValidation=Strict",
		media: applyPatch, body: strings.ReplaceAll(vm("b", ""), `"runStrategy"`, `"nothing":1,"runStrategy"`)},

	// Reading.
	{name: "get", method: "GET", path: pathMachines + "/a"},
	{name: "get of what is not there", method: "GET", path: pathMachines + "/none"},
	{name: "get by protobuf", method: "GET", path: pathMachines + "/a", accept: "application/vnd.kubernetes.protobuf"},
	{name: "get by protobuf or JSON", method: "GET", path: pathMachines + "/none", accept: "application/vnd.kubernetes.protobuf,application/json"},
	{name: "metadata only", method: "GET", path: pathMachines + "/b", accept: onlyMetadata},
	{name: "resources of KubeVirt", method: "GET", path: "/apis/kubevirt.io/v1"},
	{name: "resources of KubeVirt's instance types", method: "GET", path: "/apis/instancetype.kubevirt.io/v1beta1"},
	{name: "machine as a table", method: "GET", path: pathMachines + "/a", accept: asTable},
	{name: "machines as a table", method: "GET", path: pathMachines + "?limit=1", accept: asTable},
	{name: "machines as a table, with the objects", method: "GET", path: pathMachines + "?includeObject=Object&fieldSelector=metadata.name%3Db",
		accept: asTable},
	{name: "machines as a table, without the objects", method: "GET", path: pathMachines + "?includeObject=None", accept: asTable},
	{name: "no instances as a table", method: "GET", path: pathInstances, accept: asTable},
	{name: "what has no columns as a table", method: "GET", path: "/apis/instancetype.kubevirt.io/v1beta1/virtualmachineclusterpreferences",
		accept: asTable},
	{name: "watch of a table", method: "GET", path: pathMachines + "?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Da", accept: asTable},
	{name: "list by label", method: "GET", path: pathMachines + "?labelSelector=x%3Dy"},
	{name: "list by name", method: "GET", path: pathMachines + "?fieldSelector=metadata.name%3Db"},
	{name: "list by an unknown field", method: "GET", path: pathMachines + "?fieldSelector=spec.runStrategy%3DHalted"},
	{name: "list of pods by an unknown field", method: "GET", path: pathNamespace + "/pods?fieldSelector=spec.image%3Dx"},
	{name: "list by a bad label selector", method: "GET", path: pathMachines + "?labelSelector=a%3D%3D%3D"},
	{name: "list by a bad field selector", method: "GET", path: pathMachines + "?fieldSelector=a"},
	{name: "list with a bad continue token", method: "GET", path: pathMachines + "?limit=1&continue=nonsense"},
	{name: "list with a bad resourceVersion", method: "GET", path: pathMachines + "?resourceVersion=x"},
	{name: "list with a bad limit", method: "GET", path: pathMachines + "?limit=x"},
	{name: "list with resourceVersionMatch alone", method: "GET", path: pathMachines + "?resourceVersionMatch=Exact"},
	{name: "list of exactly zero", method: "GET", path: pathMachines + "?resourceVersionMatch=Exact&resourceVersion=0"},
	{name: "watch with sendInitialEvents and no match", method: "GET", path: pathMachines + "?watch=true&sendInitialEvents=true"},
	{name: "watch from a bad resourceVersion", method: "GET", path: pathMachines + "?watch=true&resourceVersion=x"},
	// Watches of two seconds: those that last longer may get a bookmark before their end.
	{name: "watch to the end of its time", method: "GET", path: pathMachines + "?watch=true&timeoutSeconds=2&fieldSelector=metadata.name%3Db"},
	{name: "watch list", method: "GET", path: pathMachines + "?watch=true&timeoutSeconds=2&sendInitialEvents=true&" +
		"resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&fieldSelector=metadata.name%3Db"},

	// Deletion.
	{name: "delete with another uid", method: "DELETE", path: pathMachines + "/a",
		body: `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"00000000-0000-0000-0000-000000000000"}}`},
	{name: "delete with another resourceVersion", method: "DELETE", path: pathMachines + "/a",
		body: `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"resourceVersion":"1"}}`},
	{name: "delete with an unknown policy", method: "DELETE", path: pathMachines + "/a?propagationPolicy=Sideways"},
	{name: "delete with two policies", method: "DELETE", path: pathMachines + "/a?propagationPolicy=Orphan&orphanDependents=true"},
	{name: "delete in a dry run", method: "DELETE", path: pathMachines + "/a?dryRun=All"},
	{name: "add a finalizer", method: "PATCH", path: pathMachines + "/a?fieldManager=script", media: mergePatch,
		body: `{"metadata":{"finalizers":["fidelity.example/hold"]}}`},
	{name: "delete what has a finalizer", method: "DELETE", path: pathMachines + "/a"},
	{name: "delete it again", method: "DELETE", path: pathMachines + "/a"},
	{name: "add a finalizer to what goes", method: "PATCH", path: pathMachines + "/a", media: mergePatch,
		body: `{"metadata":{"finalizers":["fidelity.example/hold","fidelity.example/more"]}}`},
	{name: "take the finalizer away", method: "PATCH", path: pathMachines + "/a?fieldManager=script", media: mergePatch,
		body: `{"metadata":{"finalizers":null}}`},
	{name: "it is gone", method: "GET", path: pathMachines + "/a"},
	{name: "delete in the foreground", method: "DELETE", path: pathMachines + "/b?propagationPolicy=Foreground"},
	{name: "it waits for its dependents", method: "GET", path: pathMachines + "/b"},
	{name: "end the wait", method: "PATCH", path: pathMachines + "/b?fieldManager=script", media: mergePatch,
		body: `{"metadata":{"finalizers":null}}`},
	{name: "delete what is not there", method: "DELETE", path: pathMachines + "/b"},
	{name: "delete a collection", method: "DELETE", path: pathMachines},
	{name: "delete a configmap", method: "DELETE", path: pathNamespace + "/configmaps/c"},
	{name: "delete configmaps by label", method: "DELETE", path: pathNamespace + "/configmaps?labelSelector=no%3Dne"},

	// Built-in kinds that a provider uses.
	{name: "secret", method: "POST", path: pathNamespace + "/secrets?fieldManager=script",
		body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"userdata":"x"},"immutable":true}`},
	{name: "change of an immutable secret", method: "PATCH", path: pathNamespace + "/secrets/s", media: mergePatch,
		body: `{"stringData":{"userdata":"y"}}`},
	{name: "claim", method: "POST", path: pathNamespace + "/persistentvolumeclaims?fieldManager=script",
		body: `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"p"},"spec":{"accessModes":["ReadWriteOnce"],` +
			`"storageClassName":"none","resources":{"requests":{"storage":"1Gi"}}}}`},
	{name: "claim without a size", method: "POST", path: pathNamespace + "/persistentvolumeclaims",
		body: `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"q"},"spec":{"accessModes":["ReadWriteOnce"]}}`},
	{name: "what may I", method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		body: `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"create",` +
			`"group":"kubevirt.io","resource":"virtualmachines","namespace":"fidelity"}}}`},
	{name: "data volume without source", method: "POST", path: pathVolumes + "?fieldManager=script",
		body: `{"apiVersion":"cdi.kubevirt.io/v1beta1","kind":"DataVolume","metadata":{"name":"d"},"spec":{"storage":{}}}`},
	{name: "lease without resourceVersion", method: "POST",
		path: "/apis/coordination.k8s.io/v1/namespaces/fidelity/leases?fieldManager=script",
		body: `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"l"},"spec":{"holderIdentity":"x"}}`},
	{name: "update of a lease without resourceVersion", method: "PUT", path: "/apis/coordination.k8s.io/v1/namespaces/fidelity/leases/l",
		body: `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"l"},"spec":{"holderIdentity":"y"}}`},

	// More of reading: what the rest of the script begins with is the same on every server.
	{name: "another configmap", method: "POST", path: pathNamespace + "/configmaps?fieldManager=script",
		body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x1","labels":{"show":"yes"}}}`},
	{name: "and one more", method: "POST", path: pathNamespace + "/configmaps?fieldManager=script",
		body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x2","labels":{"show":"yes"}}}`},
	{name: "and the last", method: "POST", path: pathNamespace + "/configmaps?fieldManager=script",
		body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x3","labels":{"show":"yes"}}}`},
	{name: "first page", method: "GET", path: pathNamespace + "/configmaps?limit=2"},
	{name: "between the pages", method: "PATCH", path: pathNamespace + "/configmaps/x3?fieldManager=script", media: mergePatch,
		body: `{"metadata":{"labels":{"show":"no"}}}`},
	{name: "second page", method: "GET", path: pathNamespace + "/configmaps?limit=2&continue={continue}"},
	{name: "page with another resourceVersion", method: "GET", path: pathNamespace + "/configmaps?limit=2&continue={continue}&resourceVersion=5"},
	{name: "pages by label", method: "GET", path: pathNamespace + "/configmaps?limit=1&labelSelector=show%3Dyes"},
	{name: "pages of a custom resource", method: "GET", path: pathVolumes + "?limit=1"},
	{name: "list of exactly one state", method: "GET",
		path: pathNamespace + "/configmaps?labelSelector=show%3Dno&resourceVersionMatch=Exact&resourceVersion={version}"},
	{name: "list not older than a state", method: "GET",
		path: pathNamespace + "/configmaps?labelSelector=show%3Dno&resourceVersionMatch=NotOlderThan&resourceVersion={version}"},
	{name: "list of the future", method: "GET", path: pathNamespace + "/configmaps?resourceVersionMatch=NotOlderThan&resourceVersion=999999999"},
	{name: "list of exactly the future", method: "GET", path: pathNamespace + "/configmaps?resourceVersionMatch=Exact&resourceVersion=999999999"},
	{name: "get of the future", method: "GET", path: pathNamespace + "/configmaps/x1?resourceVersion=999999999"},
	{name: "watch of a label, from before", method: "GET",
		path: pathNamespace + "/configmaps?watch=true&timeoutSeconds=2&resourceVersion={first}&labelSelector=show%3Dyes"},
	{name: "watch of one, from before", method: "GET",
		path: pathNamespace + "/configmaps?watch=true&timeoutSeconds=2&resourceVersion={first}&fieldSelector=metadata.name%3Dx3"},
	{name: "watch without what is there", method: "GET", path: pathNamespace + "/configmaps?watch=true&timeoutSeconds=2&sendInitialEvents=false&" +
		"resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"},
	{name: "watch of the future, with what is there", method: "GET", path: pathNamespace + "/configmaps?watch=true&timeoutSeconds=2&" +
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=999999999"},
	{name: "resources of a defined group", method: "GET", path: "/apis/k8s.cni.cncf.io/v1"},
	{name: "HTML", method: "GET", path: pathVolumes + "/d", accept: "text/html"},

	// More of writing.
	{name: "generated name", method: "POST", path: pathMachines + "?fieldManager=script",
		body: strings.ReplaceAll(vm("", `,"generateName":"g-"`), `"name":"",`, "")},
	{name: "delete a collection with something in it", method: "DELETE", path: pathMachines + "?fieldSelector=metadata.name%21%3Dz"},
	{name: "delete configmaps of a label", method: "DELETE", path: pathNamespace + "/configmaps?labelSelector=show%3Dyes"},
	{name: "delete for orphans", method: "DELETE", path: pathNamespace + "/configmaps/x3?propagationPolicy=Orphan"},
	{name: "delete with a body that is none", method: "DELETE", path: pathNamespace + "/configmaps/x3", body: `{"kind":`},
	{name: "create without namespace", method: "POST", path: "/api/v1/configmaps", body: config("n", "")},
	{name: "create of a custom resource without namespace", method: "POST", path: "/apis/kubevirt.io/v1/virtualmachines", body: vm("n", "")},
	{name: "get without namespace", method: "GET", path: "/api/v1/configmaps/x3"},
	{name: "get of a custom resource without namespace", method: "GET", path: "/apis/kubevirt.io/v1/virtualmachines/a"},
	{name: "a namespace for what has none", method: "GET", path: pathNamespace + "/nodes"},
	{name: "delete all namespaces", method: "DELETE", path: "/api/v1/namespaces"},
	{name: "apply without kind", method: "PATCH", path: pathNamespace + "/configmaps/y?fieldManager=one", media: applyPatch, body: `{"metadata":{}}`},
	{name: "apply under another name", method: "PATCH", path: pathNamespace + "/configmaps/y?fieldManager=one", media: applyPatch,
		body: config("z", "")},
	{name: "apply YAML", method: "PATCH", path: pathNamespace + "/configmaps/y?fieldManager=one", media: applyPatch,
		body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: y}\ndata: {a: '1', b: '2'}\n"},
	{name: "apply takes away what is not there any more", method: "PATCH", path: pathNamespace + "/configmaps/y?fieldManager=one", media: applyPatch,
		body: config("y", `,"data":{"a":"1"}`)},
	{name: "apply of nothing new", method: "PATCH", path: pathNamespace + "/configmaps/y?fieldManager=one", media: applyPatch,
		body: config("y", `,"data":{"a":"1"}`)},
	{name: "apply with an unknown field in a built-in kind", method: "PATCH", path: pathNamespace + "/configmaps/y?fieldManager=one",
		media: applyPatch, body: config("y", `,"nothing":1`)},
	{name: "merge patch with an unknown field, strict", method: "PATCH", path: pathVolumes + "/d?fieldValidation=Strict", media: mergePatch,
		body: `{"spec":{"nothing":1}}`},
	{name: "merge patch with null", method: "PATCH", path: pathVolumes + "/d?fieldManager=script", media: mergePatch,
		body: `{"spec":{"storage":{"storageClassName":null}},"metadata":{"annotations":null}}`},
	{name: "status of a data volume", method: "PATCH", path: pathVolumes + "/d/status?fieldManager=script", media: mergePatch,
		body: `{"status":{"phase":"Succeeded","progress":"100.0%"}}`},
	{name: "apply to a status", method: "PATCH", path: pathVolumes + "/d/status?fieldManager=one&force=true", media: applyPatch,
		body: `{"apiVersion":"cdi.kubevirt.io/v1beta1","kind":"DataVolume","metadata":{"name":"d"},"status":{"phase":"Failed"}}`},
	{name: "instance with a status", method: "POST", path: pathInstances + "?fieldManager=script",
		body: `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","metadata":{"name":"i"},"spec":{"domain":{"devices":{}}},` +
			`"status":{"phase":"Running","nodeName":"n"}}`},
	{name: "instance as a table", method: "GET", path: pathInstances + "/i", accept: asTable},
	{name: "data volumes as a table", method: "GET", path: pathVolumes, accept: asTable},
	{name: "update of an instance's status", method: "PATCH", path: pathInstances + "/i?fieldManager=script", media: mergePatch,
		body: `{"status":{"phase":"Failed"}}`},
	{name: "owner without uid", method: "POST", path: pathNamespace + "/configmaps",
		body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"o","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p"}]}}`},
	{name: "configmap with a bad key", method: "POST", path: pathNamespace + "/configmaps", body: config("k", `,"data":{"a b":"1"}`)},
	{name: "secret with a bad key", method: "POST", path: pathNamespace + "/secrets",
		body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"k"},"data":{"a b":"eA=="}}`},
	{name: "secret that is no base64", method: "POST", path: pathNamespace + "/secrets",
		body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"k"},"data":{"a":"???"}}`},
	{name: "secret of another type", method: "PATCH", path: pathNamespace + "/secrets/s", media: mergePatch, body: `{"type":"example.com/x"}`},
	{name: "secret that is too large", method: "POST", path: pathNamespace + "/secrets",
		body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"k"},"stringData":{"a":"` + strings.Repeat("x", 1<<20+1) + `"}}`},
	{name: "body that is too large", method: "POST", path: pathNamespace + "/secrets",
		body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"k"},"stringData":{"a":"` + strings.Repeat("x", 3<<20) + `"}}`},
	{name: "claim grows before it is bound", method: "PATCH", path: pathNamespace + "/persistentvolumeclaims/p", media: mergePatch,
		body: `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`},
	{name: "claim changes", method: "PATCH", path: pathNamespace + "/persistentvolumeclaims/p", media: mergePatch,
		body: `{"spec":{"accessModes":["ReadWriteMany"]}}`},
	{name: "claim is deleted", method: "DELETE", path: pathNamespace + "/persistentvolumeclaims/p"},
	{name: "claim without access mode", method: "POST", path: pathNamespace + "/persistentvolumeclaims",
		body: `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"q"},"spec":{"resources":{"requests":{"storage":"1Gi"}}}}`},
	{name: "lease by an update", method: "PUT", path: "/apis/coordination.k8s.io/v1/namespaces/fidelity/leases/m?fieldManager=script",
		body: `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"m"},"spec":{"holderIdentity":"x"}}`},
	{name: "storage class without provisioner", method: "POST", path: "/apis/storage.k8s.io/v1/storageclasses",
		body: `{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"fidelity"}}`},

	// What an update may not do.
	{name: "secret for updates", method: "POST", path: pathNamespace + "/secrets?fieldManager=script",
		body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"u"},"data":{"a":"eA=="}}`},
	{name: "secret gets a bad key", method: "PATCH", path: pathNamespace + "/secrets/u", media: mergePatch,
		body: `{"data":{"no/such key":"eA=="}}`},
	{name: "secret gets a bad label", method: "PATCH", path: pathNamespace + "/secrets/u", media: mergePatch,
		body: `{"metadata":{"labels":{"a":"not a label!"}}}`},
	{name: "secret becomes too large", method: "PATCH", path: pathNamespace + "/secrets/u", media: mergePatch,
		body: `{"stringData":{"b":"` + strings.Repeat("x", 2<<20) + `"}}`},
	{name: "secret becomes immutable", method: "PATCH", path: pathNamespace + "/secrets/u?fieldManager=script", media: mergePatch,
		body: `{"immutable":true}`},
	{name: "immutable secret becomes mutable", method: "PATCH", path: pathNamespace + "/secrets/u", media: mergePatch,
		body: `{"immutable":false,"data":{"a":"eQ=="}}`},
	{name: "configmap for updates", method: "POST", path: pathNamespace + "/configmaps?fieldManager=script",
		body: config("u", `,"data":{"a":"1"},"binaryData":{"b":"eA=="}`)},
	{name: "configmap with a key twice", method: "POST", path: pathNamespace + "/configmaps",
		body: config("v", `,"data":{"a":"1"},"binaryData":{"a":"eA=="}`)},
	{name: "configmap with a bad binary key", method: "POST", path: pathNamespace + "/configmaps", body: config("v", `,"binaryData":{"a b":"eA=="}`)},
	{name: "configmap that is too large in sum", method: "POST", path: pathNamespace + "/configmaps",
		body: config("v", `,"data":{"a":"`+strings.Repeat("x", 600<<10)+`"},"binaryData":{"b":"`+strings.Repeat("AAAA", 200<<10)+`"}`)},
	{name: "configmap gets a bad key", method: "PATCH", path: pathNamespace + "/configmaps/u", media: mergePatch, body: `{"data":{"a b":"1"}}`},
	{name: "configmap becomes too large", method: "PATCH", path: pathNamespace + "/configmaps/u", media: mergePatch,
		body: `{"data":{"c":"` + strings.Repeat("x", 2<<20) + `"}}`},
	{name: "configmap becomes immutable", method: "PATCH", path: pathNamespace + "/configmaps/u?fieldManager=script", media: mergePatch,
		body: `{"immutable":true}`},
	{name: "immutable configmap changes", method: "PATCH", path: pathNamespace + "/configmaps/u", media: mergePatch,
		body: `{"immutable":null,"data":{"a":"2"},"binaryData":{"b":"eQ=="}}`},
	{name: "immutable configmap gets a label", method: "PATCH", path: pathNamespace + "/configmaps/u?fieldManager=script", media: mergePatch,
		body: `{"metadata":{"labels":{"a":"b"}}}`},
	{name: "claim for updates", method: "POST", path: pathNamespace + "/persistentvolumeclaims?fieldManager=script",
		body: `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"u"},"spec":{"accessModes":["ReadWriteOnce"],` +
			`"storageClassName":"none","resources":{"requests":{"storage":"1Gi"}}}}`},
	{name: "claim loses its access modes", method: "PATCH", path: pathNamespace + "/persistentvolumeclaims/u", media: mergePatch,
		body: `{"spec":{"accessModes":null}}`},
	{name: "storage class", method: "POST", path: pathClasses + "?fieldManager=script",
		body: `{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"fidelity"},"provisioner":"fidelity.example",` +
			`"parameters":{"a":"b"}}`},
	{name: "storage class changes its parameters", method: "PATCH", path: pathClasses + "/fidelity", media: mergePatch,
		body: `{"parameters":{"a":"c"}}`},
	{name: "storage class changes all that it may not", method: "PATCH", path: pathClasses + "/fidelity", media: mergePatch,
		body: `{"provisioner":"other.example","reclaimPolicy":"Retain","volumeBindingMode":"WaitForFirstConsumer","parameters":null}`},
	{name: "storage class loses its provisioner", method: "PATCH", path: pathClasses + "/fidelity", media: mergePatch, body: `{"provisioner":""}`},
	{name: "storage class changes what it may", method: "PATCH", path: pathClasses + "/fidelity?fieldManager=script", media: mergePatch,
		body: `{"allowVolumeExpansion":true}`},
	{name: "storage class goes", method: "DELETE", path: pathClasses + "/fidelity"},
	{name: "priority class", method: "POST", path: pathPriority + "?fieldManager=script",
		body: `{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"fidelity"},"value":7}`},
	{name: "priority class changes its value", method: "PATCH", path: pathPriority + "/fidelity", media: mergePatch,
		body: `{"value":8,"preemptionPolicy":"Never"}`},
	{name: "priority class changes what it may", method: "PATCH", path: pathPriority + "/fidelity?fieldManager=script", media: mergePatch,
		body: `{"description":"x"}`},
	{name: "priority class goes", method: "DELETE", path: pathPriority + "/fidelity"},
	{name: "role binding", method: "POST", path: pathBindings + "?fieldManager=script",
		body: `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"u"},` +
			`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"a"}}`},
	{name: "role binding changes its role", method: "PATCH", path: pathBindings + "/u", media: mergePatch, body: `{"roleRef":{"name":"b"}}`},
	{name: "role binding changes its subjects", method: "PATCH", path: pathBindings + "/u?fieldManager=script", media: mergePatch,
		body: `{"subjects":[{"kind":"ServiceAccount","name":"x","namespace":"fidelity"},{"kind":"User","name":"y"}]}`},
	{name: "role binding without a role", method: "POST", path: pathBindings,
		body: `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"v"},"roleRef":{"kind":"Thing","name":""}}`},
	{name: "service account", method: "POST", path: pathNamespace + "/serviceaccounts?fieldManager=script",
		body: `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`},
	{name: "pod", method: "POST", path: pathPods + "?fieldManager=script", accept: onlyMetadata,
		body: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"u"},"spec":{"automountServiceAccountToken":false,` +
			`"containers":[{"name":"c","image":"i:1"}]}}`},
	{name: "pod changes the name of its container", method: "PATCH", path: pathPods + "/u", media: jsonPatch,
		body: `[{"op":"replace","path":"/spec/containers/0/name","value":"d"}]`},
	{name: "pod changes the restart policy", method: "PATCH", path: pathPods + "/u", media: mergePatch, body: `{"spec":{"restartPolicy":"Never"}}`},
	{name: "pod gets one more container", method: "PATCH", path: pathPods + "/u", media: jsonPatch,
		body: `[{"op":"add","path":"/spec/containers/-","value":{"name":"d","image":"i:1"}}]`},
	{name: "pod loses its containers", method: "PATCH", path: pathPods + "/u", media: jsonPatch, body: `[{"op":"remove","path":"/spec/containers"}]`},
	{name: "pod changes its image", method: "PATCH", path: pathPods + "/u?fieldManager=script", media: jsonPatch, accept: onlyMetadata,
		body: `[{"op":"replace","path":"/spec/containers/0/image","value":"i:2"}]`},
	{name: "pod loses its image", method: "PATCH", path: pathPods + "/u", media: jsonPatch,
		body: `[{"op":"replace","path":"/spec/containers/0/image","value":""}]`},
	{name: "pod gets a toleration", method: "PATCH", path: pathPods + "/u?fieldManager=script", media: strategicPatch, accept: onlyMetadata,
		body: `{"spec":{"tolerations":[{"key":"a","operator":"Exists"}]}}`},
	{name: "pod gets a deadline", method: "PATCH", path: pathPods + "/u?fieldManager=script", media: mergePatch, accept: onlyMetadata,
		body: `{"spec":{"activeDeadlineSeconds":60}}`},
	{name: "pod gets a later deadline", method: "PATCH", path: pathPods + "/u", media: mergePatch, body: `{"spec":{"activeDeadlineSeconds":90}}`},
	{name: "pod loses its deadline", method: "PATCH", path: pathPods + "/u", media: mergePatch, body: `{"spec":{"activeDeadlineSeconds":null}}`},
	{name: "pod goes", method: "DELETE", path: pathPods + "/u", accept: onlyMetadata},
	{name: "service account goes", method: "DELETE", path: pathNamespace + "/serviceaccounts/default"},
	{name: "role binding goes", method: "DELETE", path: pathBindings + "/u"},

	// Who is it, and may it.
	{name: "wrong token", method: "GET", path: pathMachines, token: "no such token"},
	{name: "list by nobody", method: "GET", path: pathMachines, as: "nobody"},
	{name: "get by nobody", method: "GET", path: pathMachines + "/a", as: "nobody"},
	{name: "status by nobody", method: "PATCH", path: pathMachines + "/a/status", as: "nobody", media: mergePatch, body: `{}`},
	{name: "namespaces by nobody", method: "GET", path: "/api/v1/namespaces", as: "nobody"},
	{name: "subresource by nobody", method: "PUT", path: "/apis/subresources.kubevirt.io/v1/namespaces/fidelity/virtualmachines/a/start", as: "nobody"},
	{name: "metrics by nobody", method: "GET", path: "/metrics", as: "nobody"},
	{name: "readyz by nobody", method: "GET", path: "/readyz", as: "nobody"},
	{name: "group by nobody", method: "GET", path: "/apis/kubevirt.io", as: "nobody"},
	{name: "what may nobody", method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", as: "nobody",
		body: `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"create",` +
			`"group":"kubevirt.io","resource":"virtualmachines","namespace":"fidelity"}}}`},

	// The end.
	{name: "delete namespace", method: "DELETE", path: pathNamespace},
	{name: "create in a namespace that goes", method: "POST", path: pathMachines, body: vm("z", "")},
	{name: "namespace goes", method: "GET", path: pathNamespace},
	{name: "finalize namespace", method: "PUT", path: pathNamespace + "/finalize?fieldManager=script",
		body: `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"fidelity"},"spec":{"finalizers":[]}}`},
	{name: "namespace is gone", method: "GET", path: pathNamespace},
}

// runFidelity plays the script on a server and compares its answers with the golden file.
func runFidelity(t *testing.T, config *rest.Config) {
	t.Helper()

	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)

	var got strings.Builder

	last := map[string]string{}

	for _, s := range fidelity {
		fmt.Fprintf(&got, "## %s\n%s %s\n%s\n", s.name, s.method, s.path, play(t, client, config.Host, s, last))
	}

	golden := filepath.Join("testdata", "fidelity.golden")

	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got.String()), 0o600))

		return
	}

	want, err := os.ReadFile(golden)
	require.NoError(t, err)

	wants, gots := strings.Split(string(want), "## "), strings.Split(got.String(), "## ")
	for i := range min(len(wants), len(gots)) {
		if wants[i] != gots[i] {
			t.Errorf("a real server answers\n%sgot\n%s", wants[i], gots[i])
		}
	}

	require.Len(t, gots, len(wants))
}

// found are the values of answers that later steps name.
var found = map[string]*regexp.Regexp{
	"version":  regexp.MustCompile(`"resourceVersion": ?"(\d\d+)"`),
	"continue": regexp.MustCompile(`"continue": ?"([^"]+)"`),
}

func play(t *testing.T, client *http.Client, host string, s step, last map[string]string) string {
	t.Helper()

	for name, value := range last {
		s.path, s.body = strings.ReplaceAll(s.path, "{"+name+"}", value), strings.ReplaceAll(s.body, "{"+name+"}", value)
	}

	answer, text := send(t, client, host, s) //nolint:bodyclose // send closes it.

	// A real server is not ready for each of its kinds at once.
	for tries := 0; answer.StatusCode == http.StatusTooManyRequests && tries < 30; tries++ {
		time.Sleep(time.Second)

		answer, text = send(t, client, host, s) //nolint:bodyclose // send closes it.
	}

	for name, pattern := range found {
		if match := pattern.FindSubmatch(text); match != nil {
			last[name] = string(match[1])
		}
	}

	if last["first"] == "" {
		last["first"] = last["version"]
	}

	var b strings.Builder

	fmt.Fprintf(&b, "%d %s\n", answer.StatusCode, answer.Header.Get("Content-Type"))

	for _, warning := range answer.Header.Values("Warning") {
		fmt.Fprintf(&b, "Warning: %s\n", warning)
	}

	if strings.Contains(answer.Header.Get("Content-Type"), "protobuf") {
		return b.String() + "(protobuf)\n"
	}

	decoder := json.NewDecoder(bytes.NewReader(text))

	for {
		var value any
		if err := decoder.Decode(&value); err != nil {
			if err != io.EOF {
				fmt.Fprintf(&b, "%s\n", normalise(string(text)))
			}

			break
		}

		inOrder(value)

		pretty, err := json.MarshalIndent(value, "", " ")
		require.NoError(t, err)
		fmt.Fprintf(&b, "%s\n", normalise(string(pretty)))
	}

	return b.String()
}

// send sends the request of a step.
func send(t *testing.T, client *http.Client, host string, s step) (*http.Response, []byte) {
	t.Helper()

	r, err := http.NewRequestWithContext(t.Context(), s.method, host+s.path, bytes.NewBufferString(s.body))
	require.NoError(t, err)

	if s.as != "" {
		r.Header.Set("Impersonate-User", s.as)
	}

	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}

	r.Header.Set("Accept", "application/json")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "script/1")

	if s.media != "" {
		r.Header.Set("Content-Type", s.media)
	}

	if s.accept != "" {
		r.Header.Set("Accept", s.accept)
	}

	answer, err := client.Do(r)
	require.NoError(t, err, s.name)

	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err, s.name)
	require.NoError(t, answer.Body.Close())

	return answer, text
}

// What differs from run to run has a name in its place.
var changing = []struct {
	pattern *regexp.Regexp
	to      string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[1-9][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`(?m)^(\s+)"\d+m?\d*s"`), `${1}"AGE"`},
	{regexp.MustCompile(`"resourceVersion": "\d\d+"`), `"resourceVersion": "VERSION"`},
	{regexp.MustCompile(`(\\"resourceVersion\\\\*":\\*")\d+`), "${1}VERSION"},
	// What has changed in a claim or a pod is told by the names that its fields have inside of the real server.
	{regexp.MustCompile(`\\n@@(?:[^"\\]|\\.)*?(\]?")`), "$1"},
	{regexp.MustCompile(`"continue": "[^"]+"`), `"continue": "CONTINUE"`},
	{regexp.MustCompile(`, current: \d+`), ", current: VERSION"},
	{regexp.MustCompile(`\bg-[a-z0-9]{5}\b`), "g-SUFFIX"},
	{regexp.MustCompile(`x{1000,}`), "XXX"},
	// Nobody reads who has set the fields of a question.
	{regexp.MustCompile(`(?s)("kind": "SelfSubjectAccessReview",\n "metadata": )\{\n.*?\n \}`), "${1}{}"},
	{regexp.MustCompile(`(ResourceVersion in object meta: |ResourceVersion in record \()\d+`), "${1}VERSION"},
}

// inOrder sorts the kinds of a group, which a real server tells of in an order that depends on when it has taken up each definition.
func inOrder(value any) {
	list, ok := value.(map[string]any)
	if !ok || list["kind"] != "APIResourceList" {
		return
	}

	if kinds, ok := list["resources"].([]any); ok {
		slices.SortFunc(kinds, func(a, b any) int {
			return cmp.Compare(a.(map[string]any)["name"].(string), b.(map[string]any)["name"].(string)) //nolint:forcetypeassert // a test
		})
	}
}

func normalise(text string) string {
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.to)
	}

	return text
}

func TestAnswersAreThoseOfARealServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { runFidelity(t, start(t).Admin()) })
}
