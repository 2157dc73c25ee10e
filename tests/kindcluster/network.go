package kindcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"gpufabric.io/tests/docker"
)

// podNetwork connects the pods of all nodes where kind's own network plugin is not available: on each node a veth pair for each pod
// (ptp) with addresses from the node's podCIDR (host-local), and a route to every other node's podCIDR through that node.
type podNetwork struct{ *bringUp }

func (s podNetwork) Name() string {
	if s.cluster.Published {
		return "Pod network (kind's own)"
	}
	return "Pod network (ptp and routes)"
}

func (s podNetwork) Execute(ctx context.Context) error {
	if s.cluster.Published {
		return nil
	}
	// The controller manager gives each node its podCIDR soon after it joined.
	if _, err := s.cluster.Kubectl(ctx, nil, "wait", "nodes", "--all", "--for=jsonpath={.spec.podCIDR}",
		"--timeout="+readyPatience); err != nil {
		return err
	}
	listed, err := s.cluster.Kubectl(ctx, nil, "get", "nodes", "--output", "json")
	if err != nil {
		return err
	}
	members, err := parseNodes([]byte(listed))
	if err != nil {
		return err
	}
	for _, m := range members {
		config, err := m.conflist()
		if err != nil {
			return err
		}
		if _, err := docker.Script(ctx, m.name, m.routes(members)); err != nil {
			return err
		}
		if err := writeFile(ctx, m.name, "/etc/cni/net.d/10-gpufabric.conflist", config); err != nil {
			return err
		}
	}
	return nil
}

// member is a node as the pod network sees it.
type member struct {
	name    string
	pods    netip.Prefix // its pods' addresses
	address netip.Addr   // its own
}

// parseNodes reads a NodeList as the API server writes it.
func parseNodes(list []byte) ([]member, error) {
	var nodes struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ PodCIDR string }
			Status   struct {
				Addresses []struct{ Type, Address string }
			}
		}
	}
	if err := json.Unmarshal(list, &nodes); err != nil {
		return nil, err
	}
	var members []member
	for _, node := range nodes.Items {
		m := member{name: node.Metadata.Name}
		var err error
		if m.pods, err = netip.ParsePrefix(node.Spec.PodCIDR); err != nil {
			return nil, fmt.Errorf("podCIDR of node %s: %w", m.name, err)
		}
		for _, address := range node.Status.Addresses {
			if address.Type != "InternalIP" {
				continue
			}
			if m.address, err = netip.ParseAddr(address.Address); err != nil {
				return nil, fmt.Errorf("InternalIP of node %s: %w", m.name, err)
			}
			break
		}
		if !m.address.IsValid() {
			return nil, fmt.Errorf("node %s has no InternalIP", m.name)
		}
		members = append(members, m)
	}
	return members, nil
}

// conflist is the node's CNI configuration.
func (m member) conflist() (string, error) {
	type object = map[string]any
	config, err := json.MarshalIndent(object{
		"cniVersion": "1.0.0",
		"name":       "gpufabric",
		"plugins": []object{
			{"type": "ptp", "ipMasq": false, "ipam": object{
				"type":   "host-local",
				"ranges": [][]object{{{"subnet": m.pods.String()}}},
				"routes": []object{{"dst": "0.0.0.0/0"}},
			}},
			{"type": "portmap", "capabilities": object{"portMappings": true}},
		},
	}, "", "  ")
	return string(config), err
}

// routes is the script that adds routes to the other nodes' pods, and lets the node's own pods reach the outside by its address
// (masquerading).
func (m member) routes(members []member) string {
	var script strings.Builder
	for _, other := range members {
		if other.name != m.name {
			fmt.Fprintf(&script, "ip route replace %s via %s\n", other.pods, other.address)
		}
	}
	rule := fmt.Sprintf("POSTROUTING --source %s ! --destination %s --jump MASQUERADE", m.pods, podSubnet)
	fmt.Fprintf(&script, "iptables --table nat --check %s 2>/dev/null || iptables --table nat --append %s\n", rule, rule)
	return script.String()
}
