package plugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
)

// lister is the kubelet's pod resources API.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	list *podresources.ListPodResourcesResponse
}

func (l lister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return l.list, nil
}

// serve runs the kubelet's API under a root directory, which it returns.
func servePodResources(t *testing.T, list *podresources.ListPodResourcesResponse) string {
	t.Helper()
	root, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.MkdirAll(filepath.Join(root, "pod-resources"), 0o750); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(root, "pod-resources/kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, lister{list: list})
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return root
}

// twoPorts is a node of a healthy HCA and one that is down.
func twoPorts(t *testing.T) (*sysfstest.Tree, metricsView) {
	t.Helper()
	tree := sysfstest.New(t)
	tree.AddHCA(sysfstest.HCA{Function: sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0"},
		Nets: []string{"ibp3s0"}})
	tree.AddHCA(sysfstest.HCA{Function: sysfstest.Function{Parent: "pci0000:5d/0000:5d:00.0", Address: "0000:5e:00.0"}, Ethernet: true})
	devices, err := inventory.Discover(t.Context(), inventory.Roots{Sysfs: tree.Sys})
	if err != nil {
		t.Fatal(err)
	}
	return tree, metricsView{
		Devices: devices,
		State: func(k health.Key) health.State {
			if k.Device == "mlx5_0" {
				return health.State{Phase: health.Up}
			}
			return health.State{Phase: health.Down}
		},
		Unit: func(resource, id string) []*inventory.HCA {
			if resource != "rdma/a" {
				return nil
			}
			return []*inventory.HCA{&devices.HCAs[int(id[0]-'0')%2]}
		},
		Device: func(name string) []health.Key {
			if name == "pci-0000-5e-00-0-1" {
				return []health.Key{{Device: "mlx5_1", Port: 1}}
			}
			return nil
		},
	}
}

func TestPortsAreJoinedToTheirPods(t *testing.T) {
	container := func(name string, devices []*podresources.ContainerDevices,
		claims ...*podresources.DynamicResource) []*podresources.ContainerResources {
		return []*podresources.ContainerResources{{Name: name, Devices: devices, DynamicResources: claims}}
	}
	root := servePodResources(t, &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		{Name: "server", Namespace: "ml", Containers: container("main", []*podresources.ContainerDevices{
			{ResourceName: "rdma/a", DeviceIds: []string{"0", "2"}}, {ResourceName: "nvidia.com/gpu", DeviceIds: []string{"0"}},
		})},
		{Name: "client", Namespace: "ml", Containers: container("main", nil,
			&podresources.DynamicResource{ClaimName: "nic", ClaimNamespace: "ml", ClaimResources: []*podresources.ClaimResource{
				{DriverName: "rdma.gpufabric.io", PoolName: "node-a-rdma", DeviceName: "pci-0000-5e-00-0-1"},
				{DriverName: "gpu.nvidia.com", PoolName: "node-a-gpu", DeviceName: "gpu-0"},
			}})},
	}})
	tree, view := twoPorts(t)
	e := newPortMetrics(tree.Sys, root)
	e.Set(view)
	want := `
# HELP gpufabric_rdma_port_pod_info A container that holds a port, or shares it; always 1.
# TYPE gpufabric_rdma_port_pod_info gauge
gpufabric_rdma_port_pod_info{container="main",device="mlx5_0",namespace="ml",pod="server",port="1",resource="rdma/a"} 1
gpufabric_rdma_port_pod_info{container="main",device="mlx5_1",namespace="ml",pod="client",port="1",resource="claim/nic"} 1
# HELP gpufabric_rdma_port_up Whether a port can carry traffic: 1, or 0. Debounced; this is what pods are scheduled by.
# TYPE gpufabric_rdma_port_up gauge
gpufabric_rdma_port_up{device="mlx5_0",port="1"} 1
gpufabric_rdma_port_up{device="mlx5_1",port="1"} 0
# HELP gpufabric_rdma_port_rate_bytes_per_second A port's rate in bytes a second, as it was at the last discovery.
# TYPE gpufabric_rdma_port_rate_bytes_per_second gauge
gpufabric_rdma_port_rate_bytes_per_second{device="mlx5_0",port="1"} 5e+10
gpufabric_rdma_port_rate_bytes_per_second{device="mlx5_1",port="1"} 5e+10
# HELP gpufabric_rdma_port_transmitted_bytes_total Bytes that a port sent.
# TYPE gpufabric_rdma_port_transmitted_bytes_total counter
gpufabric_rdma_port_transmitted_bytes_total{device="mlx5_0",port="1"} 4000
gpufabric_rdma_port_transmitted_bytes_total{device="mlx5_1",port="1"} 4000
# HELP gpufabric_rdma_port_events_total Any other counter of a port, by its name in sysfs.
# TYPE gpufabric_rdma_port_events_total counter
gpufabric_rdma_port_events_total{counter="link_downed",device="mlx5_0",port="1"} 1003
gpufabric_rdma_port_events_total{counter="link_downed",device="mlx5_1",port="1"} 1003
gpufabric_rdma_port_events_total{counter="out_of_sequence",device="mlx5_0",port="1"} 7
gpufabric_rdma_port_events_total{counter="out_of_sequence",device="mlx5_1",port="1"} 7
gpufabric_rdma_port_events_total{counter="symbol_error",device="mlx5_0",port="1"} 1002
gpufabric_rdma_port_events_total{counter="symbol_error",device="mlx5_1",port="1"} 1002
# HELP gpufabric_rdma_scrape_complete Whether counters and holders could be read for this scrape: 1, or 0.
# TYPE gpufabric_rdma_scrape_complete gauge
gpufabric_rdma_scrape_complete{part="counters"} 1
gpufabric_rdma_scrape_complete{part="holders"} 1
`
	err := testutil.CollectAndCompare(e, strings.NewReader(want), "gpufabric_rdma_port_pod_info", "gpufabric_rdma_port_up",
		"gpufabric_rdma_port_rate_bytes_per_second",
		"gpufabric_rdma_port_transmitted_bytes_total", "gpufabric_rdma_port_events_total", "gpufabric_rdma_scrape_complete")
	if err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(e); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

func TestMetricsHavePortsWithoutTheKubelet(t *testing.T) {
	tree, view := twoPorts(t)
	e := newPortMetrics(tree.Sys, t.TempDir())
	e.holders = func() ([]holder, error) { return nil, errors.New("no kubelet") }
	if n := testutil.CollectAndCount(e); n != 0 {
		t.Errorf("%d metrics before the first discovery", n)
	}
	e.Set(view)
	want := `
# HELP gpufabric_rdma_scrape_complete Whether counters and holders could be read for this scrape: 1, or 0.
# TYPE gpufabric_rdma_scrape_complete gauge
gpufabric_rdma_scrape_complete{part="counters"} 1
gpufabric_rdma_scrape_complete{part="holders"} 0
`
	if err := testutil.CollectAndCompare(e, strings.NewReader(want), "gpufabric_rdma_scrape_complete"); err != nil {
		t.Error(err)
	}
}
