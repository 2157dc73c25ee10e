package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/build/repository"
)

// TestNVIDIAsDRADriverPublishesTheNode runs the plugins of NVIDIA's DRA driver on nodes of a real API server, one node a profile, and reads
// the ResourceSlices that they publish.
func TestNVIDIAsDRADriverPublishesTheNode(t *testing.T) {
	gpus, domains := peer(t, "gpu-kubelet-plugin"), peer(t, "compute-domain-kubelet-plugin")
	server := apiserver.StartEnsured(t)
	config := &rest.Config{Host: server.URL, BearerToken: apiserver.AdminToken, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: server.CA}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	installCRDs(t, config)
	for _, name := range withGPUs(t) {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, name)
			if _, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Hostname}},
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			flags := n.pluginFlags(t, config)
			t.Run("GPUs", func(t *testing.T) {
				n.start(t, nil, gpus, append(flags, "--image-name", "none")...)
				if diff := cmp.Diff(expectedDevices(n), described(awaitDevices(t, client, "gpu.nvidia.com", n.Hostname))); diff != "" {
					t.Errorf("-profile +published:\n%s", diff)
				}
			})
			if n.Profile.IMEX == nil {
				return
			}
			t.Run("compute domains", func(t *testing.T) {
				n.start(t, nil, domains, flags...)
				var names []string
				for _, d := range awaitDevices(t, client, "compute-domain.nvidia.com", n.Hostname) {
					names = append(names, d.Name)
				}
				slices.Sort(names)
				if diff := cmp.Diff([]string{"channel-0", "daemon-0"}, names); diff != "" {
					t.Errorf("-wanted +published:\n%s", diff)
				}
			})
		})
	}
}

// pluginFlags are the flags that both plugins have.
func (n *node) pluginFlags(t *testing.T, config *rest.Config) []string {
	t.Helper()
	kubeconfig := filepath.Join(n.root, "kubeconfig")
	content := clientcmdapi.Config{CurrentContext: "test",
		Clusters:  map[string]*clientcmdapi.Cluster{"test": {Server: config.Host, InsecureSkipTLSVerify: true}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"admin": {Token: config.BearerToken}},
		Contexts:  map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "admin"}}}
	if err := clientcmd.WriteToFile(content, kubeconfig); err != nil {
		t.Fatal(err)
	}
	driver, kubelet := filepath.Join(n.root, "driver"), filepath.Join(n.root, "var/lib/kubelet")
	mkdir(t, filepath.Join(kubelet, "plugins"))
	mkdir(t, filepath.Join(kubelet, "plugins_registry"))
	return []string{"--kubeconfig", kubeconfig, "--node-name", n.Hostname, "--nvidia-driver-root", driver, "--container-driver-root", driver,
		"--cdi-root", filepath.Join(n.root, "cdi"), "--nvidia-cdi-hook-path", "/bin/true",
		"--kubelet-registrar-directory-path", filepath.Join(kubelet, "plugins_registry"), "--kubelet-plugins-directory-path",
		filepath.Join(kubelet, "plugins")}
}

// device is a published GPU, in the profile's words.
type device struct{ UUID, Product, Architecture, Capability, Memory, Driver, PCI string }

func expectedDevices(n *node) map[string]device {
	model := n.Profile.GPUs.Model
	architecture := model.Architecture
	if architecture == "ada" {
		architecture = "ada lovelace" // go-nvlib's name
	}
	all := map[string]device{}
	for _, g := range n.GPUs {
		all[fmt.Sprintf("gpu-%d", g.Minor)] = device{UUID: g.UUID, Product: model.Name, Architecture: architecture,
			Capability: model.ComputeCapability + ".0", Memory: fmt.Sprintf("%dMi", toldMiB(model)), Driver: semantic(n.Profile.Driver.Version),
			PCI: g.Address.String()}
	}
	return all
}

// semantic writes a driver's version as a semantic version, which has no leading zeros.
func semantic(version string) string {
	parts := strings.Split(version, ".")
	for i, part := range parts {
		if trimmed := strings.TrimLeft(part, "0"); trimmed != "" {
			parts[i] = trimmed
		} else {
			parts[i] = "0"
		}
	}
	return strings.Join(parts, ".")
}

func described(devices []resourcev1.Device) map[string]device {
	all := map[string]device{}
	for _, d := range devices {
		text := func(name resourcev1.QualifiedName) string {
			a := d.Attributes[name]
			switch {
			case a.StringValue != nil:
				return *a.StringValue
			case a.VersionValue != nil:
				return *a.VersionValue
			}
			return ""
		}
		memory := d.Capacity["memory"].Value
		all[d.Name] = device{UUID: text("uuid"), Product: text("productName"), Architecture: strings.ToLower(text("architecture")),
			Capability: text("cudaComputeCapability"), Memory: fmt.Sprintf("%dMi", memory.Value()>>20), Driver: text("driverVersion"),
			PCI: text("resource.kubernetes.io/pciBusID")}
	}
	return all
}

// awaitDevices returns the devices of a driver's pool once it is whole.
func awaitDevices(t *testing.T, client kubernetes.Interface, driver, nodeName string) []resourcev1.Device {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	of := metav1.ListOptions{FieldSelector: fields.AndSelectors(fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorDriver, driver),
		fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorNodeName, nodeName)).String()}
	watch, err := client.ResourceV1().ResourceSlices().Watch(ctx, of)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	slicesByName := map[string]*resourcev1.ResourceSlice{}
	for {
		select {
		case event, open := <-watch.ResultChan():
			slice, ok := event.Object.(*resourcev1.ResourceSlice)
			if !open || !ok {
				t.Fatalf("the watch of %s's slices ended: %v", driver, event.Object)
			}
			slicesByName[slice.Name] = slice
			if int64(len(slicesByName)) < slice.Spec.Pool.ResourceSliceCount {
				continue
			}
			var all []resourcev1.Device
			for _, s := range slicesByName {
				all = append(all, s.Spec.Devices...)
			}
			if len(all) > 0 { // the first slice may have only shared counters
				return all
			}
		case <-ctx.Done():
			t.Fatalf("%s published nothing for %s: %v", driver, nodeName, context.Cause(ctx))
		}
	}
}

// installCRDs installs the kinds that the compute-domain plugin watches. They are this project's CRDs.
func installCRDs(t *testing.T, config *rest.Config) {
	t.Helper()
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "drivers/api/crds/resource.nvidia.com_*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs of resource.nvidia.com: %v", err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(content, &crd.Object); err != nil {
			t.Fatal(err)
		}
		if _, err := crds.Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := established(t.Context(), crds, crd.GetName()); err != nil {
			t.Fatal(err)
		}
	}
}

// established waits until the API server serves a CRD.
func established(ctx context.Context, crds dynamic.ResourceInterface, name string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		crd, err := crds.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions") // null at first
		for _, c := range conditions {
			if m, ok := c.(map[string]any); ok && m["type"] == "Established" && m["status"] == "True" {
				return nil
			}
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s is not established", name), context.Cause(ctx))
		}
	}
}
