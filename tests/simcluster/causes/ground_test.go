//go:build causes

package causes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"gpufabric.io/drivers/doctor"
	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/fakes/fault"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

// ground is the cluster for one cause, which is undone when the test ends.
type ground struct {
	*fixture.Namespace
	t *testing.T
}

// doctor runs the command `gpufabric doctor` and reads its answer. A pod, claim or domain is of the test's namespace.
func (g *ground) doctor(ctx context.Context, about ...string) *diagnosis.Report {
	g.t.Helper()
	var out bytes.Buffer
	command := doctor.Command(host.Host{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" },
		RESTConfig: func() (*rest.Config, error) { return rest.CopyConfig(g.Config), nil }})
	args := append([]string{"--output=json"}, about...)
	if len(about) == 2 && (about[0] == "pod" || about[0] == "claim" || about[0] == "domain") {
		args = append(args, "--namespace="+g.Name)
	}
	command.SetArgs(args)
	command.SilenceUsage, command.SilenceErrors = true, true
	err := command.ExecuteContext(ctx)
	var status *doctor.StatusError
	if err != nil && (!errors.As(err, &status) || status.Message != "") {
		g.t.Fatalf("gpufabric doctor %v: %v", args, err)
	}
	report := &diagnosis.Report{}
	if err := json.Unmarshal(out.Bytes(), report); err != nil {
		g.t.Fatalf("gpufabric doctor %v: %v\n%s", args, err, out.String())
	}
	return report
}

// awaitHealth removes what the cause has in its namespace, and waits until the doctor finds nothing.
func (g *ground) awaitHealth() {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.t.Context()), healing)
	defer cancel()
	if err := g.Empty(ctx); err != nil {
		g.t.Error(err)
	}
	last := ""
	// Half a second, since not every step of the recovery has an event.
	if err := wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(context.Context) (bool, error) {
		r := g.doctor(ctx)
		last = describe(r)
		return r.First == nil && len(r.Lacking) == 0, nil
	}); err != nil {
		g.t.Errorf("the cluster does not become healthy: %v; the doctor says %s", err, last)
	}
}

// until checks a condition twice a second until it is true.
func (g *ground) until(what string, so func(context.Context) bool) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), healing)
	defer cancel()
	if err := wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		return so(ctx), nil
	}); err != nil {
		g.t.Fatalf("wait until %s: %v", what, err)
	}
}

// later runs something when the cause is undone.
func (g *ground) later(undo func(context.Context) error) {
	g.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(g.t.Context()), fixture.Patience)
		defer cancel()
		if err := undo(ctx); err != nil {
			g.t.Errorf("take the cause back: %v", err)
		}
	})
}

func nodeName(i int) string { return cluster.NodeName(i) }

// hardware is the fake hardware of node number i.
func hardware(i int) string { return fabric.HardwareOf(cluster.NodeDir(shared.Dir, i)) }

// fault injects an event into the hardware of node number i. undo is the event that undoes it; where it is empty, the test does
// that.
func (g *ground) fault(i int, event string, args fault.Arguments, undo string) {
	g.t.Helper()
	if err := fault.Apply(hardware(i), event, args); err != nil {
		g.t.Fatal(err)
	}
	if undo != "" {
		g.later(func(context.Context) error { return fault.Apply(hardware(i), undo, args) })
	}
}

// node changes a Node object for the time of the cause, by a merge patch, and another that undoes it.
func (g *ground) node(i int, patch, back string, subresources ...string) {
	g.t.Helper()
	change := func(ctx context.Context, patch string) error {
		_, err := g.Client.CoreV1().Nodes().Patch(ctx, nodeName(i), types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{},
			subresources...)
		return err
	}
	if err := change(g.t.Context(), patch); err != nil {
		g.t.Fatal(err)
	}
	g.later(func(ctx context.Context) error { return change(ctx, back) })
}

// label sets a label of node number i.
func (g *ground) label(i int, key, value string) {
	g.t.Helper()
	g.node(i, fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value), fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, key))
}

func (g *ground) cordon(i int) {
	g.t.Helper()
	g.node(i, `{"spec":{"unschedulable":true}}`, `{"spec":{"unschedulable":null}}`)
}

// silence disconnects node number i from the network.
func (g *ground) silence(i int) {
	g.t.Helper()
	node := g.Fleet.Nodes()[i]
	if err := node.Silence(g.t.Context(), true); err != nil {
		g.t.Fatal(err)
	}
	g.later(func(ctx context.Context) error { return node.Silence(ctx, false) })
}

// daemonSet changes the DaemonSet of a component.
func (g *ground) daemonSet(component string, change func(*appsv1.DaemonSet)) {
	g.t.Helper()
	sets := g.Client.AppsV1().DaemonSets(fixture.System)
	var before appsv1.DaemonSetSpec
	write := func(ctx context.Context, change func(*appsv1.DaemonSet)) error {
		return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			set, err := sets.Get(ctx, "gpufabric-"+component, metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(set)
			_, err = sets.Update(ctx, set, metav1.UpdateOptions{})
			return err
		})
	}
	if err := write(g.t.Context(), func(set *appsv1.DaemonSet) {
		before = *set.Spec.DeepCopy()
		change(set)
	}); err != nil {
		g.t.Fatal(err)
	}
	g.later(func(ctx context.Context) error {
		return write(ctx, func(set *appsv1.DaemonSet) { set.Spec = before })
	})
}

