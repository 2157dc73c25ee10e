package deviceplugin_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/drivers/node/filewatch"
)

const widget = "example.com/widget"

// backend returns one device node per ID, and prefers high IDs.
type backend struct{ err error }

func (b backend) Allocate(_ context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	if b.err != nil {
		return nil, b.err
	}
	response := &pluginapi.ContainerAllocateResponse{}
	for _, id := range ids {
		response.Devices = append(response.Devices, &pluginapi.DeviceSpec{ContainerPath: "/dev/widget" + id, HostPath: "/dev/widget" + id,
			Permissions: "rwm"})
	}
	return response, nil
}

func (b backend) Prefer(available, _ []string, size int) []string {
	return available[len(available)-size:]
}

// plain has no preference.
type plain struct{ backend backend }

func (p plain) Allocate(ctx context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	return p.backend.Allocate(ctx, ids)
}

func devices(n int) []deviceplugin.Device {
	list := make([]deviceplugin.Device, n)
	for i := range list {
		list[i] = deviceplugin.Device{ID: fmt.Sprint(i), Healthy: true, NUMANodes: []int{i % 2}}
	}
	return list
}

// start runs a host until the test ends.
func start(t *testing.T, kubelet *kubelettest.Kubelet) *deviceplugin.Host {
	t.Helper()
	host := deviceplugin.NewHost(kubelet.Root(), &filewatch.Watcher{}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := host.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); group.Wait() })
	return host
}

