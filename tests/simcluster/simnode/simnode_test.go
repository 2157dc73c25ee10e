package simnode_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"

	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/simnode"
)

const widgetDriver = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: widget, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: widget}
rules:
- {apiGroups: [resource.k8s.io], resources: [resourceclaims], verbs: [get]}
- {apiGroups: [resource.k8s.io], resources: [resourceslices], verbs: [get, list, watch, create, update, patch, delete]}
- {apiGroups: [""], resources: [nodes], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: widget}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: widget}
subjects: [{kind: ServiceAccount, name: widget, namespace: default}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: widget}
spec: {selectors: [{cel: {expression: "device.driver == 'widget.example.test'"}}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: widget, namespace: default}
spec:
  selector: {matchLabels: {app: widget}}
  template:
    metadata: {labels: {app: widget}}
    spec:
      serviceAccountName: widget
      containers:
      - name: plugin
        image: example.test/plugin:1
        args: [--kubelet-root=/var/lib/kubelet, --cdi-root=/var/run/cdi, --node=$(NODE_NAME)]
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        readinessProbe: {exec: {command: [healthy]}, periodSeconds: 1}
        volumeMounts:
        - {name: plugins, mountPath: /var/lib/kubelet/plugins}
        - {name: registry, mountPath: /var/lib/kubelet/plugins_registry}
        - {name: cdi, mountPath: /var/run/cdi}
      volumes:
      - {name: plugins, hostPath: {path: /var/lib/kubelet/plugins, type: DirectoryOrCreate}}
      - {name: registry, hostPath: {path: /var/lib/kubelet/plugins_registry, type: DirectoryOrCreate}}
      - {name: cdi, hostPath: {path: /var/run/cdi, type: DirectoryOrCreate}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: widget, namespace: default}
spec: {spec: {devices: {requests: [{name: one, exactly: {deviceClassName: widget}}]}}}
`

const widgetPod = `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: busybox, resources: {claims: [{name: widget}]}}
  resourceClaims: [{name: widget, resourceClaimTemplateName: widget}]
`

type fixture struct {
	client kubernetes.Interface
	apply  func(manifests string)
	nodes  map[string]*simnode.Node
	dirs   map[string]string
}

func start(ctx context.Context, t *testing.T, count int) fixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "sim") // t.TempDir() is too long for unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	binaries, err := controlplane.Binaries(ctx)
	if err != nil {
		t.Fatal(err)
	}
	plane, err := controlplane.Start(ctx, controlplane.Options{Dir: dir, Binaries: binaries})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	block, err := simnode.TakeBlock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(block.Release)
	sockets, err := simnode.NewSocketWatcher()
	if err != nil {
		t.Fatal(err)
	}
	ctx, off := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { sockets.Run(ctx) })
	t.Cleanup(func() { off(); running.Wait() })
	config, err := plane.Admin()
	if err != nil {
		t.Fatal(err)
	}
	f := fixture{client: kubernetes.NewForConfigOrDie(config), nodes: map[string]*simnode.Node{}, dirs: map[string]string{}}
	for i := range count {
		name := fmt.Sprintf("n%d", i)
		node, err := simnode.New(simnode.Config{
			Name: name, Dir: filepath.Join(dir, name), Addresses: simnode.NewAddresses(block.Number, i), Access: plane.Access(),
			Runtime: widgetRuntime{}, Sockets: sockets, PrepareRetry: time.Second, RestartBackoff: time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			if err := node.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		f.nodes[name], f.dirs[name] = node, filepath.Join(dir, name)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovery.NewDiscoveryClientForConfigOrDie(config)))
	objects := dynamic.NewForConfigOrDie(config)
	f.apply = func(manifests string) {
		t.Helper()
		decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
		for {
			object := &unstructured.Unstructured{}
			if err := decoder.Decode(object); err != nil {
				return
			}
			kind := object.GroupVersionKind()
			mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := objects.Resource(mapping.Resource).Namespace(object.GetNamespace()).Create(ctx, object,
				metav1.CreateOptions{}); err != nil {
				t.Fatalf("create %s %s: %v", kind.Kind, object.GetName(), err)
			}
		}
	}
	if err := controlplane.AwaitDefaultAccount(ctx, f.client, "default"); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f fixture) awaitPod(ctx context.Context, t *testing.T, name string, done func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	watch, err := f.client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	var last *corev1.Pod
	for event := range watch.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			continue
		}
		if last = pod; event.Type == "DELETED" {
			last = nil
		}
		if done(last) {
			return last
		}
	}
	t.Fatalf("pod %s did not get there; last seen: %+v", name, last)
	return nil
}

func running(pod *corev1.Pod) bool { return pod != nil && pod.Status.Phase == corev1.PodRunning }

func TestNodeGivesAPodPreparedDevices(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f := start(ctx, t, 2)
	f.apply(widgetDriver)
	f.apply(fmt.Sprintf(widgetPod, "user"))
	pod := f.awaitPod(ctx, t, "user", running)

	bundle, err := os.ReadFile(simnode.BundleFile(f.dirs[pod.Spec.NodeName], string(pod.UID), "main"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"/dev/widget-`, `"WIDGET=`, `"major": 240`} {
		if !strings.Contains(string(bundle), want) {
			t.Errorf("the container's bundle lacks %s:\n%s", want, bundle)
		}
	}
	if !strings.HasPrefix(pod.Status.PodIP, "127.") {
		t.Errorf("pod address %q is not one of the node's", pod.Status.PodIP)
	}

	specs := filepath.Join(f.dirs[pod.Spec.NodeName], "r/var/run/cdi")
	if entries, err := os.ReadDir(specs); err != nil || len(entries) != 1 {
		t.Errorf("while the pod runs: CDI specs %v, %v; want one", entries, err)
	}
	if err := f.client.CoreV1().Pods("default").Delete(ctx, "user", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.awaitPod(ctx, t, "user", func(pod *corev1.Pod) bool { return pod == nil })
	if entries, err := os.ReadDir(specs); err != nil || len(entries) != 0 {
		t.Errorf("after the pod: CDI specs %v, %v; want none", entries, err)
	}
}

