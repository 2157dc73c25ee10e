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

var volcano = Resources{"volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"}

func container(name string, limits map[string]string) corev1.Container {
	list := corev1.ResourceList{}
	for resourceName, value := range limits {
		list[corev1.ResourceName(resourceName)] = resource.MustParse(value)
	}
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: list}}
}

func gpus(name, number string) corev1.Container {
	return container(name, map[string]string{"volcano.sh/vgpu-number": number})
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

func TestOf(t *testing.T) {
	first, second := a+",NVIDIA,1,2:;", b+",NVIDIA,3,4:;"
	shareA, shareB := []Share{{UUID: a, Memory: 1, Cores: 2}}, []Share{{UUID: b, Memory: 3, Cores: 4}}
	for name, test := range map[string]struct {
		pod       *corev1.Pod
		container string
		want      []Share
		err       string
	}{
		"the only container":                {pod(first, nil, gpus("main", "1")), "main", shareA, ""},
		"the second of two":                 {pod(first+second, nil, gpus("main", "1"), gpus("side", "1")), "side", shareB, ""},
		"one after a container without":     {pod(";"+second, nil, container("log", nil), gpus("main", "1")), "main", shareB, ""},
		"a container without a request":     {pod(";"+second, nil, container("log", nil), gpus("main", "1")), "log", nil, ""},
		"an ordinary one after an init one": {pod(first+second, []corev1.Container{gpus("init", "1")}, gpus("main", "1")), "main", shareB, ""},
		"an init container":                 {pod(first+second, []corev1.Container{gpus("init", "1")}, gpus("main", "1")), "init", shareA, ""},
		"an init container that is not listed": {pod(first, []corev1.Container{gpus("init", "1")}, gpus("main", "1")), "init", nil,
			"does not serve init containers"},
		"an ordinary one beside an unlisted": {pod(first, []corev1.Container{gpus("init", "1")}, gpus("main", "1")), "main", shareA, ""},
		"an ephemeral container":             {debugged(pod(first, nil, gpus("main", "1"))), "debugger", nil, ""},
		"a list of another length":           {pod(first+first+first, nil, gpus("main", "1")), "main", nil, "lists 3 containers"},
		"fewer shares than asked for":        {pod(first, nil, gpus("main", "2")), "main", nil, "gives it 1"},
		"a pod of another scheduler":         {pod("", nil, gpus("main", "1")), "main", nil, "schedulerName"},
		"a malformed annotation":             {pod("rubbish", nil, gpus("main", "1")), "main", nil, "rubbish"},
		"a container that is not there":      {pod(first, nil, gpus("main", "1")), "other", nil, "no container"},
		"memory without a number": {pod("", nil, container("main", map[string]string{"volcano.sh/vgpu-memory": "100"})), "main", nil,
			"without volcano.sh/vgpu-number"},
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

func TestOfMarksAPodThatNobodyPlaced(t *testing.T) {
	if _, err := volcano.Of(pod("", nil, gpus("main", "1")), "main"); !errors.Is(err, ErrNotPlaced) {
		t.Errorf("got %v, want ErrNotPlaced", err)
	}
}

func TestCandidatesAreThoseThatAnAllocationCanBeFor(t *testing.T) {
	waiting := pod(a+",NVIDIA,1,2:;"+b+",NVIDIA,3,4:;", nil, gpus("main", "1"), gpus("side", "1"))
	running := pod(a+",NVIDIA,1,2:;", nil, gpus("main", "1"))
	running.Status.Phase = corev1.PodRunning
	leaving := pod(a+",NVIDIA,1,2:;", nil, gpus("main", "1"))
	leaving.DeletionTimestamp = &metav1.Time{}
	served := func(_, container string) bool { return container == "main" }
	got := volcano.Candidates([]*corev1.Pod{waiting, running, leaving}, 1, served)
	if len(got) != 1 || got[0].Container != "side" || got[0].Shares[0].UUID != b {
		t.Errorf("candidates %+v, want side alone", got)
	}
	if got := volcano.Candidates([]*corev1.Pod{waiting}, 2, served); got != nil {
		t.Errorf("candidates %+v for two shares, want none", got)
	}
}