// scale sets the number of pods of a component's Deployment.
func (g *ground) scale(component string, replicas int) {
	g.t.Helper()
	name := "gpufabric-" + component
	change := func(ctx context.Context, replicas int) error {
		_, err := g.Client.AppsV1().Deployments(fixture.System).Patch(ctx, name, types.MergePatchType,
			[]byte(fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)), metav1.PatchOptions{})
		return err
	}
	now, err := g.Client.AppsV1().Deployments(fixture.System).Get(g.t.Context(), name, metav1.GetOptions{})
	if err == nil {
		err = change(g.t.Context(), replicas)
	}
	if err != nil {
		g.t.Fatal(err)
	}
	g.later(func(ctx context.Context) error { return change(ctx, int(*now.Spec.Replicas)) })
	if replicas == 0 {
		g.until(name+" has no pod", func(ctx context.Context) bool { return len(g.podsOf(ctx, component, -1)) == 0 })
	}
}

// podsOf are the pods of a component on node number i, -1: on all.
func (g *ground) podsOf(ctx context.Context, component string, i int) []corev1.Pod {
	options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component}
	if i >= 0 {
		options.FieldSelector = "spec.nodeName=" + nodeName(i)
	}
	pods, err := g.Client.CoreV1().Pods(fixture.System).List(ctx, options)
	if err != nil {
		g.t.Fatal(err)
	}
	return pods.Items
}

// evict deletes the pods of a component on node number i, and waits until they are gone.
func (g *ground) evict(component string, i int) {
	g.t.Helper()
	for _, p := range g.podsOf(g.t.Context(), component, i) {
		err := g.Client.CoreV1().Pods(p.Namespace).Delete(g.t.Context(), p.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			g.t.Fatal(err)
		}
		g.until(p.Name+" is gone", func(ctx context.Context) bool {
			now, err := g.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
			return apierrors.IsNotFound(err) || err == nil && now.UID != p.UID
		})
	}
}

// forbid makes the API server refuse the plugins' pods: the namespace no longer allows privileged pods.
func (g *ground) forbid() {
	g.t.Helper()
	const label = "pod-security.kubernetes.io/enforce"
	change := func(ctx context.Context, value string) error {
		_, err := g.Client.CoreV1().Namespaces().Patch(ctx, fixture.System, types.MergePatchType,
			[]byte(fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, label, value)), metav1.PatchOptions{})
		return err
	}
	if err := change(g.t.Context(), `"restricted"`); err != nil {
		g.t.Fatal(err)
	}
	g.later(func(ctx context.Context) error { return change(ctx, "null") })
}

// claim makes a claim of a class.
func (g *ground) claim(name, class string, count int, selectors ...string) {
	g.t.Helper()
	var cel []string
	for _, s := range selectors {
		cel = append(cel, fmt.Sprintf("{cel: {expression: %q}}", s))
	}
	g.Apply(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: %s}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: %s, count: %d, selectors: [%s]}}]}}
`, name, class, count, strings.Join(cel, ", "))
}

// share makes a claim of memory of a GPU.
func (g *ground) share(name, memory string) {
	g.t.Helper()
	g.Apply(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: %s}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu-share.gpufabric.io, capacity: {requests: {memory: %s}}}}]}}
`, name, memory)
}

// pod makes a pod with claims that exist by name; more is further YAML of its spec, such as "nodeSelector: {rack: '7'}".
func (g *ground) pod(name, more string, claims ...string) {
	g.t.Helper()
	var uses, refs []string
	for _, c := range claims {
		uses = append(uses, "{name: "+c+"}")
		refs = append(refs, fmt.Sprintf("{name: %[1]s, resourceClaimName: %[1]s}", c))
	}
	if more != "" {
		more = "\n  " + more
	}
	g.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "ubuntu:24.04", resources: {claims: [%s]}}]
  resourceClaims: [%s]%s
`, name, strings.Join(uses, ", "), strings.Join(refs, ", "), more)
}

// on is the nodeSelector of node number i, as YAML for pod.
func on(i int) string { return "nodeSelector: {kubernetes.io/hostname: " + nodeName(i) + "}" }

// holdAll gives all GPUs of nodes to running pods.
func (g *ground) holdAll(nodes ...int) {
	g.t.Helper()
	for _, i := range nodes {
		name := fmt.Sprintf("holder-%d", i)
		g.claim(name, "gpu.nvidia.com", gpusPerNode)
		g.pod(name, on(i), name)
	}
	for _, i := range nodes {
		g.AwaitPod(fmt.Sprintf("holder-%d", i), fixture.Running)
	}
}