func serve(t *testing.T, host *deviceplugin.Host, b deviceplugin.Backend, list []deviceplugin.Device) *deviceplugin.Resource {
	t.Helper()
	r, err := host.Serve(widget, b, list)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestResourceListsDevicesWithNUMANodes(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	list := devices(2)
	list[1].Healthy = false
	list[1].NUMANodes = nil
	serve(t, start(t, kubelet), backend{}, list)
	view := kubelet.Await(widget, "list", func(r kubelettest.Resource) bool { return r.Lists > 0 })
	if view.Capacity != 2 || view.Allocatable != 1 {
		t.Errorf("got %d of %d", view.Allocatable, view.Capacity)
	}
	if nodes := view.Devices[0].GetTopology().GetNodes(); len(nodes) != 1 || nodes[0].GetID() != 0 {
		t.Errorf("NUMA nodes of a device on node 0: %v", nodes)
	}
	if view.Devices[1].GetTopology() != nil {
		t.Error("a device without NUMA node has a hint")
	}
}

func TestResourceListsAndAllocatesManyDevices(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	list := make([]deviceplugin.Device, 3000)
	for i := range list {
		list[i] = deviceplugin.Device{ID: fmt.Sprintf("%d-%d", i/1000, i%1000), Healthy: i%3 > 0, NUMANodes: [][]int{nil, {0}, {1, 300}}[i/1000]}
	}
	serve(t, start(t, kubelet), backend{}, list)
	view := kubelet.Await(widget, "list", func(r kubelettest.Resource) bool { return r.Lists > 0 })
	if view.Capacity != len(list) || view.Allocatable != 2000 {
		t.Fatalf("the kubelet sees %d devices, %d of them healthy; want %d and 2000", view.Capacity, view.Allocatable, len(list))
	}
	for i, got := range view.Devices {
		var nodes []int
		for _, node := range got.GetTopology().GetNodes() {
			nodes = append(nodes, int(node.GetID()))
		}
		seen := deviceplugin.Device{ID: got.GetID(), Healthy: got.GetHealth() == pluginapi.Healthy, NUMANodes: nodes}
		if diff := cmp.Diff(list[i], seen); diff != "" {
			t.Fatalf("device %d (-want +got):\n%s", i, diff)
		}
	}
	for i := range list {
		if _, err := kubelet.AllocateIDs(t.Context(), widget, list[i].ID); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"", "0", "0-", "0-00", "0-1000", "00-0", "2-9999", "3-0", "~"} {
		if _, err := kubelet.AllocateIDs(t.Context(), widget, "1-1", id); err == nil || !strings.Contains(err.Error(), "not among the 3000") {
			t.Errorf("%q was allocated (%v), want it refused", id, err)
		}
	}
}

func TestResourceRegistersWhenKubeletStartsLater(t *testing.T) {
	kubelet := kubelettest.New(t)
	serve(t, start(t, kubelet), backend{}, devices(3))
	kubelet.Start()
	kubelet.AwaitAllocatable(widget, 3)
}

func TestResourceRegistersAgainWhenKubeletRestarts(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	serve(t, start(t, kubelet), backend{}, devices(1000))
	kubelet.AwaitAllocatable(widget, 1000)
	for restart := range 3 {
		kubelet.Stop()
		begin := time.Now()
		kubelet.Start()
		kubelet.AwaitAllocatable(widget, 1000)
		t.Logf("restart %d: %v", restart+1, time.Since(begin)) // under 2 s on an idle machine; a busy machine proves nothing
	}
	// A kubelet that shuts down may end the stream before it removes its socket. The plugin then registers with it once more, which is
	// harmless.
	if n := kubelet.View(widget).Registrations; n < 4 {
		t.Errorf("%d registrations for one start and three restarts", n)
	}
}

func TestResourceRegistersAgainWhenKubeletDropsStream(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	serve(t, start(t, kubelet), backend{}, devices(3))
	kubelet.AwaitAllocatable(widget, 3)
	kubelet.DropStreams()
	kubelet.Await(widget, "second registration", func(r kubelettest.Resource) bool { return r.Registrations == 2 && r.Allocatable == 3 })
}

func TestResourceRestoresRemovedSocket(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	serve(t, start(t, kubelet), backend{}, devices(3))
	kubelet.AwaitAllocatable(widget, 3)
	if err := os.Remove(filepath.Join(kubelet.Root(), "device-plugins", "gpufabric-example.com_widget.sock")); err != nil {
		t.Fatal(err)
	}
	kubelet.Await(widget, "second registration", func(r kubelettest.Resource) bool { return r.Registrations == 2 && r.Allocatable == 3 })
}

func TestResourceSendsListOnlyWhenItChanged(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	resource := serve(t, start(t, kubelet), backend{}, devices(3))
	kubelet.AwaitAllocatable(widget, 3)
	for range 5 {
		resource.Update(devices(3))
	}
	changed := devices(3)
	changed[2].Healthy = false
	resource.Update(changed)
	// If one of the five had been sent, it would have arrived before this one.
	if view := kubelet.AwaitAllocatable(widget, 2); view.Lists != 2 {
		t.Errorf("%d lists for one change", view.Lists)
	}
	changed = devices(3)
	changed[0].NUMANodes = []int{1}
	resource.Update(changed)
	kubelet.AwaitAllocatable(widget, 3)
}

func TestChangesDuringAKubeletRestartAreNotLost(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	resource := serve(t, start(t, kubelet), backend{}, devices(3))
	kubelet.AwaitAllocatable(widget, 3)
	kubelet.Stop()
	resource.Update(devices(5))
	kubelet.Start()
	kubelet.AwaitAllocatable(widget, 5)
}

func TestAllocation(t *testing.T) {
	for _, test := range []struct {
		name    string
		backend deviceplugin.Backend
		ids     []string // the devices to allocate; none: two that the kubelet chooses
		want    []string // device paths
		err     string
	}{
		{"the preferred devices are given", backend{}, nil, []string{"/dev/widget2", "/dev/widget3"}, ""},
		{"a backend without preference gets the kubelet's choice", plain{}, nil, []string{"/dev/widget0", "/dev/widget1"}, ""},
		{"a device that is not there is refused by name", backend{}, []string{"1", "9", "7"}, nil, "device 7, 9 is not among the 4"},
		{"the backend's reason reaches the pod", backend{errors.New("port 1 of mlx5_0 is down")}, []string{"1"}, nil, "port 1 of mlx5_0 is down"},
	} {
		t.Run(test.name, func(t *testing.T) {
			kubelet := kubelettest.New(t)
			kubelet.Start()
			serve(t, start(t, kubelet), test.backend, devices(4))
			kubelet.AwaitAllocatable(widget, 4)
			var response *pluginapi.ContainerAllocateResponse
			var err error
			if test.ids == nil {
				_, response, err = kubelet.Allocate(t.Context(), widget, 2)
			} else {
				response, err = kubelet.AllocateIDs(t.Context(), widget, test.ids...)
			}
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, want an error with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range response.GetDevices() {
				got = append(got, d.GetContainerPath())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestHostServesResourceAgainAfterItsStop(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	host := start(t, kubelet)
	resource := serve(t, host, backend{}, devices(2))
	kubelet.AwaitAllocatable(widget, 2)
	if _, err := host.Serve(widget, backend{}, nil); err == nil || !strings.Contains(err.Error(), widget) {
		t.Errorf("serving a resource twice: got %v", err)
	}
	resource.Stop()
	kubelet.Await(widget, "end of its devices", func(r kubelettest.Resource) bool { return r.Capacity == 0 })
	serve(t, host, backend{}, devices(7))
	kubelet.AwaitAllocatable(widget, 7)
}

func TestResourceFindsSocketForLongName(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	name := "example.com/" + strings.Repeat("x", 63)
	if _, err := start(t, kubelet).Serve(name, backend{}, devices(1)); err != nil {
		t.Fatal(err)
	}
	kubelet.AwaitAllocatable(name, 1)
}

func TestHostRestartsManyResources(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	host := start(t, kubelet)
	name := func(i int) string { return fmt.Sprintf("example.com/widget-%d", i) }
	for i := range 16 {
		if _, err := host.Serve(name(i), backend{}, devices(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for i := range 16 {
			kubelet.AwaitAllocatable(name(i), i+1)
		}
		kubelet.Stop()
		kubelet.Start()
	}
}
