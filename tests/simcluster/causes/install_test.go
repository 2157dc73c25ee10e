//go:build causes

package causes

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gpufabric.io/tests/simcluster/fixture"
)

// crds are the definitions of custom resources.
func crds() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

// uninstall removes the DaemonSets and leaves their pods, so that they come back to what they had.
func uninstall(g *ground) {
	g.t.Helper()
	sets := g.Client.AppsV1().DaemonSets(fixture.System)
	all, err := sets.List(g.t.Context(), metav1.ListOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	orphan := metav1.DeletePropagationOrphan
	for i := range all.Items {
		set := &all.Items[i]
		if err := sets.Delete(g.t.Context(), set.Name, metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
			g.t.Fatal(err)
		}
		g.later(func(ctx context.Context) error {
			set.ResourceVersion, set.UID, set.Status = "", "", appsv1.DaemonSetStatus{}
			_, err := sets.Create(ctx, set, metav1.CreateOptions{})
			return err
		})
	}
	g.until("the DaemonSets are gone", func(ctx context.Context) bool {
		left, err := sets.List(ctx, metav1.ListOptions{})
		return err == nil && len(left.Items) == 0
	})
}

// quota limits the pods of gpufabric's namespace to one fewer than there are, and removes a component's pod from a node.
func quota(g *ground, component string, node int) {
	g.t.Helper()
	pods, err := g.Client.CoreV1().Pods(fixture.System).List(g.t.Context(), metav1.ListOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	quotas := g.Client.CoreV1().ResourceQuotas(fixture.System)
	if _, err := quotas.Create(g.t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "small"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			corev1.ResourcePods: *resource.NewQuantity(int64(len(pods.Items)-1), resource.DecimalSI)}}}, metav1.CreateOptions{}); err != nil {
		g.t.Fatal(err)
	}
	g.later(func(ctx context.Context) error { return quotas.Delete(ctx, "small", metav1.DeleteOptions{}) })
	g.until("the quota is counted", func(ctx context.Context) bool {
		q, err := quotas.Get(ctx, "small", metav1.GetOptions{})
		return err == nil && len(q.Status.Used) > 0
	})
	g.evict(component, node)
}

// foreign runs a DaemonSet of another project on every node.
func foreign(g *ground, name string) {
	g.t.Helper()
	labels := map[string]string{"app": name}
	sets := g.Client.AppsV1().DaemonSets(metav1.NamespaceSystem)
	if _, err := sets.Create(g.t.Context(), &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nvcr.io/nvidia/" + name + ":1"}}}}}},
		metav1.CreateOptions{}); err != nil {
		g.t.Fatal(err)
	}
	g.later(func(ctx context.Context) error { return sets.Delete(ctx, name, metav1.DeleteOptions{}) })
}

// oldKubelet is a node whose kubelet reports another version. The simulated node writes its version when it registers, and not again.
func oldKubelet(g *ground, i int, version string) {
	g.t.Helper()
	const patch = `{"status":{"nodeInfo":{"kubeletVersion":%q}}}`
	g.node(i, fmt.Sprintf(patch, version), fmt.Sprintf(patch, "v1.36.3"), "status")
}

func clock(g *ground, i int, ahead time.Duration) {
	node := g.Fleet.Nodes()[i]
	node.SetClock(ahead)
	g.later(func(context.Context) error {
		node.SetClock(0)
		return nil
	})
}

func container(set *appsv1.DaemonSet) *corev1.Container { return &set.Spec.Template.Spec.Containers[0] }

// deaf gives a plugin a readiness probe that nothing answers.
func deaf(set *appsv1.DaemonSet) {
	probe := container(set).ReadinessProbe
	if probe.HTTPGet != nil {
		probe.HTTPGet.Path = "/not-there"
	}
	if probe.Exec != nil {
		probe.Exec.Command = []string{"gpufabric", "not-there"}
	}
}

func noCRD(g *ground, name string) {
	g.t.Helper()
	all := g.Manifests.Objects().Resource(crds())
	object, err := all.Get(g.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	if err := all.Delete(g.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		g.t.Fatal(err)
	}
	g.later(func(ctx context.Context) error {
		object.SetResourceVersion("")
		object.SetUID("")
		delete(object.Object, "status")
		_, err := all.Create(ctx, object, metav1.CreateOptions{})
		return err
	})
}

func installCauses() []cause {
	const part = "install"
	return []cause{
		{part, "the chart is not installed", nil, "NotInstalled", nil, uninstall},
		{part, "PodSecurity refuses a plugin's pod", nil, "PodSecurityRefuses", nil, func(g *ground) {
			g.forbid()
			g.evict("gpu-plugin", 1)
		}},
		{part, "a quota has no room for a plugin's pod", nil, "QuotaExceeded", nil, func(g *ground) { quota(g, "rdma-plugin", 1) }},
		{part, "a plugin's image cannot be pulled", nil, "ImageNotPulled", nil, func(g *ground) {
			g.daemonSet("rdma-plugin", func(set *appsv1.DaemonSet) { container(set).Image = "registry.invalid/gpufabric:1" })
		}},
		{part, "a plugin crashes", nil, "PluginCrashes", nil, func(g *ground) {
			g.daemonSet("rdma-plugin", func(set *appsv1.DaemonSet) { container(set).Args = append(container(set).Args, "--no-such-flag") })
		}},
		{part, "a plugin is never ready", nil, "PluginNotReady", nil, func(g *ground) { g.daemonSet("compute-domain-plugin", deaf) }},
		{part, "a plugin selects no node", nil, "PluginNotPlaced", nil, func(g *ground) {
			g.daemonSet("rdma-plugin", func(set *appsv1.DaemonSet) {
				set.Spec.Template.Spec.NodeSelector = map[string]string{"rack": "none"}
			})
		}},
		{part, "the controller has no pod", nil, "ControllerNotReady", nil, func(g *ground) { g.scale("controller", 0) }},
		{part, "the webhook has no pod", nil, "WebhookNotReady", nil, func(g *ground) { g.scale("webhook", 0) }},
		{part, "another DRA driver runs", nil, "OtherDriver", nil,
			func(g *ground) { foreign(g, "nvidia-dra-driver-gpu-kubelet-plugin") }},
		{part, "a device plugin runs beside", nil, "OtherDevicePlugin", nil, func(g *ground) { foreign(g, "nvidia-device-plugin-daemonset") }},
		{part, "a kubelet is too old", nil, "KubeletTooOld", nil, func(g *ground) { oldKubelet(g, 1, "v1.33.4") }},
		{part, "a node's clock is ahead", nil, "ClockSkew", nil, func(g *ground) { clock(g, 1, 10*time.Minute) }},
		{part, "a node's clock is behind", nil, "ClockSkew", nil, func(g *ground) { clock(g, 1, -10*time.Minute) }},
		{part, "a definition of custom resources is missing", nil, "CRDMissing", nil,
			func(g *ground) { noCRD(g, "vgpuprofiles.gpufabric.io") }},
		{part, "a node is off", nil, "NodeNotReady", nil, func(g *ground) { g.silence(3) }},
		{part, "another driver runs, and a kubelet is too old", nil, "KubeletTooOld", []string{"OtherDriver"}, func(g *ground) {
			foreign(g, "nvidia-dra-driver-gpu-kubelet-plugin")
			oldKubelet(g, 2, "v1.34.0")
		}},
		{part, "a device plugin runs beside, and a node is off", nil, "OtherDevicePlugin", []string{"NodeNotReady"}, func(g *ground) {
			foreign(g, "nvidia-device-plugin-daemonset")
			g.silence(3)
		}},
	}
}
