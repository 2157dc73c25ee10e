package plugin

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/gputest"
)

// healths follows the health of the node's devices as the kubelet does, and returns a function that waits for the next report.
func (b *bench) healths() func() map[string]*drahealth.DeviceHealth {
	b.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(b.options.KubeletRoot, "plugins", devices.Driver, "dra.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	b.Cleanup(func() {
		cancel()
		_ = conn.Close()
	})
	stream, err := drahealth.NewDRAResourceHealthClient(conn).NodeWatchResources(ctx, &drahealth.NodeWatchResourcesRequest{})
	if err != nil {
		b.Fatal(err)
	}
	return func() map[string]*drahealth.DeviceHealth {
		b.Helper()
		report, err := stream.Recv()
		if err != nil {
			b.Fatal(err)
		}
		out := map[string]*drahealth.DeviceHealth{}
		for _, d := range report.Devices {
			if d.Device.PoolName != "n1-gpu" {
				b.Errorf("%s is reported in pool %s", d.Device.DeviceName, d.Device.PoolName)
			}
			out[d.Device.DeviceName] = d
		}
		return out
	}
}

func TestHealthServiceStreamsHealthOfEveryDevice(t *testing.T) {
	m := gputest.New(t, 2)
	b := newBench(t, m)
	published := 0
	for _, s := range b.slices() {
		published += len(s.Spec.Devices)
	}
	next := b.healths()
	first := next()
	if len(first) != published {
		t.Errorf("%d devices are reported, %d are published", len(first), published)
	}
	for name, d := range first {
		if d.Health != drahealth.HealthStatus_HEALTHY || d.HealthCheckTimeoutSeconds <= 0 || d.LastUpdatedTime == 0 {
			t.Errorf("%s: %v", name, d)
		}
	}
	m.Event(1, nvml.EventTypeXidCriticalError, 119)
	second := next()
	for name, d := range second {
		want := drahealth.HealthStatus_HEALTHY
		if strings.HasPrefix(name, "gpu-1") {
			want = drahealth.HealthStatus_UNHEALTHY
		}
		if d.Health != want || (want == drahealth.HealthStatus_UNHEALTHY) != strings.Contains(d.Message, "XID 119") {
			t.Errorf("after an XID on GPU 1, %s is %v: %q", name, d.Health, d.Message)
		}
	}
	// A warning keeps no claim away: the device stays healthy, with a message.
	m.Event(0, nvml.EventTypeXidCriticalError, 63)
	if d := next()["gpu-0"]; d.Health != drahealth.HealthStatus_HEALTHY || !strings.Contains(d.Message, "XID 63") {
		t.Errorf("after a warning gpu-0 is %v: %q", d.Health, d.Message)
	}
}
