package annotation

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const a, b = "GPU-aaaaaaaa-4e5f-6071-8293-a4b5c6d7e8f9", "GPU-bbbbbbbb-4e5f-6071-8293-a4b5c6d7e8f9"

var volcano = Resources{"volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores",
	"volcano.sh/vgpu-memory-percentage"}

func container(name string, limits map[string]string) corev1.Container {
	list := corev1.ResourceList{}
	for resourceName, value := range limits {
		list[corev1.ResourceName(resourceName)] = resource.MustParse(value)
	}
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: list}}
}

func gpus(name, number string) corev1.Container {
	return container(name, map[string]string{"volcano.sh/vgpu-number": number, "volcano.sh/vgpu-cores": "4"})
}

func pod(value string, inits []corev1.Container, containers ...corev1.Container) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train", UID: "uid-train"}}
	p.Spec.InitContainers, p.Spec.Containers = inits, containers
	if value != "" {
		p.Annotations = map[string]string{PodDevices: value}
	}
	return p
}

// debugged is the pod after kubectl debug.
func debugged(p *corev1.Pod) *corev1.Pod {
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger"}}}
	return p
}

// Volcano's cases are as its scheduler writes them (master of August 2026 and 1.15.0): pkg/scheduler/api/devices/nvidia/vgpu/utils.go,
// resourcereqs (which containers are listed, one GPU for memory alone) and encodePodDevices (no separator after the last
// container).
func TestAssignmentParsesContainerShares(t *testing.T) {
	first, second := a+",NVIDIA,1,2:;", b+",NVIDIA,3,4:;"
	shareA, shareB := []Share{{UUID: a, Memory: 1, Cores: 2}}, []Share{{UUID: b, Memory: 3, Cores: 4}}
	ofMemory := func(name, memory string) corev1.Container {
		return container(name, map[string]string{"volcano.sh/vgpu-memory": memory, "volcano.sh/vgpu-cores": "4"})
	}
	sidecar, init := container("log", nil), []corev1.Container{container("setup", nil)}
	for name, test := range map[string]struct {
		pod       *corev1.Pod
		container string
		want      []Share
		err       string
	}{
		"the only container":                {pod(first, nil, gpus("main", "1")), "main", shareA, ""},
		"the second of two":                 {pod(first+second, nil, gpus("main", "1"), gpus("side", "1")), "side", shareB, ""},
		"one after a container without":     {pod(";"+second, nil, sidecar, gpus("main", "1")), "main", shareB, ""},
		"a container without a request":     {pod(";"+second, nil, sidecar, gpus("main", "1")), "log", nil, ""},
		"an ordinary one after an init one": {pod(first+second, []corev1.Container{gpus("init", "1")}, gpus("main", "1")), "main", shareB, ""},
		"an init container":                 {pod(first+second, []corev1.Container{gpus("init", "1")}, gpus("main", "1")), "init", shareA, ""},

		"Volcano: one of two containers asks, and comes second": {pod(b+",NVIDIA,3,4:", nil, sidecar, gpus("main", "1")), "main", shareB, ""},
		"Volcano: one of two containers asks, and comes first":  {pod(a+",NVIDIA,1,2:", nil, gpus("main", "1"), sidecar), "main", shareA, ""},
		"Volcano: the container that does not ask":              {pod(a+",NVIDIA,1,2:", nil, gpus("main", "1"), sidecar), "log", nil, ""},
		"Volcano: an init container that does not ask":          {pod(a+",NVIDIA,1,2:", init, gpus("main", "1")), "main", shareA, ""},
		"Volcano: two that ask around one that does not": {pod(a+",NVIDIA,1,2:;"+b+",NVIDIA,3,4:", init, gpus("main", "1"), sidecar,
			gpus("side", "1")), "side", shareB, ""},
		"Volcano: two GPUs for one container, written backwards": {pod(b+",NVIDIA,3,4:"+a+",NVIDIA,1,2:", nil, sidecar, gpus("main", "2")),
			"main",
			append(append([]Share{}, shareB...), shareA...), ""},
		"Volcano: memory alone is one GPU":            {pod(b+",NVIDIA,3,4:", nil, sidecar, ofMemory("main", "3")), "main", shareB, ""},
		"Volcano: a container that asks for number 0": {pod(";"+a+",NVIDIA,1,2:", nil, gpus("none", "0"), gpus("main", "1")), "main", shareA, ""},
		"Volcano: number 0 at the end":                {pod(a+",NVIDIA,1,2:;", nil, gpus("main", "1"), gpus("none", "0")), "main", shareA, ""},
		"Volcano: two containers with shares of one GPU": {pod(a+",NVIDIA,1,2:;"+a+",NVIDIA,1,2:", nil, gpus("main", "1"), gpus("side", "1")),
			"side", shareA, ""},
		"Volcano: a MIG slot larger than what was asked for": {pod(a+"[group1-0],NVIDIA,5120,0:", nil, ofMemory("main", "3")), "main",
			[]Share{{UUID: a, Memory: 5120, Slot: &MIGSlot{"group1", 0}}}, ""},

		"forged: more memory than the limit": {pod(a+",NVIDIA,4,4:", nil, ofMemory("main", "3")), "main", nil,
			"its limit volcano.sh/vgpu-memory is 3"},
		"forged: the whole GPU": {pod(a+",NVIDIA,0,4:", nil, ofMemory("main", "3")), "main", nil,
			"its limit volcano.sh/vgpu-memory is 3"},
		"forged: more cores than the limit": {pod(a+",NVIDIA,3,5:", nil, ofMemory("main", "3")), "main", nil,
			"its limit volcano.sh/vgpu-cores is 4"},
		"forged: no limit of cores": {pod(a+",NVIDIA,3,0:", nil, ofMemory("main", "3")), "main", nil,
			"its limit volcano.sh/vgpu-cores is 4"},
		"forged: shares for a pod that asks for none": {pod(first, nil, sidecar), "log", nil, ""},

		"an init container that is not listed": {pod(first, []corev1.Container{gpus("init", "1")}, gpus("main", "1")), "init", nil,
			"does not serve init containers"},
		"an ordinary one beside an unlisted": {pod(first, []corev1.Container{gpus("init", "1")}, gpus("main", "1")), "main", shareA, ""},
		"an ephemeral container":             {debugged(pod(first, nil, gpus("main", "1"))), "debugger", nil, ""},
		"shares of more containers than ask": {pod(first+first+first, nil, gpus("main", "1")), "main", nil, "shares of 3 containers"},
		"fewer shares than asked for":        {pod(first, nil, gpus("main", "2")), "main", nil, "gives it 1"},
		"a pod of another scheduler":         {pod("", nil, gpus("main", "1")), "main", nil, "schedulerName"},
		"a malformed annotation":             {pod("rubbish", nil, gpus("main", "1")), "main", nil, "rubbish"},
		"a container that is not there":      {pod(first, nil, gpus("main", "1")), "other", nil, "no container"},
		"cores without a number": {pod("", nil, container("main", map[string]string{"volcano.sh/vgpu-cores": "100"})), "main", nil,
			"without volcano.sh/vgpu-number"},
		// Volcano omits such a container.
		"a percentage without a number": {pod("", nil, container("main", map[string]string{"volcano.sh/vgpu-memory-percentage": "50"})), "main",
			nil, "without volcano.sh/vgpu-number"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := volcano.Of(test.pod, test.container)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("got %v, %v; want an error with %q", got, err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("shares (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAssignmentReportsUnplacedPod(t *testing.T) {
	if _, err := volcano.Of(pod("", nil, gpus("main", "1")), "main"); !errors.Is(err, ErrNotPlaced) {
		t.Errorf("got %v, want ErrNotPlaced", err)
	}
}

func asks(count int) func(*corev1.Container) bool {
	return func(c *corev1.Container) bool { return volcano.Asks(c) == count }
}

func TestCandidatesAreThoseThatAnAllocationCanBeFor(t *testing.T) {
	waiting := pod(a+",NVIDIA,1,2:;"+b+",NVIDIA,3,4:;", nil, gpus("main", "1"), gpus("side", "1"))
	running := pod(a+",NVIDIA,1,2:;", nil, gpus("main", "1"))
	running.Status.Phase = corev1.PodRunning
	leaving := pod(a+",NVIDIA,1,2:;", nil, gpus("main", "1"))
	leaving.DeletionTimestamp = &metav1.Time{}
	served := func(_, container string) bool { return container == "main" }
	got := volcano.Candidates([]*corev1.Pod{waiting, running, leaving}, asks(1), served)
	if len(got) != 1 || got[0].Container != "side" || got[0].Shares[0].UUID != b {
		t.Errorf("candidates %+v, want side alone", got)
	}
	if got := volcano.Candidates([]*corev1.Pod{waiting}, asks(2), served); got != nil {
		t.Errorf("candidates %+v for two shares, want none", got)
	}
}

func TestAssignmentIsEmptyWithoutARequest(t *testing.T) {
	forged := a + ",NVIDIA,1,2:;"
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want [][]Share
		has  bool
	}{
		"a pod that asks":               {pod(forged, nil, gpus("main", "1")), [][]Share{{{UUID: a, Memory: 1, Cores: 2}}}, true},
		"a pod that asks for nothing":   {pod(forged, nil, container("main", nil)), nil, false},
		"a pod whose list is another's": {pod(forged+forged, nil, gpus("main", "1")), nil, false},
		"a pod that waits":              {pod("", nil, gpus("main", "1")), nil, false},
		"an init container without shares": {pod(forged, []corev1.Container{gpus("i", "1")}, gpus("main", "1")),
			[][]Share{nil, {{UUID: a, Memory: 1, Cores: 2}}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, has := volcano.Given(test.pod)
			if diff := cmp.Diff(test.want, got); diff != "" || has != test.has {
				t.Errorf("has shares: %t, want %t (-want +got):\n%s", has, test.has, diff)
			}
		})
	}
}
