package draplugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/capability"
	"gpufabric.io/drivers/node/capability/capabilitytest"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/options"
)

// started is a plugin with its sockets below the returned directory.
func started(t *testing.T, client *fake.Clientset) (*Plugin, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "dra") // t.TempDir() leaves no room for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := client.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}); err != nil {
		t.Fatal(err)
	}
	p, err := Start(t.Context(), Config{
		Driver: driver, Pool: "pool", Preparer: &testKind{prepare: inject}, Metrics: metrics.New(driver), Recorder: record.NewFakeRecorder(100),
		Client: client,
		Node: options.Node{NodeName: "node-a", DriverRoot: "/", SysfsRoot: dir, DevRoot: dir, CDIRoot: dir + "/cdi", StateDir: dir + "/state",
			ProcDevices: dir + "/devices", KubeletRoot: dir},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p, dir
}

// A policy or a missing right denies the dry runs of a server whose gates are off: what it drops from the first write shows it.
func TestPublishWithholdsBrokenDeviceWhenDryRunsAreDenied(t *testing.T) {
	client := versioned()
	drops := func(action clienttesting.Action) (bool, runtime.Object, error) {
		capabilitytest.Drop(action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice), capability.Missing{Taints: true})
		return false, nil, nil
	}
	client.PrependReactor("create", "resourceslices", drops)
	client.PrependReactor("update", "resourceslices", drops)
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if create, ok := action.(clienttesting.CreateActionImpl); ok && len(create.CreateOptions.DryRun) > 0 {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "resourceslices"}, "", nil)
		}
		return false, nil, nil
	})
	p, _ := started(t, client)
	changes, err := client.ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	broken := resourceapi.Device{Name: "broken", Taints: []resourceapi.DeviceTaint{{Key: "test.example.com/xid",
		Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
	if err := p.Publish(resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"pool": {Slices: []resourceslice.Slice{
		{Devices: []resourceapi.Device{broken, {Name: "sound"}}}}}}}); err != nil {
		t.Fatal(err)
	}
	patience := time.After(time.Minute)
	for published := ""; published != "sound "; {
		select {
		case <-changes.ResultChan():
		case <-patience:
			t.Fatalf("published are %q; want the sound device alone, since the taint of the other is dropped", published)
		}
		list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		published = ""
		for _, slice := range list.Items {
			for _, device := range slice.Spec.Devices {
				published += device.Name + " "
			}
		}
	}
}

// The plugin has queried the server for its first publication, while its loop already waited.
func TestPluginReportsFeaturesOfAServerThatIsUpgradedAndRolledBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir(), atomicfile.Writer{})
		all := capability.Missing{Taints: true, Counters: true, Shares: true}
		missing := all
		capabilitytest.DryRuns(b.client, func() capability.Missing { return missing })
		discovery := b.client.Discovery().(*fakediscovery.FakeDiscovery)
		discovery.FakedServerVersion = &version.Info{GitVersion: "v1.35.4"}
		var reported []capability.Missing
		b.config.Missing = func(m capability.Missing) { reported = append(reported, m) }
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go b.followCapabilities(ctx)
		synctest.Wait()
		b.Learn()
		for _, step := range []struct {
			version string
			missing capability.Missing
		}{{"v1.36.3", capability.Missing{}}, {"v1.35.4", all}} {
			b.client.Lock() // reactors and the version are read under it
			missing, discovery.FakedServerVersion = step.missing, &version.Info{GitVersion: step.version}
			b.client.Unlock()
			time.Sleep(capability.StateInterval + time.Second)
			synctest.Wait()
		}
		if want := []capability.Missing{all, {}, all}; !slices.Equal(reported, want) {
			t.Errorf("reported are %+v; want %+v", reported, want)
		}
	})
}

// A kubelet may be three minor versions older than the API server. Kubelets before 1.34 have the plugin API v1beta1, later ones v1 too.
func TestPluginServesTheAPIsOfOlderKubelets(t *testing.T) {
	_, dir := started(t, fake.NewClientset())
	if err := ask(filepath.Join(dir, "plugins_registry", driver+"-reg.sock"), func(connection *grpc.ClientConn) error {
		info, err := registerapi.NewRegistrationClient(connection).GetInfo(t.Context(), &registerapi.InfoRequest{})
		if err != nil {
			return err
		}
		for _, service := range []string{drav1.DRAPluginService, drav1beta1.DRAPluginService} {
			if !slices.Contains(info.SupportedVersions, service) {
				t.Errorf("registers with %v, which lacks %s", info.SupportedVersions, service)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := ask(filepath.Join(dir, "plugins", driver, "dra.sock"), func(connection *grpc.ClientConn) error {
		// No claim: the call itself must be implemented.
		if _, err := drav1.NewDRAPluginClient(connection).NodePrepareResources(t.Context(), &drav1.NodePrepareResourcesRequest{}); err != nil {
			return fmt.Errorf("v1: %w", err)
		}
		if _, err := drav1beta1.NewDRAPluginClient(connection).NodePrepareResources(t.Context(),
			&drav1beta1.NodePrepareResourcesRequest{}); err != nil {
			return fmt.Errorf("v1beta1: %w", err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
