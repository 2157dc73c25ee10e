package preflight

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/drivers/doctor/snapshot"
)

// Facts are a pod's findings about its node's machine. The pod writes them as JSON to its termination message, which may have
// 4,096 bytes, so that the pod does not need a right at the API server.
type Facts struct {
	// GPUs counts NVIDIA's GPUs on the PCI bus, Nodes the device nodes such as /dev/nvidia0.
	GPUs  int `json:"gpus"`
	Nodes int `json:"nodes"`
	// Driver is the version of NVIDIA's kernel modules; empty: none is loaded.
	Driver string `json:"driver,omitempty"`
	// Trouble is the code of a finding about the driver, Says its message; empty: none.
	Trouble string `json:"trouble,omitempty"`
	Says    string `json:"says,omitempty"`
	// Channels is how many IMEX channels the driver made.
	Channels int `json:"channels"`
	// RDMA counts RDMA devices, Mellanox the Mellanox network functions on the PCI bus.
	RDMA     int `json:"rdma"`
	Mellanox int `json:"mellanox"`
	// Runtime is the container runtime: "containerd 2.1.0". CDI and NRI are its state by configuration and the version's defaults: "on",
	// "off", or empty, where no configuration was seen. CDIWhy is why CDI is off. SpecDirs are where it looks for CDI specs.
	Runtime  string   `json:"runtime,omitempty"`
	CDI      string   `json:"cdi,omitempty"`
	NRI      string   `json:"nri,omitempty"`
	CDIWhy   string   `json:"cdiWhy,omitempty"`
	SpecDirs []string `json:"specDirs,omitempty"`
	// Unread names the parts that could not be read, one sentence each.
	Unread []string `json:"unread,omitempty"`
}

const (
	// maxMessage is the kubelet's limit on a termination message, in bytes.
	maxMessage = 4096
	// maxWords bounds the texts in Facts, in bytes, so that the whole stays below maxMessage even where JSON escapes every one of
	// them by six.
	maxWords = 400
)

// Encode returns the text that a pod writes.
func (f Facts) Encode() []byte {
	f.Says = f.Says[:min(len(f.Says), maxWords)]
	f.Says = strings.ToValidUTF8(f.Says, "")
	var unread []string
	left := maxWords / 2
	for _, u := range f.Unread {
		if left -= len(u); left < 0 {
			break
		}
		unread = append(unread, u)
	}
	f.Unread = unread
	f.CDIWhy = strings.ToValidUTF8(f.CDIWhy[:min(len(f.CDIWhy), maxWords/4)], "")
	f.SpecDirs = slices.DeleteFunc(slices.Clone(f.SpecDirs[:min(len(f.SpecDirs), 4)]), func(d string) bool { return len(d) > maxWords/16 })
	text, err := json.Marshal(f)
	if err != nil || len(text) > maxMessage { // numbers and bounded texts
		return []byte("{}")
	}
	return text
}

// podResult is the result of the Job's pod on a node.
type podResult struct {
	facts *Facts
	// why there are none.
	why string
}

// readPodResults reads the messages of the Job's pods in a namespace, by node. The newest pod on a node counts.
func readPodResults(s *snapshot.Snapshot, namespace string) map[string]podResult {
	out := map[string]podResult{}
	at := map[string]*corev1.Pod{}
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.Namespace != namespace || p.Labels["app.kubernetes.io/name"] != snapshot.PreflightJobs || p.Spec.NodeName == "" {
			continue
		}
		if before := at[p.Spec.NodeName]; before != nil && p.CreationTimestamp.Before(&before.CreationTimestamp) {
			continue
		}
		at[p.Spec.NodeName] = p
		out[p.Spec.NodeName] = podResultOf(p)
	}
	return out
}

func podResultOf(p *corev1.Pod) podResult {
	for _, status := range p.Status.ContainerStatuses {
		if w := status.State.Waiting; w != nil && w.Reason != "" {
			return podResult{why: "its pod waits: " + w.Reason}
		}
		ended := status.State.Terminated
		if ended == nil {
			continue
		}
		if ended.ExitCode != 0 {
			return podResult{why: fmt.Sprintf("its pod ended with exit code %d: see its log", ended.ExitCode)}
		}
		var facts Facts
		if err := json.Unmarshal([]byte(ended.Message), &facts); err != nil {
			return podResult{why: "what its pod wrote cannot be read: " + err.Error()}
		}
		return podResult{facts: &facts}
	}
	return podResult{why: "its pod is " + string(p.Status.Phase)}
}
