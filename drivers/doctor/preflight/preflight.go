// Package preflight says what of gpufabric would not work on a cluster, before it is installed.
package preflight

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/doctor/snapshot"
)

// Result is what a check came to.
type Result string

// The results.
const (
	OK      Result = "ok"
	Warning Result = "warning"
	Fails   Result = "fails"
	// NotSeen: what the check needs cannot be read from outside, or not with these rights.
	NotSeen Result = "not seen"
)

// Check is a row of the table.
type Check struct {
	Name   string `json:"name"`
	Result Result `json:"result"`
	Detail string `json:"detail"`
}

// Values are the chart's values that checks depend on.
type Values struct {
	NodePlugins struct {
		NodeSelector map[string]string   `json:"nodeSelector"`
		Tolerations  []corev1.Toleration `json:"tolerations"`
	} `json:"nodePlugins"`
	GPUs    enabled `json:"gpus"`
	RDMA    enabled `json:"rdma"`
	VGPU    enabled `json:"vgpu"`
	Domains enabled `json:"computeDomains"`
	Take    bool    `json:"takeOver"`
}

type enabled struct {
	Enabled bool `json:"enabled"`
}

// Read reads values as YAML; fields that no check needs are passed over, which the chart's schema judges.
func Read(text []byte) (Values, error) {
	v := Values{}
	if err := yaml.Unmarshal(text, &v); err != nil {
		return v, fmt.Errorf("read the values: %w", err)
	}
	return v, nil
}

// needed is the chart's kubeVersion.
const needed = "1.36.0"

// Run makes all checks for an installation in a namespace.
func Run(s *snapshot.Snapshot, v Values, namespace string) []Check {
	nodes := selected(s, v)
	return []Check{server(s), resources(s), placement(s, v, nodes), kubelets(s, nodes), runtimes(s, nodes), systems(s, nodes), rivals(s, v),
		security(s, namespace), quota(s, namespace), hardware(s, nodes)}
}

func selected(s *snapshot.Snapshot, v Values) []*corev1.Node {
	var out []*corev1.Node
next:
	for i := range s.Nodes {
		for key, value := range v.NodePlugins.NodeSelector {
			if s.Nodes[i].Labels[key] != value {
				continue next
			}
		}
		out = append(out, &s.Nodes[i])
	}
	return out
}

func server(s *snapshot.Snapshot) Check {
	c := Check{"Kubernetes version", OK, s.Server.Version}
	switch v, err := version.ParseGeneric(s.Server.Version); {
	case err != nil:
		c.Result, c.Detail = NotSeen, "the API server's version cannot be read: "+s.Server.Version
	case v.LessThan(version.MustParseGeneric(needed)):
		c.Result, c.Detail = Fails, s.Server.Version+"; needed is "+needed
	}
	return c
}

func resources(s *snapshot.Snapshot) Check {
	if len(s.Server.Groups) == 0 {
		return Check{"resource.k8s.io/v1", NotSeen, "the API server's groups were not read"}
	}
	if !s.Server.Serves("resource.k8s.io/v1") {
		return Check{"resource.k8s.io/v1", Fails, "not served: look at --runtime-config and the gate DynamicResourceAllocation"}
	}
	return Check{"resource.k8s.io/v1", OK, "served"}
}

func placement(s *snapshot.Snapshot, v Values, nodes []*corev1.Node) Check {
	c := Check{"nodes", OK, fmt.Sprintf("%d of %d nodes by nodePlugins.nodeSelector", len(nodes), len(s.Nodes))}
	if !s.Reads("nodes") {
		return Check{"nodes", NotSeen, "nodes cannot be listed"}
	}
	if len(nodes) == 0 {
		c.Result = Fails
	}
	var kept []string
	for _, n := range nodes {
		for _, t := range n.Spec.Taints {
			if t.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(t.Key, "node.kubernetes.io/") &&
				!slices.ContainsFunc(v.NodePlugins.Tolerations, func(o corev1.Toleration) bool {
					return (o.Key == "" || o.Key == t.Key) && (o.Operator == corev1.TolerationOpExists || o.Value == t.Value) &&
						(o.Effect == "" || o.Effect == t.Effect)
				}) {
				kept = append(kept, n.Name+" ("+t.ToString()+")")
				break
			}
		}
	}
	if len(kept) > 0 && c.Result == OK {
		c.Result = Warning
		c.Detail += "; taints that nodePlugins.tolerations lacks keep the plugins from " + some(kept)
	}
	return c
}

// each finds the nodes of which bad has something to say.
func each(s *snapshot.Snapshot, name, good string, nodes []*corev1.Node, result Result, bad func(*corev1.Node) string) Check {
	if !s.Reads("nodes") {
		return Check{name, NotSeen, "nodes cannot be listed"}
	}
	var found []string
	for _, n := range nodes {
		if why := bad(n); why != "" {
			found = append(found, n.Name+" ("+why+")")
		}
	}
	if len(found) > 0 {
		return Check{name, result, some(found)}
	}
	return Check{name, OK, good}
}

func kubelets(s *snapshot.Snapshot, nodes []*corev1.Node) Check {
	return each(s, "kubelets", needed+" or later", nodes, Fails, func(n *corev1.Node) string {
		v, err := version.ParseGeneric(n.Status.NodeInfo.KubeletVersion)
		if err == nil && v.LessThan(version.MustParseGeneric(needed)) {
			return n.Status.NodeInfo.KubeletVersion
		}
		return ""
	})
}

