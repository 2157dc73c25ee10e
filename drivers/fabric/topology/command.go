// Package topology is the command that shows the fabric: racks, cliques, nodes, GPUs and ports, with holders, free parts and faults. It
// reads the API server with the user's rights, and writes nothing.
package topology

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
	kubeconfig, namespace, output, pod string
	nodes                              []string
}

// format writes a picture in one form.
type format func(w io.Writer, p *fabric.Picture, nodes []string, now time.Time) error

func formats() map[string]format {
	return map[string]format{"text": writeText, "json": writeJSON, "dot": writeDOT, "nccl": writeNCCL}
}

// Command is `gpufabric topology`.
func Command(h host.Host) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   role,
		Short: "Show racks, cliques, nodes, GPUs, ports and domains: who holds what, what is free, what is broken",
		Long: "Show racks, cliques, nodes, GPUs, ports and domains: who holds what, what is free, what is broken.\n\n" +
			"It lists " + strings.Join(reader.Resources(), ", ") + "\nwith the rights of the user, and lists the resources that these do not cover.",
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), h) },
	}
	flags := command.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty: KUBECONFIG, else the pod's service account")
	flags.StringVarP(&o.namespace, "namespace", "n", "", "show claims, pods and domains of this namespace alone")
	flags.StringVarP(&o.output, "output", "o", "text", "text, json, dot (for Graphviz), or nccl (a node's GPUs and NICs, for NCCL_TOPO_FILE)")
	flags.StringSliceVar(&o.nodes, "node", nil, "show this node in detail, by PCIe switch; may be given several times")
	flags.StringVar(&o.pod, "pod", "", "with --output=nccl: only what the claims of this pod have; NAME, or NAMESPACE/NAME")
	return command
}

func (o *options) run(ctx context.Context, h host.Host) error {
	write := formats()[o.output]
	if write == nil {
		return fmt.Errorf("--output %q: allowed are text, json, dot and nccl", o.output)
	}
	if err := o.scope(); err != nil {
		return err
	}
	config, err := Reach(h, o.kubeconfig)
	if err != nil {
		return err
	}
	source, err := reader.New(config, reader.Options{Namespace: o.namespace, Agent: "gpufabric-" + role})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the API server did not answer within %s", patience))
	defer cancel()
	facts, err := source.List(ctx)
	if err != nil {
		return err
	}
	picture := fabric.Draw(facts)
	if err := known(picture, o.nodes); err != nil {
		return err
	}
	if o.pod != "" {
		own, node, err := ofPod(picture, o.pod)
		if err != nil {
			return err
		}
		picture, o.nodes = own, []string{node}
	}
	return write(host.Visible(h.Out()), picture, o.nodes, time.Now())
}

// scope checks that a file for NCCL is about one node, and completes a pod's name.
func (o *options) scope() error {
	if o.output != "nccl" {
		if o.pod != "" {
			return fmt.Errorf("--pod %q: only with --output=nccl", o.pod)
		}
		return nil
	}
	if (o.pod == "") == (len(o.nodes) == 0) || len(o.nodes) > 1 {
		return errors.New("--output nccl: NCCL's file describes one machine; give one --node, or a --pod")
	}
	if o.pod != "" && !strings.Contains(o.pod, "/") {
		o.pod = cmp.Or(o.namespace, "default") + "/" + o.pod
	}
	return nil
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
		var all []string
		for n := range nodesOf(p) {
			all = append(all, n.Name)
		}
		if slices.Contains(all, name) {
			continue
		}
		return fmt.Errorf("--node %q: the fabric has no such node%s", name,
			cmp.Or(similar(name, all), fmt.Sprintf("; it has %d", p.Totals.Nodes)))
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
	// JSON may contain these control characters, and a terminal would execute them.
	safe := strings.Map(func(r rune) rune {
		if r >= 0x7f && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, string(content))
	_, err = io.WriteString(w, safe+"\n")
	return err
}
