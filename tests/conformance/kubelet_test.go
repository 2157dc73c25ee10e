package conformance

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// kubelet is the part of the kubelet that a device plugin talks to: it accepts registrations and gets from each plugin its
// devices.
type kubelet struct {
	deviceplugin.UnimplementedRegistrationServer
	dir           string
	registrations chan *deviceplugin.RegisterRequest
}

// newKubelet serves in the directory that the node's programs see as /var/lib/kubelet/device-plugins.
func newKubelet(t *testing.T, n *node) *kubelet {
	t.Helper()
	k := &kubelet{dir: filepath.Join(n.root, "var/lib/kubelet/device-plugins"), registrations: make(chan *deviceplugin.RegisterRequest, 16)}
	mkdir(t, k.dir)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(k.dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	deviceplugin.RegisterRegistrationServer(server, k)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return k
}

// Register passes the plugin's request to the test.
func (k *kubelet) Register(ctx context.Context, request *deviceplugin.RegisterRequest) (*deviceplugin.Empty, error) {
	select {
	case k.registrations <- request:
		return &deviceplugin.Empty{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// resource is one registered plugin with its devices.
type resource struct {
	name    string
	client  deviceplugin.DevicePluginClient
	devices []*deviceplugin.Device
}

// await waits for the next plugin to register and to list its devices.
func (k *kubelet) await(ctx context.Context, t *testing.T) resource {
	t.Helper()
	select {
	case request := <-k.registrations:
		r, err := k.list(ctx, t, request)
		if err != nil {
			t.Fatalf("%s: %v", request.ResourceName, err)
		}
		return r
	case <-ctx.Done():
		t.Fatal("no plugin registered")
		return resource{}
	}
}

func (k *kubelet) list(ctx context.Context, t *testing.T, request *deviceplugin.RegisterRequest) (resource, error) {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+filepath.Join(k.dir, request.Endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return resource{}, err
	}
	t.Cleanup(func() { _ = connection.Close() })
	client := deviceplugin.NewDevicePluginClient(connection)
	watch, err := client.ListAndWatch(ctx, &deviceplugin.Empty{})
	if err != nil {
		return resource{}, err
	}
	list, err := watch.Recv()
	if err != nil {
		return resource{}, fmt.Errorf("list devices: %w", err)
	}
	return resource{request.ResourceName, client, list.Devices}, nil
}

func (r resource) allocate(ctx context.Context, t *testing.T, id string) *deviceplugin.ContainerAllocateResponse {
	t.Helper()
	response, err := r.client.Allocate(ctx, &deviceplugin.AllocateRequest{
		ContainerRequests: []*deviceplugin.ContainerAllocateRequest{{DevicesIds: []string{id}}}})
	if err != nil {
		t.Fatalf("allocate %s of %s: %v", id, r.name, err)
	}
	return response.ContainerResponses[0]
}
