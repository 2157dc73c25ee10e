package kindcluster

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"gpufabric.io/tests/docker"
)

// Host has the facts of the machine that a cluster's configuration needs.
type Host struct {
	CgroupV1           bool // Kubernetes 1.36 refuses it by default
	LacksSysResource   bool // CAP_SYS_RESOURCE is missing: no process may lower its OOM score
	CannotPullKindnetd bool // the node image is our own, so kind's network plugin is not in it
}

// inspectHost finds out about the machine that Docker runs on.
func inspectHost(ctx context.Context) (Host, error) {
	cgroups, err := docker.Run(ctx, "info", "--format", "{{.CgroupVersion}}")
	if err != nil {
		return Host{}, err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return Host{}, err
	}
	lacks, err := lacksSysResource(string(status))
	return Host{CgroupV1: cgroups == "1", LacksSysResource: lacks}, err
}

// lacksSysResource reads the bounding set from /proc/PID/status; CAP_SYS_RESOURCE is its bit 24.
func lacksSysResource(status string) (bool, error) {
	for line := range strings.Lines(status) {
		if set, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			bits, err := strconv.ParseUint(strings.TrimSpace(set), 16, 64)
			if err != nil {
				return false, fmt.Errorf("CapBnd in /proc/self/status: %w", err)
			}
			return bits&(1<<24) == 0, nil
		}
	}
	return false, fmt.Errorf("no CapBnd in /proc/self/status")
}

// kindConfig is kind.x-k8s.io/v1alpha4, as far as it is used here.
type kindConfig struct {
	Kind                    string          `json:"kind"`
	APIVersion              string          `json:"apiVersion"`
	FeatureGates            map[string]bool `json:"featureGates,omitempty"`
	Networking              networking      `json:"networking"`
	ContainerdConfigPatches []string        `json:"containerdConfigPatches"`
	KubeadmConfigPatches    []string        `json:"kubeadmConfigPatches"`
	Nodes                   []node          `json:"nodes"`
}

type networking struct {
	DisableDefaultCNI bool   `json:"disableDefaultCNI"`
	PodSubnet         string `json:"podSubnet"`
}

type node struct {
	Role                 string   `json:"role"`
	KubeadmConfigPatches []string `json:"kubeadmConfigPatches,omitempty"`
}

const podSubnet = "10.244.0.0/16"

// etcdWithoutFsync lets etcd answer before the disk has written. The cluster is lost with its machine anyway. On a busy disk every
// write would otherwise take seconds, and the scheduler and the controllers would lose their leases.
const etcdWithoutFsync = "kind: ClusterConfiguration\netcd:\n  local:\n    extraArgs:\n    - name: unsafe-no-fsync\n      value: \"true\"\n"

// kindConfiguration renders the cluster's configuration for kind. CDI and NRI need no setting: containerd 2 has both on.
func kindConfiguration(o Options, host Host) (string, error) {
	config := kindConfig{
		Kind: "Cluster", APIVersion: "kind.x-k8s.io/v1alpha4",
		FeatureGates: o.FeatureGates,
		Networking:   networking{DisableDefaultCNI: host.CannotPullKindnetd, PodSubnet: podSubnet},
		ContainerdConfigPatches: []string{
			"[plugins.\"io.containerd.grpc.v1.cri\".registry]\n  config_path = \"/etc/containerd/certs.d\"\n",
		},
	}
	config.KubeadmConfigPatches = []string{etcdWithoutFsync}
	control := node{Role: "control-plane"}
	if o.Workers > 0 { // kind itself takes the taint off a lone node, and fails where there is none
		// Ordinary pods run on the control plane too: the launcher of an MPI job in the seed has no toleration.
		control.KubeadmConfigPatches = []string{"kind: InitConfiguration\nnodeRegistration:\n  taints: []\n"}
	}
	config.Nodes = append(config.Nodes, control)
	for range o.Workers {
		config.Nodes = append(config.Nodes, node{Role: "worker"})
	}
	var kubelet []string
	if host.CgroupV1 {
		kubelet = append(kubelet, "failCgroupV1: false")
	}
	if host.LacksSysResource {
		kubelet = append(kubelet, "oomScoreAdj: 0", "featureGates:\n  KubeletInUserNamespace: true")
		config.ContainerdConfigPatches = append(config.ContainerdConfigPatches,
			"[plugins.\"io.containerd.grpc.v1.cri\"]\n  restrict_oom_score_adj = true\n")
	}
	if len(kubelet) > 0 {
		sort.Strings(kubelet)
		config.KubeadmConfigPatches = append(config.KubeadmConfigPatches, "kind: KubeletConfiguration\n"+strings.Join(kubelet, "\n")+"\n")
	}
	text, err := yaml.Marshal(config)
	return string(text), err
}
