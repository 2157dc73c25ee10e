package deviceplugin

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/filewatch/filewatchtest"
)

func TestAnswersReportsUnreachableSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "deaf") // t.TempDir() leaves no room for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	host := NewHost(dir, &filewatch.Watcher{}, nil)
	if err := os.MkdirAll(host.dir, 0o750); err != nil {
		t.Fatal(err)
	}
	resource := newResource(host, "example.com/thing", nil)
	host.resources[resource.name] = resource
	if err := host.Answers(); err != nil {
		t.Errorf("without a kubelet there is nobody to answer: %v", err)
	}
	if err := os.WriteFile(filepath.Join(host.dir, kubeletSocket), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "by which the kubelet allocates example.com/thing, does not answer"
	if err := host.Answers(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("without a socket: got %v, want an error with %q", err, want)
	}
	deaf, err := net.Listen("unix", resource.socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Answers(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("with a socket that nobody answers on: got %v, want an error with %q", err, want)
	}
	_ = deaf.Close()
	served, err := resource.listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(served.close)
	if err := host.Answers(); err != nil {
		t.Errorf("it answers: %v", err)
	}
}

// TestAnswersReportsARemovedDirectory: in the plugin's container the kubelet's directory is a mount. When it is removed on the node, the
// mount has neither sockets nor a kubelet's, and the kubelet makes another directory.
func TestAnswersReportsARemovedDirectory(t *testing.T) {
	host := NewHost(t.TempDir(), &filewatch.Watcher{}, nil)
	if err := os.Symlink(filewatchtest.Removed(t), host.dir); err != nil {
		t.Fatal(err)
	}
	if err := host.Answers(); err == nil || !strings.Contains(err.Error(), host.dir+" was removed on the node") {
		t.Errorf("got %v", err)
	}
}
