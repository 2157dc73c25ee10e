package torture

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/tests/simcluster/process"
)

const (
	// stopGrace is how long a plugin may take to end in order.
	stopGrace = 10 * time.Second
	// backOff is between a plugin's end and its next start, as the kubelet's first.
	backOff = time.Second
	// mostRestarts is how often the kit starts a plugin that ends by itself, in one wait.
	mostRestarts = 20
)

// device is a published device.
type device struct{ pool, name string }

// node is a fake node with one plugin.
type node struct {
	driver   Driver
	client   kubernetes.Interface // beside the link
	patience time.Duration
	name     string
	dir      string
	link     *link

	plugin   *process.Process
	restarts int
	kubelet  *kubelet
	devices  []device
	claims   int
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// make writes the node's directories and hardware, and makes its Node object.
func (n *node) make(ctx context.Context, render func(context.Context, string) error, server *apiserver.Server) error {
	for _, dir := range []string{"cdi", "state", "mps", "handover", "k/plugins", "k/plugins_registry", "cgroup/kubepods/burstable/podother"} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			return fmt.Errorf("make the node's directories: %w", err)
		}
	}
	if err := os.WriteFile(n.path("cgroup/cgroup.controllers"), nil, 0o600); err != nil {
		return fmt.Errorf("make the node's cgroups: %w", err)
	}
	if err := render(ctx, n.path("n")); err != nil {
		return fmt.Errorf("render the node's hardware: %w", err)
	}
	address, err := url.Parse(server.URL)
	if err != nil {
		return fmt.Errorf("read the API server's address: %w", err)
	}
	if n.link, err = openLink(address.Host); err != nil {
		return err
	}
	content := clientcmdapi.Config{CurrentContext: "node",
		Clusters:  map[string]*clientcmdapi.Cluster{"node": {Server: n.link.url(), CertificateAuthorityData: server.CA}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"admin": {Token: apiserver.AdminToken}},
		Contexts:  map[string]*clientcmdapi.Context{"node": {Cluster: "node", AuthInfo: "admin"}}}
	if err := clientcmd.WriteToFile(content, n.path("kubeconfig")); err != nil {
		return fmt.Errorf("write the plugin's kubeconfig: %w", err)
	}
	return n.register(ctx)
}

// register makes the Node object, as the kubelet does.
func (n *node) register(ctx context.Context) error {
	_, err := n.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}, metav1.CreateOptions{})
	if err != nil {
		return kit("make node %s: %w", n.name, err)
	}
	return nil
}

// unregister deletes the Node object and then the slices that belonged to it, as the garbage collector does.
func (n *node) unregister(ctx context.Context) error {
	if err := n.client.CoreV1().Nodes().Delete(ctx, n.name, metav1.DeleteOptions{}); err != nil {
		return kit("delete node %s: %w", n.name, err)
	}
	return n.deleteSlices(ctx)
}

func (n *node) deleteSlices(ctx context.Context) error {
	if err := n.client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, n.published()); err != nil {
		return kit("delete the ResourceSlices of %s: %w", n.name, err)
	}
	return nil
}

// published selects the plugin's slices.
func (n *node) published() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.AndSelectors(
		fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, n.driver.DriverName),
		fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, n.name)).String()}
}

// remove ends everything on the node. It may be called again.
func (n *node) remove() {
	n.stop()
	if n.link != nil {
		n.link.close()
		n.link = nil
	}
}

// start starts the plugin, without waiting for anything.
func (n *node) start() error {
	arguments, environment := n.driver.command(n)
	plugin, err := process.Start(process.Spec{Name: "plugin", ClusterDir: n.dir, LogDir: n.path("log"), Path: n.driver.Program,
		Args: arguments, Env: environment})
	if err != nil {
		return kit("start the plugin: %w", err)
	}
	n.plugin = plugin
	return nil
}

// up starts the plugin, registers it as the kubelet does, and waits for its devices.
func (n *node) up(ctx context.Context) error {
	if err := n.start(); err != nil {
		return err
	}
	if err := n.connect(ctx); err != nil {
		return err
	}
	return n.awaitDevices(ctx, "")
}

// stop ends the plugin in order.
func (n *node) stop() {
	n.disconnect()
	if n.plugin != nil {
		n.plugin.Stop(stopGrace)
		n.plugin = nil
	}
}

// again starts the plugin after its end, by whatever, and registers it.
func (n *node) again(ctx context.Context) error {
	n.stop()
	if err := n.start(); err != nil {
		return err
	}
	return n.connect(ctx)
}

