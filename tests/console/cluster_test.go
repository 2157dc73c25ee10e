package console

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"gpufabric.io/build/apiserver"
)

const (
	nodesPerRack = 18
	gpusPerNode  = 4
	gib          = int64(1) << 30
)

// cluster is an API server with racks of GB200s: objects as the drivers publish them, without any driver.
type cluster struct {
	server  *apiserver.Server
	config  *rest.Config
	core    kubernetes.Interface
	dynamic dynamic.Interface
	nodes   int
}

func domainsResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "resource.nvidia.com", Version: "v1beta1", Resource: "computedomains"}
}

func startCluster(t *testing.T, nodes int) *cluster {
	t.Helper()
	server := apiserver.Start(t)
	config := &rest.Config{Host: server.URL, BearerToken: apiserver.AdminToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: server.CA}, QPS: -1}
	c := &cluster{server: server, config: config, nodes: nodes}
	var err error
	if c.core, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	c.addCRDs(t)
	parallel(t, nodes, func(i int) error { return c.addNode(t.Context(), i) })
	return c
}

// parallel calls work with 0 to n-1, some at a time.
func parallel(t *testing.T, n int, work func(i int) error) {
	t.Helper()
	next, errs := make(chan int), make(chan error, n)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for i := range next {
				if err := work(i); err != nil {
					errs <- err
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	workers.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
}

func (c *cluster) addCRDs(t *testing.T) {
	t.Helper()
	client, err := apiextensions.NewForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../drivers/api/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs in drivers/api/crds: %v", err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(content, crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if _, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for { // an established CRD sends an event, and its paths are served some time after
		_, err := c.dynamic.Resource(domainsResource()).List(t.Context(), metav1.ListOptions{})
		if err == nil {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("ComputeDomains are not served: %v", err)
		}
	}
}

func nodeName(i int) string { return fmt.Sprintf("node-%03d", i) }

func cliqueOf(i int) string {
	return fmt.Sprintf("%08x-1111-4222-8333-444455556666.1", 0xa0000000+i/nodesPerRack)
}

func text(value string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{StringValue: &value}
}

func number(value int64) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{IntValue: &value}
}

func quantity(n int64) resourceapi.DeviceCapacity {
	return resourceapi.DeviceCapacity{Value: *resource.NewQuantity(n, resource.BinarySI)}
}

