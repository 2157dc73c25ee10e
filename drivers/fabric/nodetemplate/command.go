package nodetemplate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/drivers/fabric/topology"
	"gpufabric.io/drivers/node/host"
)

const (
	// patience bounds all of the command's requests: a person waits for the answer.
	patience = time.Minute
	// maxFile bounds a file of objects: 18 nodes with MIG placements are some 10 MB.
	maxFile = 256 << 20
	// pageSize is how many ResourceSlices are listed at a time, and how many nodes are looked through for a name.
	pageSize = 500
	// shown is how many names a message lists.
	shown = 20
)

// options are the command's flags.
type options struct{ kubeconfig, node, file, name, output string }

// Command is `gpufabric template`.
func Command(h host.Host) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "template",
		Short: "Print what an autoscaler needs to simulate a node: labels, allocatable and ResourceSlices",
		Long: "Print what an autoscaler needs to simulate a node before it exists, made from a node of that kind: a Node with labels, taints\n" +
			"and allocatable, and the ResourceSlices that gpufabric publishes for it, without serial numbers and states. With --file the\n" +
			"node comes from objects in a file, such as those of a machine profile.\n\n" +
			"It gets a node and lists its resourceslices (and nodes, where the name is unknown) with the rights of whoever runs it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), patience, fmt.Errorf("the API server did not answer within %s", patience))
			defer cancel()
			return o.run(ctx, h)
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.node, "node", "", "make the template from this node")
	flags.StringVarP(&o.file, "file", "f", "", "read Nodes and ResourceSlices from a file (YAML, JSON, a List) instead of a cluster; "+
		"/dev/stdin for a pipe")
	flags.StringVar(&o.name, "name", "template", "name of the node that does not exist")
	flags.StringVarP(&o.output, "output", "o", "objects", "objects (a Node and ResourceSlices, as the Cluster Autoscaler simulates them), "+
		"karpenter (DynamicResourceTemplate), or cluster-api (annotations of a MachineDeployment)")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty: KUBECONFIG, else the pod's service account")
	return command
}

func (o *options) run(ctx context.Context, h host.Host) error {
	writeAs := formats()[o.output]
	if writeAs == nil {
		return fmt.Errorf("--output %q: allowed are %s", o.output, strings.Join(slices.Sorted(maps.Keys(formats())), ", "))
	}
	var node *corev1.Node
	var published []resourceapi.ResourceSlice
	var err error
	switch {
	case o.file != "":
		node, published, err = o.fromFile()
	case o.node == "":
		return errors.New("--node: give the name of a node, or --file with the objects of one")
	default:
		node, published, err = o.fromCluster(ctx, h)
	}
	if err != nil {
		return err
	}
	t, err := Of(o.name, node, published)
	if err != nil {
		return err
	}
	return writeAs(host.Visible(h.Out()), t)
}

func (o *options) fromCluster(ctx context.Context, h host.Host) (*corev1.Node, []resourceapi.ResourceSlice, error) {
	config, err := topology.Reach(h, o.kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	client, err := host.Client(config, "gpufabric-template")
	if err != nil {
		return nil, nil, err
	}
	return read(ctx, client, o.node)
}

// read reads a node and its ResourceSlices.
func read(ctx context.Context, client kubernetes.Interface, name string) (*corev1.Node, []resourceapi.ResourceSlice, error) {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		some, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: pageSize})
		if err != nil {
			return nil, nil, fmt.Errorf("--node %q: the cluster has no such node, and its nodes cannot be listed: %w", name, err)
		}
		var names []string
		for i := range some.Items {
			names = append(names, some.Items[i].Name)
		}
		return nil, nil, unknown(name, names, "the cluster")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("get node %s: %w", name, err)
	}
	var all []resourceapi.ResourceSlice
	list := metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + name, Limit: pageSize}
	for {
		page, err := client.ResourceV1().ResourceSlices().List(ctx, list)
		if err != nil {
			return nil, nil, fmt.Errorf("list the resourceslices of node %s: %w", name, err)
		}
		all = append(all, page.Items...)
		if list.Continue = page.Continue; list.Continue == "" {
			return node, all, nil
		}
	}
}

// unknown is the error for a node that is not there, with those that are.
func unknown(name string, names []string, where string) error {
	slices.Sort(names)
	more := ""
	if len(names) > shown {
		names, more = names[:shown], fmt.Sprintf(" and %d more", len(names)-shown)
	}
	return fmt.Errorf("--node %q: %s has no such node; it has %s%s", name, where, cmp.Or(strings.Join(names, ", "), "none"), more)
}

// fromFile reads the objects of a node from a file, which may have those of other nodes beside it.
func (o *options) fromFile() (*corev1.Node, []resourceapi.ResourceSlice, error) {
	file, err := os.Open(o.file)
	if err != nil {
		return nil, nil, fmt.Errorf("--file: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	found := objects{nodes: map[string]*corev1.Node{}}
	if err := found.read(file); err != nil {
		return nil, nil, fmt.Errorf("--file %s: %w", o.file, err)
	}
	names := slices.Sorted(maps.Keys(found.nodes))
	switch {
	case len(names) == 0:
		return nil, nil, fmt.Errorf("--file %s: it has no Node", o.file)
	case o.node == "" && len(names) > 1:
		return nil, nil, fmt.Errorf("--file %s: it has %d nodes; name one of them by --node, such as %s", o.file, len(names), names[0])
	case o.node == "":
		return found.nodes[names[0]], found.slices, nil
	case found.nodes[o.node] == nil:
		return nil, nil, unknown(o.node, names, "file "+o.file)
	}
	return found.nodes[o.node], found.slices, nil
}

// objects are the objects of a file; other kinds are passed over.
type objects struct {
	nodes  map[string]*corev1.Node
	slices []resourceapi.ResourceSlice
}

func (f *objects) read(from io.Reader) error {
	content, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	if err != nil {
		return err //nolint:wrapcheck // the caller names the file
	}
	if len(content) > maxFile {
		return fmt.Errorf("it is larger than %d MiB", maxFile>>20)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for n := 1; ; n++ {
		var document json.RawMessage
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("document %d is neither YAML nor JSON: %w", n, err)
		}
		if err := f.add(document); err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// add takes an object, or the objects of a list.
func (f *objects) add(document json.RawMessage) error {
	if len(document) == 0 || string(document) == "null" {
		return nil
	}
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(document, &head); err != nil {
		return fmt.Errorf("it is not an object: %w", err)
	}
	switch {
	case head.Kind == "List":
		for _, item := range head.Items {
			if err := f.add(item); err != nil {
				return err
			}
		}
	case head.Kind == "Node" && head.APIVersion == "v1":
		node := &corev1.Node{}
		if err := json.Unmarshal(document, node); err != nil {
			return fmt.Errorf("read a Node: %w", err)
		}
		f.nodes[node.Name] = node
	case head.Kind == "ResourceSlice" && head.APIVersion == "resource.k8s.io/v1":
		var slice resourceapi.ResourceSlice
		if err := json.Unmarshal(document, &slice); err != nil {
			return fmt.Errorf("read a ResourceSlice: %w", err)
		}
		f.slices = append(f.slices, slice)
	case head.Kind == "ResourceSlice":
		return fmt.Errorf("a ResourceSlice of version %s; get them by kubectl get resourceslices.v1.resource.k8s.io", head.APIVersion)
	}
	return nil
}
