package diagnosis_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/doctor/snapshot"
)

// large is a healthy cluster in memory.
func large(nodes int) *snapshot.Snapshot {
	s := &snapshot.Snapshot{Server: snapshot.Server{Version: "v1.36.0", Groups: []string{"resource.k8s.io/v1"}, Taken: time.Now()}}
	for _, name := range []string{"computedomains.resource.nvidia.com", "rdmapools.gpufabric.io", "miglayouts.gpufabric.io",
		"vgpuprofiles.gpufabric.io"} {
		s.CRDs = append(s.CRDs, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, component := range []string{"gpu-plugin", "compute-domain-plugin", "rdma-plugin"} {
		s.DaemonSets = append(s.DaemonSets, *daemonSet(component, int32(nodes)))
	}
	for _, c := range classes() {
		s.Classes = append(s.Classes, *c.(*resourceapi.DeviceClass))
	}
	for i := range nodes {
		name := fmt.Sprintf("node-%04d", i)
		s.Nodes = append(s.Nodes, *node(name))
		for _, component := range []string{"gpu-plugin", "compute-domain-plugin", "rdma-plugin"} {
			s.Pods = append(s.Pods, *pluginPod(component, name))
		}
		for _, o := range gpuSlices(name, "whole", nil) {
			s.Slices = append(s.Slices, *o.(*resourceapi.ResourceSlice))
		}
		s.Slices = append(s.Slices, *channelSlice(name, ""), *nicSlice(name, nil))
	}
	return s
}

func TestDiagnosisFindsNothingOnAHealthyCluster(t *testing.T) {
	s := large(1008)
	begin := time.Now()
	r, err := diagnosis.Diagnose(s, install())
	if err != nil || r.First != nil {
		t.Fatalf("found %+v, %v", r.First, err)
	}
	t.Logf("%v for 1,008 nodes", time.Since(begin))
}

func TestTenThousandWaitingPodsAreOneFinding(t *testing.T) {
	s := large(18)
	for i := range 10_000 {
		p := pod(fmt.Sprintf("w-%05d", i), "", "c")
		p.UID = types.UID(p.Name)
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "queue"}}
		s.Pods = append(s.Pods, *p)
	}
	s.Claims = append(s.Claims, *claim("c", "gpu.nvidia.com", 1))
	begin := time.Now()
	r, err := diagnosis.Diagnose(s, install())
	if err != nil || r.First == nil || r.First.Code != "PodGated" || r.First.Count != 10_000 || len(r.First.Objects) > 5 {
		t.Fatalf("found %+v, %v", r.First, err)
	}
	t.Logf("%v for 10,000 pods", time.Since(begin))
}
