package deviceplugin

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/filewatch"
)

// byCDI answers with a device of a CDI spec, or with none.
type byCDI struct{ spec, device string }

func (b byCDI) Spec() string { return b.spec }

func (b byCDI) Allocate(context.Context, []string) (*pluginapi.ContainerAllocateResponse, error) {
	response := &pluginapi.ContainerAllocateResponse{}
	if b.device != "" {
		response.CdiDevices = []*pluginapi.CDIDevice{{Name: b.device}}
	}
	return response, nil
}

// TestResourceReportsUnreadSpecWhenContainerWaits follows the specs of device plugins. They are written long before a container
// requests a device, so an unread spec alone is no problem.
func TestResourceReportsUnreadSpecWhenContainerWaits(t *testing.T) {
	directory := t.TempDir()
	write := func(name string) string {
		t.Helper()
		path := filepath.Join(directory, name)
		if err := (atomicfile.Writer{}).Write(path, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	host := NewHost(t.TempDir(), &filewatch.Watcher{}, nil)
	for name, backend := range map[string]byCDI{"x/asked": {write("asked"), "x/y=z"}, "x/not-asked": {write("not-asked"), "x/y=z"},
		"x/without-cdi": {write("without"), ""}, "x/no-spec": {"", "x/y=z"}} {
		if _, err := host.Serve(name, backend, []Device{{ID: "1", Healthy: true}}); err != nil {
			t.Fatal(err)
		}
	}
	allocate := func(name string) {
		t.Helper()
		request := &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{"1"}}}}
		if _, err := (&server{resource: host.resources[name]}).Allocate(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	want := func(before time.Time, names ...string) {
		t.Helper()
		unread, err := host.unread(before)
		if err != nil {
			t.Skip(err) // noatime
		}
		if !slices.Equal(unread, names) {
			t.Errorf("unread are %q, want %q", unread, names)
		}
	}
	later := time.Now().Add(time.Hour)
	want(later)
	for _, name := range []string{"x/asked", "x/without-cdi", "x/no-spec"} {
		allocate(name)
	}
	want(time.Now().Add(-time.Minute)) // they have waited for a moment
	want(later, "resource x/asked")
	// A rewritten spec may be read when a container requests it.
	time.Sleep(20 * time.Millisecond) // file systems keep time by a tick of the kernel
	write("asked")
	want(later)
	allocate("x/asked")
	want(later, "resource x/asked")
	if _, err := os.ReadFile(filepath.Join(directory, "asked")); err != nil { // as a container runtime does
		t.Fatal(err)
	}
	want(later)
}
