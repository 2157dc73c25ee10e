package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// server is one gRPC server on the resource's socket. A nil server is a stopped one.
type server struct {
	pluginapi.UnimplementedDevicePluginServer
	resource *Resource
	grpc     *grpc.Server
	identity identity
	served   chan struct{} // closed when Serve has returned
	closing  chan struct{} // closed to end the streams

	mu      sync.Mutex
	streams int
	left    bool // the last stream ended
}

// listen creates the socket again and serves on it.
func (r *Resource) listen() (*server, error) {
	if err := os.Remove(r.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier run: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the kubelet: %w", err)
	}
	// The path may belong to another server by the time this one closes.
	listener.SetUnlinkOnClose(false)
	s := &server{resource: r, grpc: grpc.NewServer(), served: make(chan struct{}), closing: make(chan struct{})}
	if s.identity, err = identify(r.socket); err != nil {
		_ = listener.Close()
		return nil, err
	}
	pluginapi.RegisterDevicePluginServer(s.grpc, s)
	go func() { // Ends when close stops the server.
		defer close(s.served)
		_ = s.grpc.Serve(listener)
		r.wake()
	}()
	return s, nil
}

// close stops the server. It removes the socket, unless the path belongs to another server by now.
func (s *server) close() {
	if s == nil {
		return
	}
	close(s.closing)
	s.grpc.Stop()
	<-s.served
	if now, err := identify(s.resource.socket); err == nil && now == s.identity {
		_ = os.Remove(s.resource.socket)
	}
}

// alive reports whether the server serves and its socket is where the kubelet looks for it.
func (s *server) alive() bool {
	if s == nil {
		return false
	}
	select {
	case <-s.served:
		return false
	default:
	}
	now, err := identify(s.resource.socket)
	return err == nil && now == s.identity
}

// abandoned reports whether the kubelet once had a stream and has none now.
func (s *server) abandoned() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left && s.streams == 0
}

// watched reports whether the kubelet has a stream.
func (s *server) watched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams > 0
}

// adopt clears the mark that the server was abandoned.
func (s *server) adopt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = false
}

// GetDevicePluginOptions returns the plugin's features.
func (s *server) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return s.resource.options(), nil
}

// ListAndWatch sends the devices, and sends them again whenever they change.
func (s *server) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	s.mu.Lock()
	s.streams++
	s.left = false
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.streams--
		s.left = true
		s.mu.Unlock()
		s.resource.wake()
	}()
	for {
		response, changed := s.resource.list.get()
		if err := stream.Send(response); err != nil {
			return err
		}
		s.resource.host.metrics.sends.WithLabelValues(s.resource.name).Inc()
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		case <-s.closing:
			return nil
		}
	}
}

// GetPreferredAllocation returns the available devices that the backend prefers.
func (s *server) GetPreferredAllocation(ctx context.Context,
	request *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	preferrer, ok := s.resource.backend.(Preferrer)
	if !ok {
		return nil, status.Errorf(codes.Unimplemented, "%s has no preferred allocation", s.resource.name)
	}
	response := &pluginapi.PreferredAllocationResponse{}
	for _, container := range request.GetContainerRequests() {
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{
			DeviceIDs: s.resource.prefer(ctx, preferrer, container),
		})
	}
	return response, nil
}

// Allocate returns the device nodes, mounts and CDI devices of each container.
func (s *server) Allocate(ctx context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, container := range request.GetContainerRequests() {
		allocated, err := s.allocate(ctx, container.GetDevicesIds())
		if err != nil {
			s.resource.host.metrics.allocations.WithLabelValues(s.resource.name, "error").Inc()
			klog.FromContext(ctx).Error(err, "Allocation refused", "resource", s.resource.name, "devices", container.GetDevicesIds())
			return nil, err
		}
		s.resource.host.metrics.allocations.WithLabelValues(s.resource.name, "ok").Inc()
		response.ContainerResponses = append(response.ContainerResponses, allocated)
	}
	return response, nil
}

func (s *server) allocate(ctx context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	var unknown []string
	for _, id := range ids {
		if !s.resource.list.has(id) {
			unknown = append(unknown, id)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, status.Errorf(codes.NotFound,
			"allocate %s: device %s is not among the %d of this node; the kubelet's list is older than the last change",
			s.resource.name, strings.Join(unknown, ", "), s.resource.list.len())
	}
	if err := s.resource.awaitUnused(ctx, ids); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "allocate %s: %v", s.resource.name, err)
	}
	allocated, err := s.resource.backend.Allocate(ctx, ids)
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "allocate %s: %v", s.resource.name, err)
	}
	if len(allocated.GetCdiDevices()) > 0 {
		if err := s.resource.keepSpec(ctx); err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "allocate %s: %v", s.resource.name, err)
		}
		s.resource.expectRead(time.Now())
	}
	return allocated, nil
}