// runtimes judges by the version alone: a runtime's configuration is not seen from outside.
func runtimes(s *snapshot.Snapshot, nodes []*corev1.Node) Check {
	return each(s, "container runtimes",
		"CDI and NRI are on by default in these versions; whether they were switched off is not seen from outside", nodes,
		Warning, func(n *corev1.Node) string {
			name, text, _ := strings.Cut(n.Status.NodeInfo.ContainerRuntimeVersion, "://")
			v, err := version.ParseGeneric(text)
			switch {
			case err != nil:
				return "unknown: " + n.Status.NodeInfo.ContainerRuntimeVersion
			case name == "containerd" && v.LessThan(version.MustParseGeneric("1.7.0")):
				return "containerd " + text + " has no CDI"
			case name == "containerd" && v.LessThan(version.MustParseGeneric("2.0.0")):
				return "containerd " + text + " has CDI and NRI off by default"
			}
			return ""
		})
}

func systems(s *snapshot.Snapshot, nodes []*corev1.Node) Check {
	return each(s, "operating systems", "Linux on amd64 or arm64", nodes, Fails, func(n *corev1.Node) string {
		info := n.Status.NodeInfo
		if info.OperatingSystem != "linux" || !slices.Contains([]string{"amd64", "arm64"}, info.Architecture) {
			return info.OperatingSystem + "/" + info.Architecture
		}
		return ""
	})
}

func rivals(s *snapshot.Snapshot, v Values) Check {
	if !s.Reads("daemonsets.apps") {
		return Check{"other drivers", NotSeen, "DaemonSets cannot be listed in all namespaces"}
	}
	drivers, plugins := diagnosis.Rivals()
	var found []string
	for i := range s.DaemonSets {
		d := &s.DaemonSets[i]
		if d.Labels["app.kubernetes.io/part-of"] != "gpufabric" && slices.ContainsFunc(slices.Concat(drivers, plugins),
			func(r string) bool { return is(d, r) }) {
			found = append(found, d.Namespace+"/"+d.Name)
		}
	}
	switch {
	case len(found) == 0:
		return Check{"other drivers", OK, "no other driver or device plugin of these devices"}
	case v.Take:
		return Check{"other drivers", Warning, some(found) + ", in spite of which takeOver installs"}
	}
	return Check{"other drivers", Fails, some(found) + " would hand out the same devices: uninstall it first"}
}

func is(d *appsv1.DaemonSet, rival string) bool {
	return strings.Contains(d.Name, rival) || slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
		return strings.Contains(c.Image, rival)
	})
}

func security(s *snapshot.Snapshot, namespace string) Check {
	for i := range s.Namespaces {
		if s.Namespaces[i].Name != namespace {
			continue
		}
		level := s.Namespaces[i].Labels["pod-security.kubernetes.io/enforce"]
		if level == "baseline" || level == "restricted" {
			return Check{"PodSecurity", Fails,
				fmt.Sprintf("namespace %s enforces %s, and node plugins mount directories of the node: label it privileged",
					namespace, level)}
		}
		return Check{"PodSecurity", OK, "namespace " + namespace + " has no level that refuses node plugins"}
	}
	if !s.Reads("namespaces") {
		return Check{"PodSecurity", NotSeen, "namespaces cannot be listed"}
	}
	return Check{"PodSecurity", Warning, "namespace " + namespace +
		" is not there yet: where the cluster enforces a level by default, label it pod-security.kubernetes.io/enforce=privileged"}
}

func quota(s *snapshot.Snapshot, namespace string) Check {
	for i := range s.Quotas {
		q := &s.Quotas[i]
		pods, has := q.Spec.Hard[corev1.ResourcePods]
		if q.Namespace == namespace && has && int(pods.Value()) < len(s.Nodes) {
			return Check{"quota", Fails, fmt.Sprintf("ResourceQuota %s allows %d pods, fewer than there are nodes", q.Name, pods.Value())}
		}
	}
	if !s.Reads("resourcequotas") {
		return Check{"quota", NotSeen, "ResourceQuotas cannot be listed"}
	}
	return Check{"quota", OK, "no ResourceQuota on the number of pods is too small"}
}

// hardware counts what node-feature-discovery labelled.
func hardware(s *snapshot.Snapshot, nodes []*corev1.Node) Check {
	gpus, nics, labelled := 0, 0, false
	for _, n := range nodes {
		gpu, nic := false, false
		for key := range n.Labels {
			labelled = labelled || strings.HasPrefix(key, "feature.node.kubernetes.io/")
			gpu = gpu || strings.HasPrefix(key, "feature.node.kubernetes.io/pci-") && strings.Contains(key, "10de")
			nic = nic || strings.HasPrefix(key, "feature.node.kubernetes.io/pci-") && strings.Contains(key, "15b3")
		}
		if gpu {
			gpus++
		}
		if nic {
			nics++
		}
	}
	if !labelled || !s.Reads("nodes") {
		return Check{"hardware", NotSeen, "no node carries labels of node-feature-discovery"}
	}
	return Check{"hardware", OK, fmt.Sprintf("%d nodes with NVIDIA's PCI functions, %d with Mellanox's", gpus, nics)}
}

func some(all []string) string {
	const named = 5
	text := strings.Join(all[:min(named, len(all))], ", ")
	if more := len(all) - named; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
