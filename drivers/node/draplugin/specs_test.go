package draplugin

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/filewatch/filewatchtest"
)

// TestPluginPreparesAgainWhenCDISpecsAreRemoved: containers that restart need the specs, and the kubelet prepares no claim again for them.
func TestPluginPreparesAgainWhenCDISpecsAreRemoved(t *testing.T) {
	kept, released, ended := claimOf("u1", "d0"), claimOf("u2", "d1"), claimOf("u3", "d2")
	for name, remove := range map[string]func(b *bench) error{
		"one spec": func(b *bench) error { return os.Remove(b.cdi.Path("u1")) },
		// At once: file by file, the plugin could write a spec again in between, and the directory would stay.
		"the directory": func(b *bench) error { return os.Rename(b.config.Node.CDIRoot, b.config.Node.CDIRoot+"-removed") },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, t.TempDir(), atomicfile.Writer{}, kept, released, ended)
			b.mustPrepare(t, kept)
			b.mustPrepare(t, released)
			b.mustPrepare(t, ended)
			prepared := map[types.UID]int{}
			b.kind.prepare = func(ctx context.Context, claim *Claim, progress Progress) (*Prepared, error) {
				prepared[claim.UID]++
				return inject(ctx, claim, progress)
			}
			b.releases.claims = map[types.UID]*release{"u2": {cause: cause{requested: true}}} // its container still runs
			if err := b.release(t.Context(), "u3", cause{requested: true}, 0); err != nil {
				t.Fatal(err)
			}
			changed, done := make(chan struct{}), make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				defer close(done)
				b.keepSpecs(ctx, changed)
			}()
			changed <- struct{}{} // nothing is missing
			if err := remove(b); err != nil {
				t.Fatal(err)
			}
			_ = os.Remove(b.cdi.Path("u2")) // it went when the release began
			changed <- struct{}{}
			changed <- struct{}{} // the look before has ended
			cancel()
			<-done
			if !b.cdi.Has("u1") || b.cdi.Has("u2") || b.cdi.Has("u3") || len(prepared) != 1 || prepared["u1"] != 1 {
				t.Errorf("specs of u1 %t, u2 %t, u3 %t; prepared %v", b.cdi.Has("u1"), b.cdi.Has("u2"), b.cdi.Has("u3"), prepared)
			}
			if b.releaseOf("u2") == nil {
				t.Error("the release of u2 was forgotten")
			}
		})
	}
}

// TestPluginIsNotAliveWithoutItsDirectories: in the plugin's container they are mounts, which a removal on the node makes unusable.
func TestPluginIsNotAliveWithoutItsDirectories(t *testing.T) {
	for name, lose := range map[string]func(p *Plugin, path string){
		"CDI specs": func(p *Plugin, path string) { p.config.Node.CDIRoot = path },
		"state":     func(p *Plugin, path string) { p.config.Node.StateDir = path },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, t.TempDir(), atomicfile.Writer{})
			lose(b.Plugin, filewatchtest.Removed(t))
			if err := b.Answers(); err == nil || !strings.Contains(err.Error(), "was removed on the node") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestPrepareNamesADeviceTwiceWhenItIsGivenAndObserved: one claim may have a device and, with admin access, observe all of the node's. A
// runtime reads no spec with two devices of one name.
func TestPrepareNamesADeviceTwiceWhenItIsGivenAndObserved(t *testing.T) {
	for _, observedFirst := range []bool{false, true} {
		b := newBench(t, t.TempDir(), atomicfile.Writer{})
		claim := claimOf("u1", "d0")
		given := claim.Status.Allocation.Devices.Results[0]
		observed := given
		observed.Request, observed.AdminAccess = "monitor", new(true)
		again := observed
		again.Request = "second-monitor"
		results := []resourceapi.DeviceRequestAllocationResult{given, observed, again}
		if observedFirst {
			slices.Reverse(results)
		}
		claim.Status.Allocation.Devices.Results = results
		devices := b.mustPrepare(t, claim)
		runtime, err := cdilib.NewCache(cdilib.WithSpecDirs(b.config.Node.CDIRoot), cdilib.WithAutoRefresh(false))
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for i, d := range devices {
			for _, name := range d.CDIDeviceIDs {
				names[name] = true
				if runtime.GetDevice(name) == nil {
					t.Errorf("the runtime lacks %s: %v", name, runtime.GetErrors())
				}
				if !(results[i].AdminAccess != nil) && name != "k8s.test.example.com/claim=u1-d0" {
					t.Errorf("the claim's own device is %s", name)
				}
			}
		}
		if len(names) != 3 {
			t.Errorf("CDI devices %v", names)
		}
	}
}
