package machine

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// ParseTolerations reads the text of the class data's field tolerations: a JSON array, as the official provider takes it, or the
// same as YAML. An empty text has none.
func ParseTolerations(text string) ([]corev1.Toleration, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}

	var all []corev1.Toleration
	if err := strict(text, &all); err != nil {
		return nil, fmt.Errorf(`got no list of tolerations: %w; want one like [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}]`, err)
	}

	return all, nil
}

// ParseAffinity reads the text of the class data's field affinity: a Kubernetes affinity as YAML or JSON. An empty text has none.
func ParseAffinity(text string) (*corev1.Affinity, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}

	var a corev1.Affinity
	if err := strict(text, &a); err != nil {
		return nil, fmt.Errorf("got no affinity: %w; want a mapping with nodeAffinity, podAffinity and podAntiAffinity, as Kubernetes has them", err)
	}

	return &a, nil
}

// strict reads one YAML or JSON document and refuses keys that into does not have.
func strict(text string, into any) error {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))

	document, err := documents.Read()
	if err != nil {
		return err
	}

	if _, err = documents.Read(); !errors.Is(err, io.EOF) {
		return errors.New("there is more than one document")
	}

	if err = yaml.UnmarshalStrict(document, into); err != nil {
		return errors.New(strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "error unmarshaling JSON: while decoding JSON: ")), " "))
	}

	return nil
}

// affinity is the class data's, which has been checked.
func (c ClassData) affinity() *corev1.Affinity {
	a, err := ParseAffinity(c.Affinity)
	if err != nil {
		return nil
	}

	return a
}

// tolerations are those of both fields; the text has been checked.
func (c ClassData) tolerations() []corev1.Toleration {
	all, err := ParseTolerations(c.Tolerations)
	if err != nil {
		return nil
	}

	for _, t := range c.AdditionalTolerations {
		all = append(all, t.kubernetes())
	}

	return all
}

func (t Toleration) kubernetes() corev1.Toleration {
	return corev1.Toleration{
		Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value, Effect: corev1.TaintEffect(t.Effect),
		TolerationSeconds: t.TolerationSeconds,
	}
}