// revive starts a plugin that ended by itself. It waits as the kubelet does, since a plugin may end for want of what comes later.
func (n *node) revive(ctx context.Context) error {
	if n.restarts++; n.restarts > mostRestarts {
		return fmt.Errorf("the plugin ended by itself %d times: %w", mostRestarts, n.plugin.Err())
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(backOff):
	}
	n.disconnect()
	return n.start()
}

// bounded is a context for one wait for the plugin.
func (n *node) bounded(ctx context.Context, what string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, n.patience, fmt.Errorf("%s within %s", what, n.patience))
}

// awaitDevices waits until the plugin's pool is complete and has devices. With an owner, the slices must not belong to another Node.
func (n *node) awaitDevices(ctx context.Context, owner types.UID) error {
	ctx, cancel := n.bounded(ctx, "published no complete pool with devices")
	defer cancel()
	known := map[string]*resourceapi.ResourceSlice{}
	for {
		w, err := n.client.ResourceV1().ResourceSlices().Watch(ctx, n.published())
		if err != nil {
			return errors.Join(context.Cause(ctx), kit("watch the ResourceSlices of %s: %w", n.name, err))
		}
		done, err := n.follow(ctx, w, known, owner)
		w.Stop()
		if done || err != nil {
			return err
		}
	}
}

// follow reads a watch until the pool is complete, or the watch ends.
func (n *node) follow(ctx context.Context, w watch.Interface, known map[string]*resourceapi.ResourceSlice, owner types.UID) (bool, error) {
	clear(known)
	for {
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-n.plugin.Exited():
			if err := n.revive(ctx); err != nil {
				return false, err
			}
			if err := n.connect(ctx); err != nil {
				return false, err
			}
		case event, open := <-w.ResultChan():
			slice, ok := event.Object.(*resourceapi.ResourceSlice)
			if !open || !ok {
				return false, nil
			}
			if known[slice.Name] = slice; event.Type == watch.Deleted {
				delete(known, slice.Name)
			}
			if devices, complete := readPool(known, owner); complete && len(devices) > 0 {
				n.devices = devices
				return true, nil
			}
		}
	}
}

// readPool returns the devices of the newest generation, and whether all slices of it are there. Of a pool with GPUs and parts of GPUs
// it returns the GPUs.
func readPool(known map[string]*resourceapi.ResourceSlice, owner types.UID) (devices []device, complete bool) {
	newest := int64(-1)
	for _, slice := range known {
		newest = max(newest, slice.Spec.Pool.Generation)
	}
	var count int64
	var parts []device
	for _, name := range slices.Sorted(maps.Keys(known)) {
		slice := known[name]
		if slice.Spec.Pool.Generation != newest {
			continue
		}
		for _, reference := range slice.OwnerReferences {
			if owner != "" && reference.Kind == "Node" && reference.UID != owner {
				return nil, false
			}
		}
		if count++; count == slice.Spec.Pool.ResourceSliceCount {
			complete = true
		}
		for _, d := range slice.Spec.Devices {
			if found := (device{slice.Spec.Pool.Name, d.Name}); isPart(d) {
				parts = append(parts, found)
			} else {
				devices = append(devices, found)
			}
		}
	}
	if len(devices) == 0 {
		devices = parts
	}
	return devices, complete
}

// isPart reports whether a device has a type that is not a whole GPU's.
func isPart(d resourceapi.Device) bool {
	for name, attribute := range d.Attributes {
		if filepath.Base(string(name)) == "type" && attribute.StringValue != nil && *attribute.StringValue != "gpu" {
			return true
		}
	}
	return false
}

// claim makes a claim with an allocated device, reserved for a pod of the same name.
func (n *node) claim(ctx context.Context, name string, d device) (*resourceapi.ResourceClaim, error) {
	if name == "" {
		n.claims++
		name = fmt.Sprintf("%s-%d", n.name, n.claims)
	}
	claims := n.client.ResourceV1().ResourceClaims(metav1.NamespaceDefault)
	claim, err := claims.Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "any"}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, kit("make a claim of %s: %w", d.name, err)
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: n.driver.DriverName, Pool: d.pool, Device: d.name}},
	}}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name,
		UID: types.UID("pod-of-" + string(claim.UID))}}
	if claim, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return nil, kit("allocate %s: %w", d.name, err)
	}
	return claim, nil
}

// forget deletes a claim, as a forced deletion does with its pod's.
func (n *node) forget(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	err := n.client.ResourceV1().ResourceClaims(claim.Namespace).Delete(ctx, claim.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(claim.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return kit("delete claim %s: %w", claim.Name, err)
	}
	return nil
}
