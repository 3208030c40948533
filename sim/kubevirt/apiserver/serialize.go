package apiserver

import (
	"io"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// customCodec keeps objects of a defined kind as JSON. What is read has the version of the kind.
type customCodec struct{ kind schema.GroupVersionKind }

// Encode implements runtime.Encoder.
func (customCodec) Encode(o runtime.Object, w io.Writer) error {
	return unstructured.UnstructuredJSONScheme.Encode(o, w)
}

// Identifier implements runtime.Encoder.
func (customCodec) Identifier() runtime.Identifier {
	return unstructured.UnstructuredJSONScheme.Identifier()
}

// Decode implements runtime.Decoder.
func (c customCodec) Decode(data []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	o, kind, err := unstructured.UnstructuredJSONScheme.Decode(data, nil, into)
	if err != nil {
		return nil, kind, err
	}

	o.GetObjectKind().SetGroupVersionKind(c.kind)

	return o, &c.kind, nil
}

// customSerializer reads and writes the requests about a defined kind.
type customSerializer struct {
	custom *custom
	media  []runtime.SerializerInfo
}

func newCustomSerializer(c *custom) customSerializer {
	typer := customTyper{crdserverscheme.NewUnstructuredObjectTyper()}
	with := func(o json.SerializerOptions) *json.Serializer {
		return json.NewSerializerWithOptions(json.DefaultMetaFactory, customCreater{}, typer, o)
	}

	return customSerializer{custom: c, media: []runtime.SerializerInfo{
		{
			MediaType: runtime.ContentTypeJSON, MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true,
			Serializer: with(json.SerializerOptions{}), PrettySerializer: with(json.SerializerOptions{Pretty: true}),
			StrictSerializer: with(json.SerializerOptions{Strict: true}),
			StreamSerializer: &runtime.StreamSerializerInfo{
				EncodesAsText: true, Serializer: with(json.SerializerOptions{}), Framer: json.Framer,
			},
		},
		{
			MediaType: runtime.ContentTypeYAML, MediaTypeType: "application", MediaTypeSubType: "yaml", EncodesAsText: true,
			Serializer: with(json.SerializerOptions{Yaml: true}), StrictSerializer: with(json.SerializerOptions{Yaml: true, Strict: true}),
		},
		{
			MediaType: runtime.ContentTypeProtobuf, MediaTypeType: "application", MediaTypeSubType: "vnd.kubernetes.protobuf",
			Serializer: protobuf.NewSerializer(customCreater{}, typer),
			StreamSerializer: &runtime.StreamSerializerInfo{
				Serializer: protobuf.NewRawSerializer(customCreater{}, typer), Framer: protobuf.LengthDelimitedFramer,
			},
		},
	}}
}

// withoutProtobuf returns what objects of defined kinds are written in. Only their metadata is known to protobuf.
func (s customSerializer) withoutProtobuf() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(s.media), func(i runtime.SerializerInfo) bool { return i.MediaType == runtime.ContentTypeProtobuf })
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (s customSerializer) SupportedMediaTypes() []runtime.SerializerInfo { return s.media }

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (s customSerializer) EncoderForVersion(e runtime.Encoder, version runtime.GroupVersioner) runtime.Encoder {
	return customEncoder{Encoder: e, typed: codecs.EncoderForVersion(e, version)}
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (s customSerializer) DecoderToVersion(d runtime.Decoder, _ runtime.GroupVersioner) runtime.Decoder {
	strict := false
	if j, ok := d.(*json.Serializer); ok {
		strict = j.IsStrict()
	}

	return coercingDecoder{Decoder: d, custom: s.custom, strict: strict}
}

// customEncoder writes objects of defined kinds and events of watches as they are, and all else, such as a metav1.Status, with its kind.
type customEncoder struct {
	runtime.Encoder
	typed runtime.Encoder
}

// Encode implements runtime.Encoder.
func (e customEncoder) Encode(o runtime.Object, w io.Writer) error {
	switch o.(type) {
	case runtime.Unstructured, *metav1.WatchEvent:
		return e.Encoder.Encode(o, w)
	default:
		return e.typed.Encode(o, w)
	}
}