func TestNodeRestartsAKilledPlugin(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f := start(ctx, t, 1)
	f.apply(widgetDriver)
	f.apply(fmt.Sprintf(widgetPod, "before"))
	f.awaitPod(ctx, t, "before", running)

	plugins, err := f.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=widget"})
	if err != nil || len(plugins.Items) != 1 {
		t.Fatalf("plugin pods: %v, %v", plugins, err)
	}
	name := plugins.Items[0].Name
	if err := f.nodes["n0"].Kill(types.NamespacedName{Namespace: "default", Name: name}, "plugin"); err != nil {
		t.Fatal(err)
	}
	f.awaitPod(ctx, t, name, func(pod *corev1.Pod) bool {
		return running(pod) && pod.Status.ContainerStatuses[0].RestartCount == 1 && pod.Status.ContainerStatuses[0].Ready
	})
	f.apply(fmt.Sprintf(widgetPod, "after"))
	f.awaitPod(ctx, t, "after", running)
}

const gadgetPods = `
apiVersion: v1
kind: Pod
metadata: {name: gadgets, namespace: default}
spec:
  containers:
  - name: gadgets
    image: example.test/plugin:1
    volumeMounts: [{name: sockets, mountPath: /var/lib/kubelet/device-plugins}]
  volumes: [{name: sockets, hostPath: {path: /var/lib/kubelet/device-plugins}}]
---
apiVersion: v1
kind: Pod
metadata: {name: user, namespace: default}
spec:
  containers:
  - {name: main, image: busybox, resources: {limits: {example.test/gadget: 2}}}
`

func TestNodeGivesAPodAllocatedDevices(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f := start(ctx, t, 1)
	f.apply(gadgetPods) // the second pod waits until the plugin's resource is in the node's status
	pod := f.awaitPod(ctx, t, "user", running)
	bundle, err := os.ReadFile(simnode.BundleFile(f.dirs["n0"], string(pod.UID), "main"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"/dev/gadget-a"`, `"/dev/gadget-b"`, `"GADGETS=`} {
		if !strings.Contains(string(bundle), want) {
			t.Errorf("the container's bundle lacks %s:\n%s", want, bundle)
		}
	}
}
