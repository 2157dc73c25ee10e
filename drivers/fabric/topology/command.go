// Package topology is the command that shows the fabric: racks, cliques, nodes, GPUs and ports, who holds what, what is free and
// what is broken. It reads the API server with the user's rights, and changes nothing.
package topology

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gpufabric.io/drivers/fabric"
	"gpufabric.io/drivers/fabric/reader"
	"gpufabric.io/drivers/node/host"
)

const (
	role = "topology"
	// patience bounds all of the command's requests: a person waits for the answer.
	patience = time.Minute
)

// options are the command's flags.
type options struct {
	kubeconfig, namespace, output string
	nodes                         []string
}

// format writes a picture in one form.
type format func(w io.Writer, p *fabric.Picture, nodes []string, now time.Time) error

func formats() map[string]format {
	return map[string]format{"text": writeText, "json": writeJSON, "dot": writeDOT}
}

// Command is `gpufabric topology`.
func Command(h host.Host) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   role,
		Short: "Show racks, cliques, nodes, GPUs, ports and domains: who holds what, what is free, what is broken",
		Long: "Show racks, cliques, nodes, GPUs, ports and domains: who holds what, what is free, what is broken.\n\n" +
			"It lists " + strings.Join(reader.Resources(), ", ") + "\nwith the rights of whoever runs it, and says what it may not read.",
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), h) },
	}
	flags := command.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty: KUBECONFIG, else the pod's service account")
	flags.StringVarP(&o.namespace, "namespace", "n", "", "show claims, pods and domains of this namespace alone")
	flags.StringVarP(&o.output, "output", "o", "text", "text, json, or dot (for Graphviz)")
	flags.StringSliceVar(&o.nodes, "node", nil, "show this node in detail, by PCIe switch; may be given several times")
	return command
}

func (o *options) run(ctx context.Context, h host.Host) error {
	write := formats()[o.output]
	if write == nil {
		return fmt.Errorf("--output %q: allowed are text, json and dot", o.output)
	}
	config, err := Reach(h, o.kubeconfig)
	if err != nil {
		return err
	}
	source, err := reader.New(config, reader.Options{Namespace: o.namespace, Agent: "gpufabric-" + role})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the API server took more than %s", patience))
	defer cancel()
	facts, err := source.List(ctx)
	if err != nil {
		return err
	}
	picture := fabric.Draw(facts)
	if err := known(picture, o.nodes); err != nil {
		return err
	}
	return write(host.Visible(h.Out()), picture, o.nodes, time.Now())
}

// Reach finds the API server, from the kubeconfig where one is given, else from the host.
func Reach(h host.Host, kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := h.Kubernetes()
		if err != nil {
			return nil, fmt.Errorf("find an API server (--kubeconfig, KUBECONFIG or a pod's service account): %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read --kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}

// known refuses names of nodes that the picture lacks, and suggests similar ones.
func known(p *fabric.Picture, names []string) error {
	for _, name := range names {
		var near []string
		found := false
		for n := range nodesOf(p) {
			found = found || n.Name == name
			if strings.Contains(n.Name, name) || strings.Contains(name, n.Name) {
				near = append(near, n.Name)
			}
		}
		if found {
			continue
		}
		if len(near) == 0 {
			return fmt.Errorf("--node %q: the fabric has no such node; it has %d", name, p.Totals.Nodes)
		}
		return fmt.Errorf("--node %q: the fabric has no such node; near ones are %s", name, strings.Join(near[:min(len(near), 3)], ", "))
	}
	return nil
}

func nodesOf(p *fabric.Picture) func(yield func(*fabric.NodeState) bool) {
	return func(yield func(*fabric.NodeState) bool) {
		for i := range p.Racks {
			for j := range p.Racks[i].Nodes {
				if !yield(&p.Racks[i].Nodes[j]) {
					return
				}
			}
		}
	}
}

// writeJSON writes the picture, or the named nodes of it.
func writeJSON(w io.Writer, p *fabric.Picture, nodes []string, _ time.Time) error {
	if len(nodes) > 0 {
		few := *p
		few.Racks = nil
		for _, r := range p.Racks {
			r.Nodes = slices.DeleteFunc(slices.Clone(r.Nodes), func(n fabric.NodeState) bool { return !slices.Contains(nodes, n.Name) })
			if len(r.Nodes) > 0 {
				few.Racks = append(few.Racks, r)
			}
		}
		p = &few
	}
	content, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	// JSON may contain these control characters, and a terminal would obey them.
	safe := strings.Map(func(r rune) rune {
		if r >= 0x7f && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, string(content))
	_, err = io.WriteString(w, safe+"\n")
	return err
}
