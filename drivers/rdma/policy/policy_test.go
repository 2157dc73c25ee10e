package policy

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	mellanox "gpufabric.io/drivers/api/mellanox/v1alpha1"
	"gpufabric.io/drivers/rdma/apiservertest"
)

const patience = 5 * time.Minute

// serve runs a real API server with the CRDs, and the controller, until the test ends.
func serve(t *testing.T) client.Client {
	t.Helper()
	config := apiservertest.Start(t, "../../api/crds/gpufabric.io_rdmapools.yaml", "../../api/crds/mellanox.com_nicclusterpolicies.yaml")
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, mellanox.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	managed := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(managed); err != nil {
		t.Fatal(err)
	}
	m, err := ctrl.NewManager(config, ctrl.Options{Scheme: managed, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	options := FromEnvironment(func(name string) string {
		return map[string]string{"POD_NAMESPACE": "default", "NV_PEER_IMAGE": "{image}:{version}",
			"NIC_DRIVER_IMAGES": "mellanox/,registry.example/,nv-peer-mem-driver"}[name]
	})
	if err := Adder(options)(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := m.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); group.Wait() })
	return c
}

// await waits until a policy's status satisfies want.
func await(t *testing.T, c client.Client, name, description string, want func(mellanox.NicClusterPolicyStatus) bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		var p mellanox.NicClusterPolicy
		if err := c.Get(t.Context(), client.ObjectKey{Name: name}, &p); err != nil {
			t.Fatal(err)
		}
		if want(p.Status) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: no %s; the status is %+v", name, description, p.Status)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func state(s mellanox.NicClusterPolicyStatus, name string) mellanox.AppliedState {
	for _, a := range s.AppliedStates {
		if a.Name == name {
			return a
		}
	}
	return mellanox.AppliedState{}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func addNode(t *testing.T, c client.Client, name, kernel string, gpu bool) {
	t.Helper()
	labels := map[string]string{labelNIC: "true", labelOS: "ubuntu", labelRelease: "18.04", labelArch: "amd64"}
	if kernel != "" {
		labels[labelKernel] = kernel
	}
	if gpu {
		labels[labelGPU] = "true"
	}
	must(t, c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}))
}

// available sets every DaemonSet's status: all its pods are available.
func available(t *testing.T, c client.Client) {
	t.Helper()
	// The controller may write a DaemonSet at the same time.
	must(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error { return availableOnce(t, c) }))
}

