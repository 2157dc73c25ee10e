package e2e

import (
	"os"
	"strings"
	"testing"
)

// testNodesSysfs checks /sys in a pod that requests no device. The devices there are the fake node's. The cgroup and the
// processors are those of the pod's real machine.
func testNodesSysfs(t *testing.T, e *environment) {
	const pod = "reads-sys"
	e.apply(t, `apiVersion: v1
kind: Pod
metadata:
  name: `+pod+`
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
          - matchExpressions: [{key: fakefabric.gpufabric.io/profile, operator: Exists}]
  containers:
    - name: reads
      image: ubuntu:24.04
      command: [sleep, "3600"]
      resources:
        limits: {memory: 64Mi}
`)
	e.ready(t, pod)
	processors, err := os.ReadFile("/sys/devices/system/cpu/online") // kind's nodes are containers of this machine
	if err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{
		"cat /sys/class/infiniband/mlx5_0/ports/1/state":                                               "4: ACTIVE",
		"cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes": "67108864",
		"touch /sys/class/net/new 2>/dev/null || echo refused":                                         "refused",
		"cat /sys/devices/system/cpu/online":                                                           strings.TrimSpace(string(processors)),
	} {
		if got := strings.TrimSpace(e.kubectl(t, "exec", pod, "--", "sh", "-c", command)); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	e.kubectl(t, "delete", "pod/"+pod, "--grace-period=1", inTime)
}
