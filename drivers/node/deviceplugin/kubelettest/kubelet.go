// Package kubelettest plays the kubelet's side of the device plugin API, for tests. It takes registrations, watches the devices and
// allocates them as the kubelet's device manager does, over real sockets.
package kubelettest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// patience bounds every wait. It is far more than any step takes, so that only a step that never happens fails.
const patience = 2 * time.Minute

// Kubelet is a fake kubelet. Its methods fail the test on errors that no plugin may cause.
type Kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	t   testing.TB
	dir string

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at every change below
	server    *grpc.Server
	ctx       context.Context // the context of the running kubelet's streams
	cancel    context.CancelFunc
	streams   sync.WaitGroup
	resources map[string]*resource
	deaf      int // registrations that are taken and get no stream
}

// resource is the kubelet's state of one extended resource.
type resource struct {
	endpoint      string
	options       *pluginapi.DevicePluginOptions
	client        pluginapi.DevicePluginClient
	connection    *grpc.ClientConn
	devices       []*pluginapi.Device
	lists         int // lists received since the registration
	registrations int // since this Kubelet was made, across restarts
	inUse         map[string]bool
}

// New makes a kubelet root directory with a short path (socket addresses have 107 characters) and a kubelet that does not run yet.
// Root returns the directory.
func New(t testing.TB) *Kubelet {
	root, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	k := &Kubelet{t: t, dir: filepath.Join(root, "device-plugins"), changed: make(chan struct{}), resources: make(map[string]*resource)}
	if err := os.MkdirAll(k.dir, 0o750); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		k.Stop()
		_ = os.RemoveAll(root)
	})
	return k
}

// Root is the kubelet's root directory, for --kubelet-root.
func (k *Kubelet) Root() string { return filepath.Dir(k.dir) }

// Start starts the kubelet: it removes every socket in its directory, as the kubelet does, and listens.
func (k *Kubelet) Start() {
	k.t.Helper()
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		k.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Type()&os.ModeSocket != 0 {
			_ = os.Remove(filepath.Join(k.dir, e.Name()))
		}
	}
	listener, err := net.Listen("unix", filepath.Join(k.dir, "kubelet.sock"))
	if err != nil {
		k.t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // A kubelet that dies leaves its socket.
	k.mu.Lock()
	defer k.mu.Unlock()
	k.server = grpc.NewServer()
	k.ctx, k.cancel = context.WithCancel(context.Background())
	pluginapi.RegisterRegistrationServer(k.server, k)
	server := k.server
	k.streams.Go(func() { _ = server.Serve(listener) })
}

// Stop kills the kubelet: its streams break and its socket file stays. Devices in use stay in use.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	if k.server == nil {
		k.mu.Unlock()
		return
	}
	server := k.server
	k.server = nil
	k.cancel()
	for _, r := range k.resources {
		if r.connection != nil {
			_ = r.connection.Close()
		}
		r.devices, r.client, r.lists = nil, nil, 0
	}
	k.mu.Unlock()
	server.Stop()
	k.streams.Wait()
}

// DropStreams closes the streams of all plugins while the kubelet keeps running, as it does after an error on one.
func (k *Kubelet) DropStreams() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cancel()
	k.ctx, k.cancel = context.WithCancel(context.Background())
}

// TakeWithoutStream takes the next n registrations and does not open a stream for them. The kubelet does this to a resource whose earlier
// stream ends while it connects.
func (k *Kubelet) TakeWithoutStream(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.deaf = n
}

