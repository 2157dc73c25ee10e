package pool

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// Manifest has the RDMAPools and the Nodes of a file with any number of YAML or JSON documents, including Lists.
type Manifest struct {
	pools  []*v1alpha1.RDMAPool
	labels map[string]map[string]string // of the Nodes, by name

	strict runtime.Decoder
}

// ReadManifest reads a manifest. It ignores objects of other kinds, as in the file of a whole installation. A field of an RDMAPool that the
// API server would refuse or drop is a mistake; the error lists all of them, with document and path.
func ReadManifest(data []byte) (*Manifest, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	m := &Manifest{
		labels: make(map[string]map[string]string),
		strict: serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme, scheme, serializer.SerializerOptions{Strict: true}),
	}
	var errs []error
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for i := 1; ; i++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		var content []byte
		if err == nil {
			content, err = yaml.YAMLToJSONStrict(document)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("document %d: %w", i, err))
			continue
		}
		errs = append(errs, m.add(fmt.Sprintf("document %d", i), content))
	}
	slices.SortStableFunc(m.pools, func(a, b *v1alpha1.RDMAPool) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(m.pools); i++ {
		if m.pools[i].Name == m.pools[i-1].Name {
			errs = append(errs, fmt.Errorf("RDMAPool %s is listed twice: names are unique in a cluster", m.pools[i].Name))
		}
	}
	return m, errors.Join(errs...)
}

// add adds an object, or those of a List; at is its place.
func (m *Manifest) add(at string, content []byte) error {
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(content, &head); err != nil {
		return fmt.Errorf("%s is not a Kubernetes object: %w", at, err)
	}
	switch {
	case strings.HasSuffix(head.Kind, "List"):
		var errs []error
		for i, item := range head.Items {
			errs = append(errs, m.add(fmt.Sprintf("%s: items[%d]", at, i), item))
		}
		return errors.Join(errs...)
	case head.Kind == "Node" && head.APIVersion == "v1":
		// A Node is only read for its labels.
		var node corev1.Node
		if err := json.Unmarshal(content, &node); err != nil {
			return fmt.Errorf("%s: Node: %w", at, err)
		}
		m.labels[node.Name] = node.Labels
		return nil
	case head.Kind != "RDMAPool":
		return nil
	case head.APIVersion != v1alpha1.SchemeGroupVersion().String():
		return fmt.Errorf("%s: RDMAPool: apiVersion: %q is not %s", at, head.APIVersion, v1alpha1.SchemeGroupVersion())
	}
	var p v1alpha1.RDMAPool
	_, _, err := m.strict.Decode(content, nil, &p)
	if err == nil && p.Name == "" {
		err = errors.New("metadata.name is missing")
	}
	if err != nil {
		return fmt.Errorf("%s: RDMAPool %s: %w", at, p.Name, err)
	}
	m.pools = append(m.pools, &p)
	return nil
}

// Listing is the RDMAPools as a node sees them. Its labels are those given, else those of its Node in the manifest; they matter
// only where a pool selects nodes.
func (m *Manifest) Listing(node string, labels map[string]string) (*Listing, error) {
	if labels == nil {
		known := false
		if labels, known = m.labels[node]; !known {
			for _, p := range m.pools {
				if p.Spec.NodeSelector != nil {
					return nil, fmt.Errorf("RDMAPool %s selects nodes by their labels, and those of node %q are unknown: give --node-labels, or the "+
						"Node in the manifest with --node-name", p.Name, node)
				}
			}
		}
	}
	return selecting(m.pools, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}}), nil
}
