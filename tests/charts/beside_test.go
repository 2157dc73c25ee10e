package charts

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gpufabric.io/build/toolchain"
)

// theirChart is the chart of NVIDIA's DRA driver.
func theirChart(t *testing.T) *chart.Chart {
	t.Helper()
	module, err := toolchain.ModuleDirectory(t.Context(), "gpu-kubelet-plugin")
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := loader.Load(filepath.Join(module, "deployments/helm/dra-driver-nvidia-gpu"))
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

// releases returns the Helm release of each object that one of the two charts may have installed; empty: of none.
func (s *server) releases(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, resource := range []schema.GroupVersionResource{{Group: "resource.k8s.io", Version: "v1", Resource: "deviceclasses"}, crdResource,
		{Group: "apps", Version: "v1", Resource: "daemonsets"}, {Group: "apps", Version: "v1", Resource: "deployments"}} {
		list, err := s.client.Resource(resource).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			found[list.Items[i].GetName()] = list.Items[i].GetAnnotations()["meta.helm.sh/release-name"]
		}
	}
	return found
}

// Helm compares the owner of an object when a release first gets it, and never again: each upgrade takes shared DeviceClasses back, and an
// uninstall deletes those that the other release has by then.
func TestChartKeepsObjectsOfNVIDIAsDriverBesideIt(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	live := startServer(t)
	tool := newHelmInMemory(t, live.config)
	// The values of docs/migrate.md.
	ours := map[string]any{"nodePlugins": map[string]any{"nodeSelector": map[string]any{"fabric": "gpufabric"}},
		"computeDomains": off(), "gpus": on(), "takeOver": true}
	theirs := map[string]any{"gpuResourcesEnabledOverride": true}
	take := func(install *action.Install) { install.TakeOwnership = true }
	shared := []string{"gpu.nvidia.com", "mig.nvidia.com"}
	// of fails the test unless the shared classes are there, of one release.
	of := func(step, release string) map[string]string {
		t.Helper()
		now := live.releases(t)
		for _, class := range shared {
			if owner, there := now[class]; !there || owner != release {
				t.Errorf("%s: DeviceClass %s is there %t, of release %q; want %q", step, class, there, owner, release)
			}
		}
		return now
	}
	must := func(step string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
	}
	install := func(name string, loaded *chart.Chart, values map[string]any, options ...func(*action.Install)) error {
		_, err := tool.install(name, loaded, values, options...)
		return err
	}
	upgrade := func(name string, loaded *chart.Chart, values map[string]any) error {
		_, err := tool.upgrade(name, loaded, values)
		return err
	}

	must("install theirs", install("nvidia", theirChart(t), theirs))
	before := of("theirs is installed", "nvidia")
	for _, c := range []struct {
		values map[string]any
		names  []string
	}{
		{map[string]any{"gpus": on()}, []string{"DeviceClass gpu.nvidia.com", "CustomResourceDefinition computedomains", "DaemonSet",
			"Deployment", "Helm release nvidia"}},
		{map[string]any{"nodePlugins": ours["nodePlugins"], "crds": map[string]any{"takeOver": true}},
			[]string{"Deployment gpufabric-system/dra-driver-nvidia-gpu-controller", "computeDomains.enabled=false"}},
	} {
		err := install("gpufabric", load(t, "gpufabric"), c.values)
		for _, name := range c.names {
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%v: %v, want a refusal that names %s", c.values, err, name)
			}
		}
	}
	if now := live.releases(t); !maps.Equal(now, before) {
		t.Errorf("a refused install has changed %v to %v", before, now)
	}

	must("install ours", install("gpufabric", load(t, "gpufabric"), ours, take))
	of("ours takes over", "gpufabric")
	must("upgrade theirs", upgrade("nvidia", theirChart(t), theirs))
	of("theirs is upgraded", "nvidia")
	must("upgrade ours", upgrade("gpufabric", load(t, "gpufabric"), ours))
	of("ours is upgraded", "gpufabric")

	// The way back: theirs serves all nodes again.
	must("uninstall ours", tool.uninstall("gpufabric"))
	now := of("ours is uninstalled", "gpufabric")
	for object, release := range before {
		if _, there := now[object]; !there {
			t.Errorf("uninstall of gpufabric deleted %s of release %q", object, release)
		}
	}
	must("upgrade theirs", upgrade("nvidia", theirChart(t), theirs))
	of("theirs has its classes again", "nvidia")

	// The way on: gpufabric serves all nodes.
	again := func(install *action.Install) { install.TakeOwnership, install.Replace = true, true }
	must("install ours again", install("gpufabric", load(t, "gpufabric"), ours, again))
	must("uninstall theirs", tool.uninstall("nvidia"))
	all := maps.Clone(ours)
	all["computeDomains"], all["nodePlugins"] = on(), map[string]any{}
	must("upgrade ours", upgrade("gpufabric", load(t, "gpufabric"), all))
	for class := range before {
		if _, there := live.releases(t)[class]; !there && strings.HasSuffix(class, ".nvidia.com") && !strings.HasPrefix(class, "vfio.") {
			t.Errorf("after the uninstall of NVIDIA's driver and an upgrade of gpufabric there is no %s", class)
		}
	}

	// Theirs does not come second by accident.
	err := install("nvidia", theirChart(t), theirs, func(install *action.Install) { install.Replace = true })
	if err == nil || !strings.Contains(err.Error(), "invalid ownership metadata") {
		t.Errorf("an install of NVIDIA's driver beside gpufabric: %v", err)
	}
	of("theirs is refused", "gpufabric")
}