// Register implements the registration service.
func (k *Kubelet) Register(_ context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if request.GetVersion() != pluginapi.Version {
		return nil, fmt.Errorf("version %q is not supported", request.GetVersion())
	}
	connection, err := grpc.NewClient("unix:"+filepath.Join(k.dir, request.GetEndpoint()),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.server == nil {
		_ = connection.Close()
		return nil, errors.New("the kubelet is stopping")
	}
	r := k.resources[request.GetResourceName()]
	if r == nil {
		r = &resource{inUse: make(map[string]bool)}
		k.resources[request.GetResourceName()] = r
	}
	if r.connection != nil {
		_ = r.connection.Close()
	}
	r.endpoint, r.options, r.connection, r.lists = request.GetEndpoint(), request.GetOptions(), connection, 0
	r.client = pluginapi.NewDevicePluginClient(connection)
	r.registrations++
	k.announce()
	if k.deaf > 0 {
		k.deaf--
		_ = connection.Close()
		r.devices, r.client, r.connection = nil, nil, nil
		return &pluginapi.Empty{}, nil
	}
	ctx, client := k.ctx, r.client
	k.streams.Go(func() { k.watch(ctx, r, client) })
	return &pluginapi.Empty{}, nil
}

func (k *Kubelet) watch(ctx context.Context, r *resource, client pluginapi.DevicePluginClient) {
	stream, err := client.ListAndWatch(ctx, &pluginapi.Empty{})
	for err == nil {
		var response *pluginapi.ListAndWatchResponse
		if response, err = stream.Recv(); err == nil {
			k.mu.Lock()
			if r.client == client {
				r.devices = response.GetDevices()
				r.lists++
				k.announce()
			}
			k.mu.Unlock()
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.client == client {
		r.devices, r.client = nil, nil
		k.announce()
	}
}

// announce must be called with mu held.
func (k *Kubelet) announce() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// Resource is a view of the kubelet's state of a resource.
type Resource struct {
	Capacity, Allocatable int // all devices, and the healthy ones
	Devices               []*pluginapi.Device
	Lists                 int // lists received since the last registration
	Registrations         int // over all restarts
}

// View returns the kubelet's state of a resource now; the zero value for an unknown one.
func (k *Kubelet) View(name string) Resource {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.resources[name]
	if r == nil {
		return Resource{}
	}
	v := Resource{Capacity: len(r.devices), Devices: r.devices, Lists: r.lists, Registrations: r.registrations}
	for _, d := range r.devices {
		if d.GetHealth() == pluginapi.Healthy {
			v.Allocatable++
		}
	}
	return v
}

// Await waits until the kubelet's view of a resource satisfies want, and returns it. description is want in words.
func (k *Kubelet) Await(name, description string, want func(Resource) bool) Resource {
	k.t.Helper()
	deadline := time.After(patience)
	for {
		k.mu.Lock()
		changed := k.changed
		k.mu.Unlock()
		view := k.View(name)
		if want(view) {
			return view
		}
		select {
		case <-changed:
		case <-deadline:
			k.t.Fatalf("%s: no %s within %v; the kubelet sees %d devices, %d healthy, after %d lists and %d registrations",
				name, description, patience, view.Capacity, view.Allocatable, view.Lists, view.Registrations)
		}
	}
}

// AwaitAllocatable waits until n devices of a resource are healthy.
func (k *Kubelet) AwaitAllocatable(name string, n int) Resource {
	k.t.Helper()
	return k.Await(name, fmt.Sprintf("%d allocatable", n), func(r Resource) bool { return r.Lists > 0 && r.Allocatable == n })
}

// Allocate gives one container n free healthy devices, preferring those that the plugin prefers, and returns their IDs and the plugin's
// answer.
func (k *Kubelet) Allocate(ctx context.Context, name string, n int) ([]string, *pluginapi.ContainerAllocateResponse, error) {
	k.mu.Lock()
	r := k.resources[name]
	if r == nil || r.client == nil {
		k.mu.Unlock()
		return nil, nil, fmt.Errorf("resource %s is not registered", name)
	}
	client, options := r.client, r.options
	var free []string
	for _, d := range r.devices {
		if d.GetHealth() == pluginapi.Healthy && !r.inUse[d.GetID()] {
			free = append(free, d.GetID())
		}
	}
	k.mu.Unlock()
	if len(free) < n {
		return nil, nil, fmt.Errorf("insufficient %s: %d requested, %d free", name, n, len(free))
	}
	ids := free[:n]
	if options.GetGetPreferredAllocationAvailable() {
		response, err := client.GetPreferredAllocation(ctx,
			&pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
				{AvailableDeviceIDs: free, AllocationSize: int32(n)},
			}})
		if err != nil {
			return nil, nil, err
		}
		if preferred := response.GetContainerResponses()[0].GetDeviceIDs(); len(preferred) == n {
			ids = preferred
		}
	}
	response, err := k.AllocateIDs(ctx, name, ids...)
	return ids, response, err
}

// AllocateIDs gives one container these devices, whatever their health.
func (k *Kubelet) AllocateIDs(ctx context.Context, name string, ids ...string) (*pluginapi.ContainerAllocateResponse, error) {
	k.mu.Lock()
	r := k.resources[name]
	if r == nil || r.client == nil {
		k.mu.Unlock()
		return nil, fmt.Errorf("resource %s is not registered", name)
	}
	client := r.client
	k.mu.Unlock()
	response, err := client.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		r.inUse[id] = true
	}
	return response.GetContainerResponses()[0], nil
}

// Free releases devices of a container.
func (k *Kubelet) Free(name string, ids ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		delete(k.resources[name].inUse, id)
	}
}

// Record writes the checkpoint in which the kubelet keeps the devices of each pod, by the pod's UID: IDs of one resource. The kubelet
// writes it after each allocation.
func (k *Kubelet) Record(name string, pods map[string][]string) {
	k.t.Helper()
	type entry struct {
		PodUID, ContainerName, ResourceName string
		DeviceIDs                           map[string][]string
		AllocResp                           []byte
	}
	var written struct {
		Data struct {
			PodDeviceEntries  []entry
			RegisteredDevices map[string][]string
		}
		Checksum uint64
	}
	for pod, ids := range pods {
		written.Data.PodDeviceEntries = append(written.Data.PodDeviceEntries, entry{pod, "main", name, map[string][]string{"-1": ids}, nil})
	}
	raw, err := json.Marshal(written)
	if err != nil {
		k.t.Fatal(err)
	}
	file := filepath.Join(k.dir, "kubelet_internal_checkpoint")
	if err := errors.Join(os.WriteFile(file+".new", raw, 0o600), os.Rename(file+".new", file)); err != nil {
		k.t.Fatal(err)
	}
}

// IDs returns the sorted IDs of devices.
func IDs(devices []*pluginapi.Device) []string {
	ids := make([]string, len(devices))
	for i, d := range devices {
		ids[i] = d.GetID()
	}
	slices.Sort(ids)
	return ids
}
