package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/apimachinery/pkg/types"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/filewatch/filewatchtest"
)

const driver = "test.example.com"

func open(t *testing.T, root string) *Dir {
	t.Helper()
	dir, err := Open(root, driver, atomicfile.Writer{})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func channels(count int) specs.ContainerEdits {
	mode := os.FileMode(0o666)
	var edits specs.ContainerEdits
	for n := range count {
		edits.DeviceNodes = append(edits.DeviceNodes, &specs.DeviceNode{
			Path: fmt.Sprintf("/dev/caps/channel%d", n), Type: "c", Major: 234, Minor: int64(n), FileMode: &mode, Permissions: "rw",
		})
	}
	return edits
}

// The CDI library that container runtimes use must be able to read the specs that Directory writes.
func TestDirectoryServesRuntimeWithoutFileOnHost(t *testing.T) {
	root := filepath.Join(t.TempDir(), "cdi") // made by Open
	dir := open(t, root)
	edits := channels(1)
	edits.Env = []string{"A=b"}
	if err := dir.Write("u1", []Device{{Name: "channel-0", Edits: edits},
		{Name: "other", Edits: specs.ContainerEdits{Env: []string{"C=d"}}}}); err != nil {
		t.Fatal(err)
	}
	cache, err := cdilib.NewCache(cdilib.WithSpecDirs(root), cdilib.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	var container oci.Spec
	if unresolved, err := cache.InjectDevices(&container, dir.ID("u1", "channel-0")); err != nil {
		t.Fatalf("unresolved %v: %v", unresolved, err)
	}
	mode := os.FileMode(0o666)
	want := []oci.LinuxDevice{{Path: "/dev/caps/channel0", Type: "c", Major: 234, FileMode: &mode}}
	if diff := cmp.Diff(want, container.Linux.Devices); diff != "" {
		t.Errorf("devices (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"A=b"}, container.Process.Env); diff != "" {
		t.Errorf("environment (-want +got)\n%s", diff)
	}
}

func TestDirectoryWritesOneFilePerClaim(t *testing.T) {
	root := t.TempDir()
	dir := open(t, root)
	if err := os.WriteFile(filepath.Join(root, "theirs.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []types.UID{"u1", "u2"} {
		if err := dir.Write(uid, []Device{{Name: "d", Edits: channels(1)}}); err != nil {
			t.Fatal(err)
		}
	}
	if claims, err := dir.List(); err != nil || !cmp.Equal(claims, []types.UID{"u1", "u2"}) {
		t.Errorf("claims %v, %v", claims, err)
	}
	for range 2 { // twice is no error
		if err := dir.Remove("u1"); err != nil {
			t.Fatal(err)
		}
	}
	if dir.Has("u1") || !dir.Has("u2") {
		t.Error("the wrong spec was removed")
	}
	if err := dir.Write("u2", nil); err != nil || dir.Has("u2") {
		t.Errorf("a claim without devices keeps its spec (%v)", err)
	}
}

func TestDirectoryRefusesInvalidSpec(t *testing.T) {
	dir := open(t, t.TempDir())
	for name, device := range map[string]Device{
		"a name with a space":    {Name: "a b", Edits: channels(1)},
		"a device without path":  {Name: "d", Edits: specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Type: "c", Major: 1}}}},
		"a mount without source": {Name: "d", Edits: specs.ContainerEdits{Mounts: []*specs.Mount{{ContainerPath: "/x"}}}},
		"a variable without =":   {Name: "d", Edits: specs.ContainerEdits{Env: []string{"A"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := dir.Write("u1", []Device{device}); err == nil || !strings.Contains(err.Error(), "u1") {
				t.Errorf("error %v", err)
			}
			if dir.Has("u1") {
				t.Error("a file was written all the same")
			}
		})
	}
	if _, err := Open(t.TempDir(), "no/driver", atomicfile.Writer{}); err == nil {
		t.Error("a driver name that is no vendor was taken")
	}
}

// A spec of every channel is the largest there is. Writing another spec beside it must not cost more.
func BenchmarkWriteOneChannelBesideAll(b *testing.B) {
	dir, err := Open(b.TempDir(), driver, atomicfile.Writer{})
	if err != nil {
		b.Fatal(err)
	}
	if err := dir.Write("all", []Device{{Name: "d", Edits: channels(2048)}}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := dir.Write("one", []Device{{Name: "d", Edits: channels(1)}}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestDirectoryIsMadeAgainWhenSomebodyRemovedIt(t *testing.T) {
	root := filepath.Join(t.TempDir(), "cdi")
	dir := open(t, root)
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	if err := dir.Write("u1", []Device{{Name: "a", Edits: channels(1)}}); err != nil || !dir.Has("u1") {
		t.Errorf("%v, spec there %t", err, dir.Has("u1"))
	}
	dir.root = filewatchtest.Removed(t) // a mount in the plugin's container
	err := dir.Write("u2", []Device{{Name: "a", Edits: channels(1)}})
	if err == nil || !strings.Contains(err.Error(), "was removed on the node") {
		t.Errorf("a mount of a removed directory: %v", err)
	}
}
