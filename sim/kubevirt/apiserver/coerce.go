package apiserver

import (
	"fmt"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// coercingDecoder reads an object of a defined kind as the real server does: metadata has to be well formed, what the schema does
// not know is pruned, and reported if it is strict, and what is missing gets its default.
type coercingDecoder struct {
	runtime.Decoder
	custom *custom
	strict bool
}

// Decode implements runtime.Decoder.
func (d coercingDecoder) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	var problems []error

	o, kind, err := d.Decoder.Decode(data, defaults, into)
	if err != nil {
		strict, ok := runtime.AsStrictDecodingError(err)
		if !ok || o == nil {
			return nil, kind, err
		}

		problems = strict.Errors()
	}

	if u, ok := o.(*unstructured.Unstructured); ok {
		unknown, err := d.coerce(u)
		if err != nil {
			return nil, kind, err
		}

		for _, path := range unknown {
			problems = append(problems, fmt.Errorf("unknown field %q", path))
		}

		d.custom.Default(u)
	}

	if d.strict && len(problems) > 0 {
		return o, kind, runtime.NewStrictDecodingError(problems)
	}

	return o, kind, nil
}

// coerce returns the paths of the fields that it pruned, if it is strict.
func (d coercingDecoder) coerce(u *unstructured.Unstructured) (unknown []string, err error) {
	apiVersion, hasVersion, err := unstructured.NestedString(u.Object, "apiVersion")
	if err != nil {
		return nil, err
	}

	kind, hasKind, err := unstructured.NestedString(u.Object, "kind")
	if err != nil {
		return nil, err
	}

	meta, hasMeta, unknown, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: d.strict})
	if err != nil {
		return nil, err
	}

	if u.GroupVersionKind() == d.custom.kind() {
		options := structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: d.strict}
		unknown = append(unknown, pruning.PruneWithOptions(u.Object, d.custom.structural, true, options)...)
		defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, d.custom.structural)

		failed, paths := objectmeta.CoerceWithOptions(nil, u.Object, d.custom.structural, false, objectmeta.CoerceOptions{
			ReturnUnknownFieldPaths: d.strict,
		})
		if failed != nil {
			return nil, failed
		}

		unknown = append(unknown, paths...)
	}

	if hasKind {
		u.SetKind(kind)
	}

	if hasVersion {
		u.SetAPIVersion(apiVersion)
	}

	if hasMeta {
		if err := objectmeta.SetObjectMeta(u.Object, meta); err != nil {
			return nil, err
		}
	}

	return unknown, nil
}