func availableOnce(t *testing.T, c client.Client) error {
	t.Helper()
	var sets appsv1.DaemonSetList
	must(t, c.List(t.Context(), &sets))
	for i := range sets.Items {
		sets.Items[i].Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, CurrentNumberScheduled: 1, UpdatedNumberScheduled: 1,
			NumberAvailable: 1, NumberReady: 1, ObservedGeneration: sets.Items[i].Generation}
		if err := c.Status().Update(t.Context(), &sets.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// awaitDaemonSets waits until the DaemonSets are those named.
func awaitDaemonSets(t *testing.T, c client.Client, want ...string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		got := names(t, c)
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the DaemonSets are %v, want %v", got, want)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// names are the DaemonSets' names, sorted.
func names(t *testing.T, c client.Client) []string {
	t.Helper()
	var sets appsv1.DaemonSetList
	must(t, c.List(t.Context(), &sets))
	var list []string
	for _, s := range sets.Items {
		list = append(list, s.Name)
	}
	slices.Sort(list)
	return list
}

func TestPolicyOfTheSeedApplies(t *testing.T) {
	c := serve(t)
	addNode(t, c, "nic-a", "4.15.0-109-generic", false)
	addNode(t, c, "both-b", "4.15.0-109-generic", true)
	must(t, c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "neither"}}))
	content, err := os.ReadFile("../../../examples/manifests/nicclusterpolicy.yaml")
	must(t, err)
	seed := &unstructured.Unstructured{}
	must(t, yaml.Unmarshal(content, &seed.Object))
	must(t, c.Create(t.Context(), seed)) // unmodified, including its namespace
	const name = "example-nicclusterpolicy"
	const (
		peerSet  = "nv-peer-mem-driver-amd64-ubuntu18.04-kver4.15.0-109-generic-ds"
		ofedSet  = "ofed-driver-amd64-ubuntu18.04-kver4.15.0-109-generic-ds"
		otherSet = "ofed-driver-amd64-ubuntu18.04-kver5.4.0-42-generic-ds"
	)

	t.Run("its device plugin section becomes a pool", func(t *testing.T) {
		await(t, c, name, "pool that waits", func(s mellanox.NicClusterPolicyStatus) bool {
			return s.State == mellanox.StateNotReady && strings.Contains(state(s, sectionPools).Message, "nobody has reported on it yet")
		})
		var p v1alpha1.RDMAPool
		must(t, c.Get(t.Context(), client.ObjectKey{Name: name + "-hca-shared-devices-a"}, &p))
		want := v1alpha1.RDMAPoolSpec{
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"feature.node.kubernetes.io/pci-15b3.present": "true"}},
			RDMAPoolConfig: v1alpha1.RDMAPoolConfig{ResourceName: "hca_shared_devices_a", RDMAHCAMax: 1000, Devices: []string{"ens2f0"},
				DeviceNodes: v1alpha1.RDMANodesAll},
		}
		if diff := cmp.Diff(want, p.Spec); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("its drivers become DaemonSets with the seed's node selectors", func(t *testing.T) {
		awaitDaemonSets(t, c, peerSet, ofedSet) // The controller may get the nodes after the policy.
		for set, expect := range map[string]struct {
			image  string
			labels []string
			mount  string
		}{
			peerSet: {"nv-peer-mem-driver:1.0-9", []string{labelNIC, labelGPU}, "/run/nvidia/driver"},
			ofedSet: {"mellanox/ofed-driver-5.0-2.1.8.0:ubuntu18.04-amd64", []string{labelNIC, labelKernel, labelOS}, "/run/mellanox/drivers"},
		} {
			var d appsv1.DaemonSet
			must(t, c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: set}, &d))
			pod := d.Spec.Template.Spec
			if pod.Containers[0].Image != expect.image {
				t.Errorf("%s: the image is %s", set, pod.Containers[0].Image)
			}
			for _, l := range expect.labels {
				if pod.NodeSelector[l] == "" {
					t.Errorf("%s: nodes are selected by %v, without %s", set, pod.NodeSelector, l)
				}
			}
			if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.HostPath.Path == expect.mount }) {
				t.Errorf("%s: no mount of %s", set, expect.mount)
			}
		}
	})
	t.Run("the status is ready when every section is", func(t *testing.T) {
		available(t, c)
		var p v1alpha1.RDMAPool
		must(t, c.Get(t.Context(), client.ObjectKey{Name: name + "-hca-shared-devices-a"}, &p))
		p.Status.Conditions = []metav1.Condition{{Type: v1alpha1.RDMAPoolReady, Status: metav1.ConditionTrue, Reason: "AllDevicesHealthy",
			LastTransitionTime: metav1.Now()}}
		must(t, c.Status().Update(t.Context(), &p))
		await(t, c, name, "ready", func(s mellanox.NicClusterPolicyStatus) bool {
			return s.State == mellanox.StateReady && s.Reason == "" && state(s, sectionOFED).Message == "1 of 1 pods are available" &&
				state(s, sectionPeer).State == mellanox.StateReady
		})
	})
	t.Run("a pod whose image cannot be pulled is in the status with the image's name", func(t *testing.T) {
		pod := driverPod(ofedSet, "nic-a")
		status := pod.Status
		must(t, c.Create(t.Context(), pod))
		pod.Status = status
		must(t, c.Status().Update(t.Context(), pod))
		var d appsv1.DaemonSet
		must(t, c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: ofedSet}, &d))
		d.Status.NumberAvailable = 0
		must(t, c.Status().Update(t.Context(), &d))
		await(t, c, name, "reason of the pod", func(s mellanox.NicClusterPolicyStatus) bool {
			return s.State == mellanox.StateNotReady && strings.Contains(s.Reason, "0 of 1 pods are available; ImagePullBackOff of image "+
				"mellanox/ofed-driver-5.0-2.1.8.0:ubuntu18.04-amd64: Back-off pulling image (node nic-a)")
		})
		must(t, c.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
		available(t, c)
		await(t, c, name, "ready", func(s mellanox.NicClusterPolicyStatus) bool { return s.State == mellanox.StateReady })
	})
	t.Run("a node with another kernel gets a DaemonSet of its own", func(t *testing.T) {
		addNode(t, c, "nic-c", "5.4.0-42-generic", false)
		awaitDaemonSets(t, c, peerSet, ofedSet, otherSet)
		await(t, c, name, "DaemonSet without pods", func(s mellanox.NicClusterPolicyStatus) bool {
			return state(s, sectionOFED).Message == "DaemonSet "+otherSet+": 0 of 0 pods are available"
		})
		available(t, c)
		await(t, c, name, "pods of both DaemonSets", func(s mellanox.NicClusterPolicyStatus) bool {
			return state(s, sectionOFED).State == mellanox.StateReady && state(s, sectionOFED).Message == "2 of 2 pods are available"
		})
	})
	t.Run("a node without its kernel's label is named", func(t *testing.T) {
		addNode(t, c, "nic-d", "", false)
		await(t, c, name, "name of the node", func(s mellanox.NicClusterPolicyStatus) bool {
			return strings.Contains(state(s, sectionOFED).Message, "node nic-d has no label feature.node.kubernetes.io/kernel-version.full")
		})
		must(t, c.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "nic-d"}}))
	})
	t.Run("mistakes in the configuration leave the pools", func(t *testing.T) {
		patch := client.RawPatch("application/merge-patch+json",
			[]byte(`{"spec": {"devicePlugin": {"config": "{\"configList\": [{\"resourceName\": \"a b\"}]}"}}}`))
		must(t, c.Patch(t.Context(), &mellanox.NicClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}, patch))
		await(t, c, name, "error", func(s mellanox.NicClusterPolicyStatus) bool {
			m := state(s, sectionPools).Message
			return s.State == mellanox.StateError && strings.Contains(m, "configList[0].resourceName") &&
				strings.Contains(m, "configList[0].selectors")
		})
		must(t, c.Get(t.Context(), client.ObjectKey{Name: name + "-hca-shared-devices-a"}, &v1alpha1.RDMAPool{}))
	})
	t.Run("what the API server refuses is told in its section, and the others are served", func(t *testing.T) {
		patch := client.RawPatch("application/merge-patch+json",
			[]byte(`{"spec": {"nvPeerDriver": {"gpuDriverSourcePath": "/run/../nvidia"}, "devicePlugin": {"config": "{\"configList\": `+
				`[{\"resourceName\": \"rail_a\", \"devices\": [\"ens2f0\"]}]}"}}}`))
		must(t, c.Patch(t.Context(), &mellanox.NicClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}, patch))
		await(t, c, name, "refusal", func(s mellanox.NicClusterPolicyStatus) bool {
			peer := state(s, sectionPeer)
			return s.State == mellanox.StateError && peer.State == mellanox.StateError && strings.Contains(peer.Message, "must not contain '..'") &&
				strings.Contains(s.Reason, sectionPeer) &&
				strings.Contains(state(s, sectionPools).Message, "RDMAPool "+name+"-rail-a is not ready: nobody has reported on it yet")
		})
	})
	t.Run("a section that goes takes what was made for it along", func(t *testing.T) {
		patch := client.RawPatch("application/merge-patch+json",
			[]byte(`{"spec": {"devicePlugin": null, "nvPeerDriver": null, "sriovDevicePlugin": {"image": "x"}}}`))
		must(t, c.Patch(t.Context(), &mellanox.NicClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}, patch))
		await(t, c, name, "ignored sections", func(s mellanox.NicClusterPolicyStatus) bool {
			return s.State == mellanox.StateNotReady && strings.Contains(s.Reason, "sriovDevicePlugin") &&
				state(s, sectionPools).State == mellanox.StateIgnore && state(s, sectionPeer).State == mellanox.StateIgnore &&
				strings.Contains(state(s, "state-sriovDevicePlugin").Message, "not served: sriovDevicePlugin")
		})
		deadline := time.Now().Add(patience)
		for {
			var pools v1alpha1.RDMAPoolList
			must(t, c.List(t.Context(), &pools))
			if len(pools.Items) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d pools still exist", len(pools.Items))
			}
			time.Sleep(20 * time.Millisecond)
		}
		awaitDaemonSets(t, c, ofedSet, otherSet)
	})
	t.Run("the shared device plugin of later releases is served, and fields that are not are named", func(t *testing.T) {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"sriovDevicePlugin": null,
			"ofedDriver": {"upgradePolicy": {"autoUpgrade": true, "drain": {"enable": true}}, "forcePrecompiled": true},
			"rdmaSharedDevicePlugin": {"image": "k8s-rdma-shared-dev-plugin", "repository": "nvcr.io/nvidia/mellanox", "version": "v1.5.3",
				"config": "{\"configList\": [{\"resourceName\": \"rail_a\", \"devices\": [\"ens2f0\"]}, {\"resourceName\": \"a b\"}]}"}}}`))
		must(t, c.Patch(t.Context(), &mellanox.NicClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}, patch, &client.PatchOptions{
			Raw: &metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict}, // as kubectl does
		}))
		await(t, c, name, "pool, and names of what is not served", func(s mellanox.NicClusterPolicyStatus) bool {
			err := c.Get(t.Context(), client.ObjectKey{Name: name + "-rail-a"}, &v1alpha1.RDMAPool{})
			return err == nil && s.State == mellanox.StateError && strings.Contains(state(s, sectionPools).Message,
				"spec.rdmaSharedDevicePlugin.config") &&
				strings.HasPrefix(state(s, "state-ofedDriver").Message,
					"not served: ofedDriver.forcePrecompiled, ofedDriver.upgradePolicy.drain; so pods of the driver are not replaced automatically")
		})
	})
	t.Run("probes, pull secrets and a rolling upgrade come to the DaemonSet", func(t *testing.T) {
		patch := client.RawPatch("application/merge-patch+json",
			[]byte(`{"spec": {"global": {"repository": "registry.example/doca", "imagePullSecrets": ["registry"]},
			"ofedDriver": {"repository": null, "forcePrecompiled": null, "upgradePolicy": {"maxParallelUpgrades": 2, "drain": {"enable": false}},
				"startupProbe": {"initialDelaySeconds": 10, "periodSeconds": 20, "failureThreshold": 7, "timeoutSeconds": 3},
				"terminationGracePeriodSeconds": 400, "env": [{"name": "A", `+
				`"value": "b"}]}}}`))
		must(t, c.Patch(t.Context(), &mellanox.NicClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}, patch))
		await(t, c, name, "DaemonSet with all of it", func(mellanox.NicClusterPolicyStatus) bool {
			var d appsv1.DaemonSet
			must(t, c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: ofedSet}, &d))
			pod, rolling := d.Spec.Template.Spec, d.Spec.UpdateStrategy.RollingUpdate
			container := pod.Containers[0]
			return strings.HasPrefix(container.Image, "registry.example/doca/ofed-driver") && len(pod.ImagePullSecrets) == 1 &&
				container.StartupProbe != nil &&
				container.StartupProbe.PeriodSeconds == 20 && container.StartupProbe.FailureThreshold == 7 &&
				container.StartupProbe.TimeoutSeconds == 3 && container.LivenessProbe.TimeoutSeconds == 10 && len(container.Env) == 3 &&
				*pod.TerminationGracePeriodSeconds == 400 && rolling != nil && rolling.MaxUnavailable.IntValue() == 2
		})
		await(t, c, name, "upgrade that ends", func(s mellanox.NicClusterPolicyStatus) bool {
			available(t, c) // Each step of a DaemonSet is a change that its controller observes.
			return state(s, "state-ofedDriver").State == "" && state(s, sectionOFED).State == mellanox.StateReady
		})
	})
	t.Run("an image without a repository is an error, and what runs stays", func(t *testing.T) {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"global": null}}`))
		must(t, c.Patch(t.Context(), &mellanox.NicClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}, patch))
		await(t, c, name, "error", func(s mellanox.NicClusterPolicyStatus) bool {
			return strings.Contains(state(s, sectionOFED).Message, "the image ofed-driver has no repository: give it here or in spec.global")
		})
		if got := names(t, c); len(got) != 2 {
			t.Errorf("DaemonSets %v", got)
		}
	})
	t.Run("an image that no list allows is an error, and what runs stays", func(t *testing.T) {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"ofedDriver": {"repository": "evil.example/mellanox"}}}`))
		must(t, c.Patch(t.Context(), &mellanox.NicClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}, patch))
		await(t, c, name, "error", func(s mellanox.NicClusterPolicyStatus) bool {
			return s.State == mellanox.StateError && strings.Contains(state(s, sectionOFED).Message,
				"is not in the chart's value rdma.nicClusterPolicy.images, which has mellanox/, registry.example/, nv-peer-mem-driver")
		})
		var sets appsv1.DaemonSetList
		must(t, c.List(t.Context(), &sets))
		for _, set := range sets.Items {
			if image := set.Spec.Template.Spec.Containers[0].Image; strings.HasPrefix(image, "evil") {
				t.Errorf("DaemonSet %s runs %s", set.Name, image)
			}
		}
		if len(sets.Items) != 2 {
			t.Errorf("DaemonSets %v", names(t, c))
		}
	})
	t.Run("a second policy is told that it does not count", func(t *testing.T) {
		must(t, c.Create(t.Context(), &mellanox.NicClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: "second"}}))
		await(t, c, "second", "ignore", func(s mellanox.NicClusterPolicyStatus) bool {
			return s.State == mellanox.StateIgnore && strings.Contains(s.Reason, "example-nicclusterpolicy is older")
		})
	})
}

// A resource's name may have capitals and underscores, an RDMAPool's may not.
func TestPolicyMakesAPoolForEachResource(t *testing.T) {
	made := func(resources ...string) map[string]string {
		var list []string
		for _, name := range resources {
			list = append(list, fmt.Sprintf(`{"resourceName": %q, "devices": ["eth0"]}`, name))
		}
		p := &mellanox.NicClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: "nics"}}
		p.Spec.DevicePlugin = &mellanox.DevicePluginSpec{Config: ptr.To(`{"configList": [` + strings.Join(list, ",") + `]}`)}
		pools := map[string]string{}
		for _, object := range (&reconciler{}).pools(p, nil).objects {
			if mistakes := validation.IsDNS1123Subdomain(object.GetName()); len(mistakes) > 0 {
				t.Errorf("%s: %v", object.GetName(), mistakes)
			}
			pools[object.GetName()] = object.(*v1alpha1.RDMAPool).Spec.ResourceName
		}
		return pools
	}
	if diff := cmp.Diff(map[string]string{"nics-hca-a": "hca_a", "nics-hca-b": "hca_b"}, made("hca_a", "hca_b")); diff != "" {
		t.Errorf("ordinary names (-want +got):\n%s", diff)
	}
	alike := made("hca_a", "HCA_a", "HCA_A", "b")
	if len(alike) != 4 || alike["nics-b"] != "b" {
		t.Errorf("pools of resources whose names are alike: %v", alike)
	}
	if diff := cmp.Diff(alike, made("b", "HCA_A", "HCA_a", "hca_a")); diff != "" {
		t.Errorf("in another order:\n%s", diff)
	}
}
