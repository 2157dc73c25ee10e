package draplugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/options"
)

// foreign is another driver of the same name, which uses the library with its own paths, as NVIDIA's does.
type foreign struct {
	kubeletplugin.DRAPlugin
	*kubeletplugin.Helper
}

func (foreign) HandleError(context.Context, error, string) {}

// foreignPool is the name that NVIDIA's driver gives its pool.
const foreignPool = "node-a"

func startForeign(t *testing.T, client kubernetes.Interface, dir string) foreign {
	t.Helper()
	for _, made := range []string{filepath.Join(dir, "plugins", driver), filepath.Join(dir, "plugins_registry")} {
		if err := os.MkdirAll(made, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	var f foreign
	helper, err := kubeletplugin.Start(t.Context(), f, kubeletplugin.DriverName(driver), kubeletplugin.NodeName("node-a"),
		kubeletplugin.KubeClient(client), kubeletplugin.PluginDataDirectoryPath(filepath.Join(dir, "plugins", driver)),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(dir, "plugins_registry")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(helper.Stop)
	f.Helper = helper
	if err := helper.PublishResources(t.Context(), onePool(foreignPool)); err != nil {
		t.Fatal(err)
	}
	return f
}

func onePool(name string) resourceslice.DriverResources {
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{name: {Slices: []resourceslice.Slice{
		{Devices: []resourceapi.Device{{Name: "gpu-0"}}}}}}}
}

func nodeOf(dir string) options.Node {
	return options.Node{NodeName: "node-a", DriverRoot: "/", SysfsRoot: dir, DevRoot: dir, CDIRoot: dir + "/cdi", StateDir: dir + "/state",
		ProcDevices: dir + "/devices", KubeletRoot: dir}
}

// awaitPools waits until the only published slice is that of one pool.
func awaitPools(t *testing.T, client *fake.Clientset, want string) {
	t.Helper()
	changes, err := client.ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	for patience := time.After(time.Minute); ; {
		list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var pools []string
		for _, slice := range list.Items {
			pools = append(pools, slice.Spec.Pool.Name)
		}
		if slices.Equal(pools, []string{want}) {
			return
		}
		select {
		case <-changes.ResultChan():
		case <-patience:
			t.Fatalf("published are the pools %v, want %s alone", pools, want)
		}
	}
}

// assertAnswers fails the test unless the kubelet reaches a plugin by the driver's socket.
func assertAnswers(t *testing.T, dir string) {
	t.Helper()
	if err := ask(filepath.Join(dir, "plugins_registry", driver+"-reg.sock"), func(connection *grpc.ClientConn) error {
		_, err := registerapi.NewRegistrationClient(connection).GetInfo(t.Context(), &registerapi.InfoRequest{})
		return err
	}); err != nil {
		t.Errorf("the kubelet does not reach the plugin: %v", err)
	}
}

func TestStartWaitsWhileAnotherPluginServesTheDriver(t *testing.T) {
	client := versioned()
	if err := client.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "dra") // t.TempDir() leaves no room for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	other := startForeign(t, client, dir)
	awaitPools(t, client, foreignPool)
	events := record.NewFakeRecorder(100)
	begun := make(chan *Plugin, 1)
	go func() {
		p, err := Start(t.Context(), Config{Driver: driver, Pool: "pool", Preparer: &testKind{prepare: inject}, Metrics: metrics.New(driver),
			Recorder: events, Client: client, Node: nodeOf(dir), takeover: 50 * time.Millisecond})
		if err != nil {
			t.Error(err)
		}
		begun <- p
	}()
	select {
	case event := <-events.Events:
		if !strings.Contains(event, reasonOtherDriver) || !strings.Contains(event, driver+"-reg.sock") {
			t.Errorf("Event %q, want %s with the other's socket", event, reasonOtherDriver)
		}
	case <-begun:
		t.Fatal("the plugin has registered over another one, without an Event")
	}
	assertAnswers(t, dir)
	awaitPools(t, client, foreignPool)

	other.Stop()
	p := <-begun
	if p == nil {
		t.Fatal("the plugin did not start after the other had ended")
	}
	t.Cleanup(p.Stop)
	if err := p.Publish(onePool("pool")); err != nil {
		t.Fatal(err)
	}
	awaitPools(t, client, "pool")
}

func TestPluginWithdrawsAndEndsWhenAnotherOneRegisters(t *testing.T) {
	client := versioned()
	p, dir := started(t, client)
	if err := p.Publish(onePool("pool")); err != nil {
		t.Fatal(err)
	}
	awaitPools(t, client, "pool")
	startForeign(t, client, dir)
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Fatal("the plugin serves on, although the kubelet calls the other one")
	}
	if err := p.Err(); !errors.Is(err, errOtherDriver) {
		t.Errorf("ended by %v, want %v", err, errOtherDriver)
	}
	if event := <-p.config.Recorder.(*record.FakeRecorder).Events; !strings.Contains(event, reasonOtherDriver) {
		t.Errorf("Event %q, want %s", event, reasonOtherDriver)
	}
	awaitPools(t, client, foreignPool)
	if err := p.Publish(onePool("pool")); err != nil {
		t.Errorf("a publication after the end: %v", err)
	}
	p.Stop()
	assertAnswers(t, dir)
	awaitPools(t, client, foreignPool)
}

func TestPluginRemovesItsSocketsWhenItStops(t *testing.T) {
	p, dir := started(t, versioned())
	p.Stop()
	for _, name := range []string{"plugins/" + driver + "/dra.sock", "plugins_registry/" + driver + "-reg.sock"} {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("socket %s is left (%v)", path, err)
		}
	}
}
