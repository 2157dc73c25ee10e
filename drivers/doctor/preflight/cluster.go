package preflight

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"gpufabric.io/drivers/doctor/rivals"
	"gpufabric.io/drivers/doctor/snapshot"
)

// needed is the chart's kubeVersion. mended is the first version whose scheduler keeps shares and other forms of one GPU apart.
const needed, mended = "1.34.0", "1.36.2"

func server(s *snapshot.Snapshot) Check {
	c := Check{Name: "Kubernetes version"}
	v, err := version.ParseGeneric(s.Server.Version)
	if err != nil {
		return c.notSeen("the API server's version cannot be read: " + s.Server.Version)
	}
	minor, text := uint64(v.Minor()), s.Server.Version
	if emulated, err := strconv.ParseUint(s.Server.Emulates, 10, 32); err == nil {
		minor, text = emulated, text+" emulating 1."+s.Server.Emulates
	}
	const reduced = "GPUs are offered whole and faulty ones withheld where its feature gates DRADeviceTaints, DRAPartitionableDevices and " +
		"DRAConsumableCapacity are off, as they are by default before 1.36; the node's condition GPUForms names them"
	switch {
	case v.LessThan(version.MustParseGeneric(needed)) || v.Major() == 1 && minor < 34:
		return c.is(Fails, "KubernetesTooOld", text+"; needed is "+needed)
	case v.Major() == 1 && minor < 36:
		return c.is(Warning, "NeedsKubernetesFeature", text+": "+reduced)
	case v.LessThan(version.MustParseGeneric(mended)):
		return c.is(Warning, "NeedsKubernetesFeature", text+" gives shares and other forms of one GPU out at once (kubernetes#139034): "+
			"no shares are offered beside other forms before "+mended)
	}
	return c.ok(text)
}

func resources(s *snapshot.Snapshot) Check {
	c := Check{Name: "resource.k8s.io/v1"}
	if len(s.Server.Groups) == 0 {
		return c.notSeen("the API server's groups were not read")
	}
	if !s.Server.Serves(c.Name) {
		return c.is(Fails, "DynamicResourcesOff", "not served: look at --runtime-config and the gate DynamicResourceAllocation")
	}
	return c.ok("served")
}

