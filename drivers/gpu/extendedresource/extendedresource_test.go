package extendedresource

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
)

// node is a machine of n A100 in two NUMA nodes, as the inventory reads it.
func node(t *testing.T, n int) (*gputest.Machine, *inventory.Node) {
	t.Helper()
	m := gputest.New(t, n)
	locate, err := inventory.Locator(t.Context(), m.Path("sys"))
	if err != nil {
		t.Fatal(err)
	}
	read, err := inventory.Reader{NVML: m, Locate: locate}.Read()
	if err != nil || len(read.GPUs) != n {
		t.Fatalf("%v, %v", read, err)
	}
	return m, read
}

func unlocked(context.Context, ...string) (func(), error) { return func() {}, nil }

func newPlugin(t *testing.T, gpus []*inventory.GPU, lock func(context.Context, ...string) (func(), error)) *Plugin {
	t.Helper()
	p, err := New(t.Context(), gpus, func(context.Context) (*edits.Set, error) { return &edits.Set{}, nil }, t.TempDir(), lock)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestResourceAllocatesOnlyWantedWholeGPUs(t *testing.T) {
	_, n := node(t, 4)
	uuid := n.GPUs[2].UUID
	for _, test := range []struct {
		name string
		wish []string
		want int
	}{
		{"none", nil, 0}, {"all", []string{"all"}, 4}, {"one of this node's", []string{uuid}, 1},
		{"one of another node's beside it", []string{uuid, "GPU-99999999"}, 1}, {"another node's alone", []string{"GPU-99999999"}, 0},
	} {
		if got := Select(n, test.wish); len(got) != test.want {
			t.Errorf("%s: %d GPUs, want %d", test.name, len(got), test.want)
		}
	}
}

func TestResourceListsHealthAndNUMANode(t *testing.T) {
	_, n := node(t, 8)
	p := newPlugin(t, n.GPUs, unlocked)
	devices := p.Devices(func(g *inventory.GPU) bool { return g.UUID != n.GPUs[1].UUID })
	if len(devices) != 8 || !devices[0].Healthy || devices[1].Healthy {
		t.Fatalf("the kubelet is given %+v", devices)
	}
	if first, last := devices[0].NUMANodes, devices[7].NUMANodes; len(first) != 1 || len(last) != 1 || first[0] == last[0] {
		t.Errorf("the first and the last GPU are in the NUMA nodes %v and %v", first, last)
	}
	text, err := os.ReadFile(p.Spec())
	var spec specs.Spec
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	if err != nil || spec.Kind != "k8s.gpu.nvidia.com/gpu" || len(spec.Devices) != 8 || spec.Devices[0].Name != n.GPUs[0].UUID {
		t.Errorf("the CDI spec is %s, %v", text, err)
	}
}

func TestAllocateNamesCDIDevicesUnderTheLocksOfTheGPUs(t *testing.T) {
	m, n := node(t, 2)
	var locked []string
	held := false
	p := newPlugin(t, n.GPUs, func(_ context.Context, uuids ...string) (func(), error) {
		locked, held = uuids, true
		return func() { held = false }, nil
	})
	ids := []string{n.GPUs[1].UUID, n.GPUs[0].UUID}
	response, err := p.Allocate(t.Context(), ids)
	if err != nil || len(response.CdiDevices) != 2 || response.CdiDevices[0].Name != "k8s.gpu.nvidia.com/gpu="+ids[0] {
		t.Errorf("got %v, %v", response, err)
	}
	if !slices.Equal(locked, ids) || held {
		t.Errorf("locked %v, still: %v", locked, held)
	}
	_, err = p.Allocate(t.Context(), []string{"GPU-99999999"})
	if err == nil || !strings.Contains(err.Error(), "not among the GPUs") || held {
		t.Errorf("an unknown GPU: %v, locked still: %v", err, held)
	}
	// An administrator cut the GPU after it was registered.
	if _, ret := m.GPUs[0].SetMigMode(nvml.DEVICE_MIG_ENABLE); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	profile := n.GPUs[0].MIG.Profiles[0]
	if _, err := partition.Create(n.GPUs[0], profile, profile.Placements[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Allocate(t.Context(), ids[1:]); err == nil || !strings.Contains(err.Error(), "is cut into 1 MIG instances") {
		t.Errorf("a GPU with a MIG instance: %v", err)
	}
	busy := newPlugin(t, n.GPUs, func(context.Context, ...string) (func(), error) { return nil, errors.New("the call has ended") })
	if _, err := busy.Allocate(t.Context(), ids); err == nil || err.Error() != "the call has ended" {
		t.Errorf("without the locks: %v", err)
	}
}

func TestGPUsThatAreNearEachOtherArePreferred(t *testing.T) {
	gpu := func(uuid, domain, pcieSwitch string, numa int) *inventory.GPU {
		return &inventory.GPU{UUID: uuid, NVLinkDomain: domain, Place: inventory.Place{Switch: pcieSwitch, NUMANode: numa}}
	}
	p := newPlugin(t, []*inventory.GPU{gpu("a", "", "s1", 0), gpu("b", "", "s2", 0), gpu("c", "l", "s3", 1), gpu("d", "l", "s4", 1),
		gpu("e", "", "s1", 0)}, unlocked)
	all := []string{"a", "b", "c", "d", "e"}
	for _, test := range []struct {
		name                string
		available, required []string
		size                int
		want                []string
	}{
		{"the required one's switch", all, []string{"a"}, 2, []string{"a", "e"}},
		{"the required one's NVLink", all, []string{"c"}, 2, []string{"c", "d"}},
		{"a NUMA node, where nothing else is near", []string{"b", "c", "e"}, []string{"b"}, 2, []string{"b", "e"}},
		{"those that are near most others first", all, nil, 2, []string{"c", "d"}},
		{"all there are, where more are wanted", []string{"a"}, nil, 3, []string{"a"}},
		{"no more than are wanted", all, []string{"a", "b"}, 2, []string{"a", "b"}},
	} {
		if got := p.Prefer(test.available, test.required, test.size); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
