package plugin

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/drivers/vgpu/instances"
	"gpufabric.io/drivers/vgpu/podwatch"
	"gpufabric.io/drivers/vgpu/settings"
)

// telling is an outcome that reports on a pod of two containers with a share each.
func telling(t *testing.T) (*outcome, *fake.Clientset, *corev1.Pod) {
	t.Helper()
	one := corev1.ResourceRequirements{Limits: corev1.ResourceList{"volcano.sh/vgpu-number": resource.MustParse("1")}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train", UID: "uid-train",
			Annotations: map[string]string{annotation.BindPhase: "allocating", annotation.BindTime: "1763777700", annotation.PodDevices: "kept"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: one}, {Name: "side", Resources: one}, {Name: "log"}}},
	}
	client := fake.NewClientset(pod, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	o := newOutcome(client, annotation.Resources{Number: "volcano.sh/vgpu-number", Memory: "volcano.sh/vgpu-memory",
		Cores: "volcano.sh/vgpu-cores"}, nodeName, &failing{client: client, node: nodeName, now: time.Now, events: record.NewFakeRecorder(8),
		since: map[types.UID]map[string]time.Time{}})
	o.ended = func(context.Context, *corev1.Pod) (bool, error) { return false, nil }
	o.after = func(time.Duration) <-chan time.Time {
		now := make(chan time.Time, 1)
		now <- time.Time{}
		return now
	}
	return o, client, pod
}

// checkPhases persists results in their order, each with the pod's state at that time, and compares the phase after each.
func checkPhases(t *testing.T, o *outcome, client *fake.Clientset, results []result, phases ...string) {
	t.Helper()
	for i, r := range results {
		var err error
		if r.pod, err = client.CoreV1().Pods("default").Get(t.Context(), "train", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := o.persist(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		after, err := client.CoreV1().Pods("default").Get(t.Context(), "train", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := after.Annotations[annotation.BindPhase]; got != phases[i] {
			t.Fatalf("after result %d the phase is %q, want %q", i, got, phases[i])
		}
	}
}

func TestOutcomeIsSuccessAfterASecondTry(t *testing.T) {
	o, client, _ := telling(t)
	full := errors.New("the GPU is full")
	checkPhases(t, o, client, []result{
		{container: "main"}, {container: "side", why: full}, {container: "side"}, // the first was served before the second failed
		{container: "side", why: full}, {container: "main"}, {container: "side"}, // started again
	}, "allocating", annotation.BindFailed, annotation.BindSuccess, annotation.BindFailed, annotation.BindFailed, annotation.BindSuccess)
	o.Gone(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid-train"}})
	if err := o.persist(t.Context(), <-o.queue); err != nil || len(o.served) != 0 {
		t.Errorf("%d pods are remembered after the pod is gone (%v)", len(o.served), err)
	}
}

// The runtime's call ended after the pod: it is not reported any more.
func TestOutcomeForgetsEndedPods(t *testing.T) {
	o, client, pod := telling(t)
	// The fake API server sends a watch only later changes, and the informer lists before it watches.
	watching := make(chan struct{})
	client.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		close(watching)
		return true, w, err
	})
	watched, err := podwatch.Watch(t.Context(), client, nodeName, func(*corev1.Pod) {})
	if err != nil {
		t.Fatal(err)
	}
	o.ended = watched.Ended
	late := []result{{pod: pod, container: "main"}, {pod: pod, container: "side", why: errors.New("the GPU is full")},
		{pod: pod, container: "main", given: []instances.Instance{{}}}}
	remembers := func(want int) {
		t.Helper()
		for _, r := range late {
			if err := o.persist(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if len(o.served) != want || len(o.shown) > want {
				t.Errorf("%d pods are remembered, want %d", max(len(o.served), len(o.shown)), want)
			}
		}
	}
	remembers(1)
	<-watching
	if err := client.CoreV1().Pods("default").Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for all, err := watched.All(); len(all) > 0; all, err = watched.All() { // the test's deadline bounds the wait
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	o.Gone(pod)
	if err := o.persist(t.Context(), <-o.queue); err != nil {
		t.Fatal(err)
	}
	remembers(0)
}

func TestOutcomeRemovesOnlyThePodsLock(t *testing.T) {
	const own, others = "2025-11-22T02:14:59Z", "2025-11-22T02:15:03Z"
	for _, test := range []struct {
		name, lock, meanwhile, want string
	}{
		{"its own", own, "", ""},
		{"another's", others, "", others},
		{"another's, taken after its own was looked at", own, others, others},
		{"none", "", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			o, client, pod := telling(t)
			set := func(lock string) {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Annotations: map[string]string{"other": "kept"}}}
				if lock != "" {
					node.Annotations[annotation.NodeLock] = lock
				}
				if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), node, ""); err != nil {
					t.Error(err)
				}
			}
			set(test.lock)
			if test.meanwhile != "" {
				client.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
					set(test.meanwhile)
					// The fake's tracker reports a failed test of a patch in its own words; the API server uses these.
					if patch := string(action.(clienttesting.PatchAction).GetPatch()); strings.Contains(patch, `"value":"`+test.lock+`"`) {
						return true, nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Node").GroupKind(), nodeName, nil)
					}
					return false, nil, nil
				})
			}
			if err := o.persist(t.Context(), result{pod: pod, container: "main", why: errors.New("the GPU is full")}); err != nil {
				t.Fatal(err)
			}
			node, err := client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := node.Annotations[annotation.NodeLock]; got != test.want || node.Annotations["other"] != "kept" && test.lock != "" {
				t.Errorf("annotations %v, want the lock %q", node.Annotations, test.want)
			}
		})
	}
}