func placement(s *snapshot.Snapshot, v Values, nodes []*corev1.Node) Check {
	c := Check{Name: "nodes"}
	count := fmt.Sprintf("%d of %d nodes by nodePlugins.nodeSelector", len(nodes), len(s.Nodes))
	switch {
	case !s.Reads("nodes"):
		return c.notSeen("nodes cannot be listed")
	case len(s.Nodes) == 0: // an autoscaler may add some for the first pod
		return c.is(Warning, "PluginNotPlaced", count+": the cluster has no node")
	case len(nodes) == 0:
		return c.is(Fails, "PluginNotPlaced", count)
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
	if len(kept) > 0 {
		return c.is(Warning, "PluginNotPlaced", count+"; taints that nodePlugins.tolerations lacks keep the plugins from "+some(kept))
	}
	return c.ok(count)
}

// each returns the nodes for which bad returns a text.
func each(s *snapshot.Snapshot, name, good string, nodes []*corev1.Node, result Result, code string, bad func(*corev1.Node) string) Check {
	c := Check{Name: name}
	if !s.Reads("nodes") {
		return c.notSeen("nodes cannot be listed")
	}
	var found []string
	for _, n := range nodes {
		if why := bad(n); why != "" {
			found = append(found, n.Name+" ("+why+")")
		}
	}
	if len(found) > 0 {
		return c.is(result, code, some(found))
	}
	return c.ok(good)
}

func kubelets(s *snapshot.Snapshot, nodes []*corev1.Node) Check {
	return each(s, "kubelets", needed+" or later", nodes, Fails, "KubeletTooOld", func(n *corev1.Node) string {
		v, err := version.ParseGeneric(n.Status.NodeInfo.KubeletVersion)
		if err == nil && v.LessThan(version.MustParseGeneric(needed)) {
			return n.Status.NodeInfo.KubeletVersion
		}
		return ""
	})
}

// runtimes only checks the version; the Job reads the configuration.
func runtimes(s *snapshot.Snapshot, nodes []*corev1.Node, results map[string]podResult) Check {
	c := each(s, "container runtimes", "containerd 2 and CRI-O have CDI on by default; of containerd 1.7 the Jobs have read the configuration",
		nodes, Fails, "ContainerRuntimeReadsNoCDI", func(n *corev1.Node) string {
			name, text, _ := strings.Cut(n.Status.NodeInfo.ContainerRuntimeVersion, "://")
			v, err := version.ParseGeneric(text)
			switch {
			case name == "": // the kubelet has not reported it yet
				return ""
			case err != nil:
				return "unknown: " + n.Status.NodeInfo.ContainerRuntimeVersion
			case name == "containerd" && v.LessThan(version.MustParseGeneric("1.7.0")):
				return "containerd " + text + " has no CDI"
			}
			return ""
		})
	if c.Result != OK {
		return c
	}
	var unseen []string
	for _, n := range nodes {
		runtime := n.Status.NodeInfo.ContainerRuntimeVersion
		name, _, _ := strings.Cut(runtime, "://")
		old := strings.HasPrefix(runtime, "containerd://1.") && results[n.Name].facts == nil
		if old || !slices.Contains([]string{"", "containerd", "cri-o"}, name) {
			unseen = append(unseen, n.Name+" ("+runtime+")")
		}
	}
	if len(unseen) > 0 {
		return c.notSeen("containerd 1.7 has CDI and NRI off by default, and the Jobs of --print-jobs read its configuration; of runtimes " +
			"other than containerd and CRI-O nothing is read: " + some(unseen))
	}
	return c
}

func systems(s *snapshot.Snapshot, nodes []*corev1.Node) Check {
	return each(s, "operating systems", "Linux on amd64 or arm64", nodes, Fails, "PluginNotPlaced", func(n *corev1.Node) string {
		info := n.Status.NodeInfo
		if info.OperatingSystem == "" && info.Architecture == "" { // the kubelet has not reported it yet
			return ""
		}
		if info.OperatingSystem != "linux" || !slices.Contains([]string{"amd64", "arm64"}, info.Architecture) {
			return info.OperatingSystem + "/" + info.Architecture
		}
		return ""
	})
}

func others(s *snapshot.Snapshot, v Values) Check {
	c := Check{Name: "other drivers"}
	var unread []string
	for _, kind := range []string{"daemonsets.apps", "deployments.apps", "resourceslices.resource.k8s.io", "nodes"} {
		if !s.Reads(kind) {
			unread = append(unread, kind)
		}
	}
	enabled := map[string]bool{rivals.Domains: true, rivals.GPUs: v.GPUs.Enabled || v.VGPU.Enabled, rivals.RDMA: v.RDMA.Enabled}
	var found, possible []string
	code := "OtherDevicePlugin"
	in := rivals.Cluster{DaemonSets: s.DaemonSets, Nodes: s.Nodes, Slices: s.Slices,
		Selector: v.NodePlugins.NodeSelector, OwnDevicePlugin: len(v.GPUs.DevicePlugin) > 0}
	if v.Domains.Enabled {
		in.Deployments = s.Deployments
	}
	for _, r := range rivals.Find(in) {
		switch {
		case !enabled[r.Component]:
		case r.Category == rivals.SharesRDMA:
			possible = append(possible, r.Object+" "+r.Says)
		default:
			if r.Category == rivals.Driver {
				code = "OtherDriver"
			}
			found = append(found, r.Object+" "+r.Says)
		}
	}
	switch {
	case len(found) > 0 && v.Take:
		return c.is(Warning, code, some(found)+", in spite of which takeOver installs")
	case len(found) > 0:
		return c.is(Fails, code, some(found)+": two would hand out the same devices; uninstall it first, or keep it off the nodes of "+
			"nodePlugins.nodeSelector")
	case len(possible) > 0:
		return c.is(Warning, "OtherDevicePlugin", some(possible))
	case len(unread) > 0:
		return c.notSeen("no other driver or device plugin was seen, and these cannot be listed: " + some(unread))
	}
	return c.ok("no other driver or device plugin of these devices")
}

// definitions checks the owners of the chart's CustomResourceDefinitions.
func definitions(s *snapshot.Snapshot, v Values, namespace string) Check {
	c := Check{Name: "CRDs"}
	if !s.Reads("customresourcedefinitions.apiextensions.k8s.io") {
		return c.notSeen("CustomResourceDefinitions cannot be listed")
	}
	var found []string
	for _, r := range rivals.Find(rivals.Cluster{CRDs: s.CRDs, Namespace: namespace}) {
		found = append(found, r.Object+" "+r.Says)
	}
	switch {
	case len(found) == 0:
		return c.ok("none of another owner")
	case v.Take || v.CRDs.TakeOver || !v.CRDs.Install:
		return c.is(Warning, "CRDNotOurs", some(found))
	}
	return c.is(Fails, "CRDNotOurs", some(found))
}

func security(s *snapshot.Snapshot, v Values, namespace string) Check {
	c := Check{Name: "PodSecurity"}
	unlabelled := v.preset.PodSecurity
	refuses := func(level string) Check {
		return c.is(Fails, "PodSecurityRefuses", fmt.Sprintf("platform %s enforces %s in a namespace without a label of its own, and node "+
			"plugins mount directories of the node: label namespace %s privileged", v.Platform, level, namespace))
	}
	for i := range s.Namespaces {
		if s.Namespaces[i].Name != namespace {
			continue
		}
		if level := s.Namespaces[i].Labels["pod-security.kubernetes.io/enforce"]; level == "baseline" || level == "restricted" {
			return c.is(Fails, "PodSecurityRefuses",
				fmt.Sprintf("namespace %s enforces %s, and node plugins mount directories of the node: label it privileged", namespace, level))
		} else if level == "" && unlabelled != "" {
			return refuses(unlabelled)
		}
		return c.ok("namespace " + namespace + " has no level that refuses node plugins")
	}
	if !s.Reads("namespaces") {
		return c.notSeen("namespaces cannot be listed")
	}
	if unlabelled != "" {
		return refuses(unlabelled)
	}
	return c.notSeen("namespace " + namespace +
		" is not there yet: where the cluster enforces a level by default, label it pod-security.kubernetes.io/enforce=privileged")
}

func quota(s *snapshot.Snapshot, namespace string) Check {
	c := Check{Name: "quota"}
	for i := range s.Quotas {
		q := &s.Quotas[i]
		pods, has := q.Spec.Hard[corev1.ResourcePods]
		if q.Namespace == namespace && has && int(pods.Value()) < len(s.Nodes) {
			return c.is(Fails, "QuotaExceeded",
				fmt.Sprintf("ResourceQuota %s allows %d pods, fewer than there are nodes", q.Name, pods.Value()))
		}
	}
	if !s.Reads("resourcequotas") {
		return c.notSeen("ResourceQuotas cannot be listed")
	}
	return c.ok("no ResourceQuota on the number of pods is too small")
}

// hardware counts the nodes that node-feature-discovery labelled.
func hardware(s *snapshot.Snapshot, nodes []*corev1.Node) Check {
	c := Check{Name: "hardware"}
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
		return c.notSeen("no node carries labels of node-feature-discovery")
	}
	return c.ok(fmt.Sprintf("%d nodes with NVIDIA's PCI functions, %d with Mellanox's", gpus, nics))
}