// addNode makes a node and its slices: four GPUs of 186 GiB, the second shareable, the third in MIG placements, and four ports.
func (c *cluster) addNode(ctx context.Context, i int) error {
	name := nodeName(i)
	node, err := c.core.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{"nvidia.com/gpu.clique": cliqueOf(i)}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	if _, err := c.core.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return err
	}
	var gpus, ports []resourceapi.Device
	for g := range gpusPerNode {
		gpus = append(gpus, gpu(i, g))
		ports = append(ports, port(i, g))
	}
	for driver, devices := range map[string][]resourceapi.Device{"gpu.nvidia.com": gpus, "rdma.gpufabric.io": ports,
		"compute-domain.nvidia.com": {{Name: "channel-0"}, {Name: "daemon-0"}}} {
		pool := name + map[string]string{"gpu.nvidia.com": "-gpu", "rdma.gpufabric.io": "-rdma",
			"compute-domain.nvidia.com": "-compute-domain"}[driver]
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: pool}, Spec: resourceapi.ResourceSliceSpec{NodeName: &name,
			Driver: driver, Pool: resourceapi.ResourcePool{Name: pool, ResourceSliceCount: 1}, Devices: devices}}
		if _, err := c.core.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func gpu(i, g int) resourceapi.Device {
	d := resourceapi.Device{Name: fmt.Sprintf("gpu-%d", g), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"type": text("gpu"), "uuid": text(fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", i, g)), "index": number(int64(g)),
		"productName": text("NVIDIA GB200"),
		"brand":       text("Nvidia"), "architecture": text("Blackwell"), "cliqueID": text(cliqueOf(i)), "nvlinkDomain": text(cliqueOf(i)[:36]),
		"gpufabric.io/pcieSwitch":         text(fmt.Sprintf("%04x:01:00.0", g)),
		"resource.kubernetes.io/numaNode": number(int64(g / 2)), "resource.kubernetes.io/pciBusID": text(fmt.Sprintf("%04x:02:00.0", g)),
		"resource.kubernetes.io/pcieRoot": text(fmt.Sprintf("pci%04x:00", g))},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": quantity(186 * gib)}}
	if g == 1 {
		d.AllowMultipleAllocations = ptr.To(true)
		d.Capacity["cores"] = quantity(100)
	}
	if g == 3 && i%7 == 3 {
		d.Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	return d
}

func port(i, p int) resourceapi.Device {
	d := resourceapi.Device{Name: fmt.Sprintf("pci-%04x-03-00-0-1", p), AllowMultipleAllocations: ptr.To(true),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"rdmaDevice": text(fmt.Sprintf("mlx5_%d", p)), "port": number(1),
			"linkLayer": text("InfiniBand"), "rateGbps": number(400), "ifName": text(fmt.Sprintf("ibp%d", p)), "rail": number(int64(p)),
			"gpufabric.io/pcieSwitch":         text(fmt.Sprintf("%04x:01:00.0", p)),
			"resource.kubernetes.io/numaNode": number(int64(p / 2)), "resource.kubernetes.io/pciBusID": text(fmt.Sprintf("%04x:03:00.0", p)),
			"resource.kubernetes.io/pcieRoot": text(fmt.Sprintf("pci%04x:00", p))},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"slots": quantity(4), "bandwidth": quantity(400)}}
	if i%11 == 5 && p == 2 {
		d.Taints = []resourceapi.DeviceTaint{{Key: "rdma.gpufabric.io/port-down", Value: "Down", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	return d
}

// allocated is a device of a claim.
type allocated struct {
	driver, pool, device string
	consumed             map[resourceapi.QualifiedName]int64
}

// addClaim makes a claim with devices that is reserved for a pod.
func (c *cluster) addClaim(ctx context.Context, namespace, name, pod string, devices ...allocated) error {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	allocation := &resourceapi.AllocationResult{}
	for i, d := range devices {
		request := fmt.Sprintf("r%d", i)
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: request,
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: d.driver}})
		result := resourceapi.DeviceRequestAllocationResult{Request: request, Driver: d.driver, Pool: d.pool, Device: d.device}
		if d.consumed != nil {
			result.ShareID = ptr.To(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012x", len(name))))
			result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
			for name, n := range d.consumed {
				result.ConsumedCapacity[name] = *resource.NewQuantity(n, resource.BinarySI)
			}
		}
		allocation.Devices.Results = append(allocation.Devices.Results, result)
	}
	claim, err := c.core.ResourceV1().ResourceClaims(namespace).Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	claim.Status.Allocation = allocation
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod, UID: types.UID(pod)}}
	_, err = c.core.ResourceV1().ResourceClaims(namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	return err
}

// addDomain makes a domain over one rack, with so many ready members. Of a domain that exists it writes only the status.
func (c *cluster) addDomain(ctx context.Context, rack, ready int) error {
	name := fmt.Sprintf("domain-%02d", rack)
	client := c.dynamic.Resource(domainsResource()).Namespace("default")
	domain, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		domain = &unstructured.Unstructured{Object: map[string]any{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain",
			"metadata": map[string]any{"name": name}, "spec": map[string]any{"numNodes": int64(nodesPerRack),
				"channel": map[string]any{"resourceClaimTemplate": map[string]any{"name": name + "-channel"}}}}}
		if domain, err = client.Create(ctx, domain, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	var members []any
	for i := range nodesPerRack {
		node := rack*nodesPerRack + i
		state := "NotReady"
		if i < ready {
			state = "Ready"
		}
		members = append(members, map[string]any{"name": nodeName(node), "ipAddress": fmt.Sprintf("10.0.%d.%d", rack, i),
			"cliqueID": cliqueOf(node),
			"index":    int64(i), "status": state})
	}
	summary := "NotReady"
	if ready == nodesPerRack {
		summary = "Ready"
	}
	domain.Object["status"] = map[string]any{"status": summary, "nodes": members, "conditions": []any{map[string]any{"type": "Ready",
		"status": map[bool]string{true: "True", false: "False"}[ready == nodesPerRack], "reason": "Waiting",
		"lastTransitionTime": "2026-11-23T00:00:00Z",
		"message":            fmt.Sprintf("IMEX ready on %d of %d nodes", ready, nodesPerRack)}}}
	_, err = client.UpdateStatus(ctx, domain, metav1.UpdateOptions{})
	return err
}

// addWaitingPod makes a pod that the scheduler did not place, with the scheduler's reason.
func (c *cluster) addWaitingPod(ctx context.Context, name, why string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{
		Containers:     []corev1.Container{{Name: "c", Image: "i"}},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("claim-of-" + name)}}}}
	pod, err := c.core.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
		Message:            why,
		LastTransitionTime: metav1.Now()}}
	_, err = c.core.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}
