//go:build causes

package causes

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/imex"

	"gpufabric.io/tests/simcluster/domain"
)

// members makes a domain d of size nodes, with pods on nodes of these numbers.
func (g *ground) members(size int, on ...int) {
	g.t.Helper()
	g.Domain("d", size)
	for _, i := range on {
		g.Pod(fmt.Sprintf("member-%d", i), "d-channel", nodeName(i))
	}
}

// formed is members, and waits until the domain is Ready.
func (g *ground) formed(on ...int) {
	g.t.Helper()
	g.members(len(on), on...)
	g.AwaitDomain("d", func(d domain.Domain) bool { return d.Status == domain.Ready && d.Ready == len(on) })
}

// disturb changes what the IMEX daemon of node number i does.
func (g *ground) disturb(i int, faults imex.Faults) {
	g.t.Helper()
	path := filepath.Join(hardware(i), "state", imex.FaultsName)
	if err := imex.WriteFaults(path, faults); err != nil {
		g.t.Fatal(err)
	}
	g.later(func(context.Context) error { return imex.WriteFaults(path, imex.Faults{}) })
}

// clique gives GPUs of node number i another clique, or another state of it.
func (g *ground) clique(i int, args fault.Arguments) {
	g.t.Helper()
	g.remade(i)
	g.fault(i, "clique-change", args, "")
	g.evict("compute-domain-plugin", i) // it reads the fabric when it starts
	g.until(nodeName(i)+"'s channel has a taint", func(ctx context.Context) bool {
		for _, s := range g.slicesOf(ctx, "compute-domain.nvidia.com", i) {
			if slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return len(d.Taints) > 0 }) {
				return true
			}
		}
		return false
	})
}

func domainCauses() []cause {
	const part = "compute domain"
	d := []string{"domain", "d"}
	return []cause{
		{part, "no pod of the domain has come", d, "WaitingForNodes", nil, func(g *ground) { g.members(2) }},
		{part, "fewer pods than nodes have come", d, "WaitingForNodes", nil, func(g *ground) {
			g.members(3, 0, 1)
			g.AwaitDomain("d", func(d domain.Domain) bool { return d.Ready == 2 })
		}},
		{part, "the domain asks for more nodes than the clique has", d, "FewerNodesInClique", nil, func(g *ground) { g.members(nodes + 1) }},
		{part, "a daemon answers nothing", d, "WaitingForDaemons", []string{"DaemonNotReady"}, func(g *ground) {
			g.disturb(1, imex.Faults{Silent: "*"})
			g.members(2, 0, 1)
		}},
		{part, "an IMEX session ended under the domain's pods", d, "IMEXSessionEnded", nil, func(g *ground) {
			g.formed(0, 1)
			g.disturb(1, imex.Faults{Failures: 1})
			g.AwaitEvent("d", "IMEXSessionEnded")
			g.AwaitDomain("d", func(d domain.Domain) bool { return d.Status == domain.Ready && d.Ready == 2 })
		}},
		{part, "a node's daemon hangs in a domain that needs no number of nodes", d, "NodesInterrupted", nil, func(g *ground) {
			g.members(0, 0, 1)
			g.AwaitDomain("d", func(d domain.Domain) bool { return d.Ready == 2 })
			g.disturb(1, imex.Faults{Silent: "*"})
		}},
		{part, "a node of a Ready domain is off", d, "NodeNotReady", nil, func(g *ground) {
			g.formed(0, 1)
			g.silence(1)
		}},
		{part, "the domain's template name is taken", d, "TemplateNameTaken", nil, func(g *ground) {
			g.Template("d-channel", "gpu.nvidia.com", "")
			g.members(2)
		}},
		{part, "the controller has not looked at the domain", d, "ControllerNotReady", nil, func(g *ground) {
			g.scale("controller", 0)
			g.members(2)
		}},
		{part, "the GPUs of a node are in two cliques", d, "CliquesDisagree", nil, func(g *ground) {
			g.clique(1, fault.Arguments{"gpu": "0", "clique": "7"})
			g.members(2, 0, 1)
		}},
		{part, "a node's GPUs have not joined their fabric", d, "Joining", nil, func(g *ground) {
			g.clique(1, fault.Arguments{"state": "in-progress"})
			g.members(2, 0, 1)
		}},
		{part, "a pod's channel claim is of another namespace", waits(), "NotInDomainNamespace", nil, func(g *ground) {
			g.members(1)
			uid := g.AwaitDomain("d", func(d domain.Domain) bool { return d.UID != "" }).UID
			other := shared.Namespace(g.t)
			thief := &ground{Namespace: other, t: g.t}
			thief.channel("stolen", uid)
			thief.Pod("p", "stolen", "")
			g.later(g.Namespace.Empty) // the domain is gone before the cluster's health is asked for
			g.Namespace = other
		}},
		{part, "a domain's pods wait for a node that is off", d, "NodeNotReady", nil, func(g *ground) {
			g.silence(3)
			g.AwaitReady(nodeName(3), false)
			g.members(2, 0, 3)
		}},
		{part, "the network drops what IMEX daemons send each other", d, "DaemonsDisconnected", nil, func(g *ground) {
			g.formed(0, 1)
			g.disturb(1, imex.Faults{Partitioned: []string{"*"}})
		}},
		{part, "a node's GPUs are in two cliques, and a pod is missing", d, "CliquesDisagree", []string{"WaitingForNodes"}, func(g *ground) {
			g.clique(1, fault.Arguments{"gpu": "0", "clique": "7"})
			g.members(3, 0, 1)
		}},
	}
}

// channel makes a template for a channel of a domain.
func (g *ground) channel(name, uid string) {
	g.t.Helper()
	g.Apply(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: %s}
spec:
  spec:
    devices:
      requests: [{name: channel, exactly: {deviceClassName: compute-domain-default-channel.nvidia.com}}]
      config:
      - requests: [channel]
        opaque:
          driver: compute-domain.nvidia.com
          parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomainChannelConfig, domainID: %q}
`, name, uid)
}