func TestOutcomeIsReportedWhenTheAPIServerAcceptsIt(t *testing.T) {
	o, client, _ := telling(t)
	refusals := 3
	client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		refusals--
		return refusals >= 0, nil, errors.New("the API server is away")
	})
	checkPhases(t, o, client, []result{{container: "main", why: errors.New("the GPU is full")}}, annotation.BindFailed)
}

// The pod of a Job that has ended keeps its sandbox until somebody deletes it; schedulers give its instance to the next pod at
// once.
func TestOutcomeFreesInstancesOfAnEndedPodWithASandbox(t *testing.T) {
	machine, state := gputest.New(t, 2), t.TempDir()
	read, err := inventory.Reader{NVML: machine, Locate: func(busID string) (inventory.Place, error) {
		return inventory.Place{BusID: busID},
			nil
	}}.Read()
	if err != nil {
		t.Fatal(err)
	}
	made, _, err := instances.New(instances.Options{Directory: filepath.Join(state, "mig"), GPU: read.ByUUID,
		Geometries: func(string) []settings.Geometry { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := made.Give(t.Context(), instances.Owner{PodUID: "uid-train", Container: "main"},
		[]instances.Ask{{GPU: read.GPUs[0], MemoryMiB: 3000}}); err != nil {
		t.Fatal(err)
	}
	n := startOn(t, machine, &Options{}, "--gpu-memory-factor=1", "--state-dir="+state, "--nri-socket="+t.TempDir()+"/nri.sock",
		modes(t, `{"nodeconfig": [{"name": "`+nodeName+`", "operatingmode": "mig"}]}`))
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 14)
	pod := n.schedule("train", machine.GPUs[0].UUID+",NVIDIA,3000,0:;", "main")
	pod.Status.Phase = corev1.PodSucceeded
	if _, err := n.api.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// This happens in the background.
	for deadline := time.Now().Add(time.Minute); len(machine.GPUs[0].Instances()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the instance of a pod that has ended stands still")
		}
	}
}

// The plugin was killed between the answer to the kubelet and the patch of the pod.
func TestOutcomeWithoutNRISurvivesAPluginCrash(t *testing.T) {
	const uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name),
				Annotations: map[string]string{annotation.PodDevices: uuid + ",NVIDIA,100,0:;", annotation.BindPhase: "allocating"}},
			Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"volcano.sh/vgpu-number": resource.MustParse("1")}}}}},
			Status: corev1.PodStatus{Phase: phase},
		}
	}
	api := fake.NewClientset(pod("runs", corev1.PodRunning), pod("waits", corev1.PodPending))
	shares := withoutNRI(t, api, uuid)
	heard := make(hearing, 10)
	shares.hook.Outcome = heard
	if err := shares.recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !shares.hook.Book.Holds(heldID("uid-runs", "main")) || shares.hook.Book.Holds(heldID("uid-waits", "main")) {
		t.Error("other pods are booked than the one that runs")
	}
	if got := <-heard; got != "runs" {
		t.Errorf("the scheduler hears that %s has its share, want runs", got)
	}
	// It was allocated before the plugin was killed, and its image took a while.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- shares.follow(ctx) }()
	if _, err := api.CoreV1().Pods("default").UpdateStatus(t.Context(), pod("waits", corev1.PodRunning), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-heard:
		if got != "waits" || !shares.hook.Book.Holds(heldID("uid-waits", "main")) {
			t.Errorf("the scheduler hears that %s has its share, want waits, which is to be booked", got)
		}
	case <-time.After(time.Minute):
		t.Error("the pod that began to run is not booked")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// hearing is an Outcome that records which pods have their shares.
type hearing chan string

func (h hearing) Served(pod *corev1.Pod, _ string, _ injection.Backend) { h <- pod.Name }

func (hearing) Failed(*corev1.Pod, string, error) {}

func (hearing) Partitioned(*corev1.Pod, string, []instances.Instance) {}

func TestPluginRaisesAUnitThatWasMadeSmaller(t *testing.T) {
	n := start(t, "--namespace=gpufabric-system", "--device-memory-scaling=8")
	n.annotation(unitAnnotation, func(got string) bool { return got == "1 volcano.sh/vgpu-memory = 8 MiB" })
	maps := n.api.CoreV1().ConfigMaps("gpufabric-system")
	changes, err := maps.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	if _, err := maps.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: agreementName},
		Data: map[string]string{agreementKey: "1"}}, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	smaller := false
	for timeout := time.After(time.Minute); ; {
		select {
		case event := <-changes.ResultChan():
			now, ok := event.Object.(*corev1.ConfigMap)
			if smaller = smaller || ok && now.Data[agreementKey] == "1"; smaller && now.Data[agreementKey] == "8" {
				return
			}
		case <-timeout:
			t.Fatal("the cluster's unit stays 1 MiB, in which this node cannot count")
		}
	}
}

func TestOutcomeNamesTheLimiterOfEachContainer(t *testing.T) {
	o, client, _ := telling(t)
	checkPhases(t, o, client, []result{{container: "main", by: injection.Library}, {container: "side", by: injection.Whole}},
		"allocating", annotation.BindSuccess)
	limits := func() string {
		pod, err := client.CoreV1().Pods("default").Get(t.Context(), "train", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pod.Annotations[annotation.Limits]
	}
	if got := limits(); got != "main=library,side=whole" {
		t.Errorf("the pod says %q", got)
	}
	// The container restarts on a node whose limits were changed, with a restarted plugin.
	o.forget("uid-train")
	checkPhases(t, o, client, []result{{container: "side", by: injection.Whole}, {container: "main", by: injection.HAMiCore}},
		annotation.BindSuccess, annotation.BindSuccess)
	if got := limits(); got != "main=hami-core,side=whole" {
		t.Errorf("the pod says %q", got)
	}
}
