package sharedgpus

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func gpus(n int, memoryMiB int64) []int64 { return slices.Repeat([]int64{memoryMiB}, n) }

func TestCountsAreThoseOfThePublicPlugin(t *testing.T) {
	// 8 x L40S of 49140 MiB, factor 10: 39312 units on the node, and a request of 1024 is 10240 MiB.
	if got := 8 * CountUnits(49140, 1, 10); got != 39312 {
		t.Errorf("%d units, want 39312", got)
	}
	if got := CountUnits(49140, 1.5, 1); got != 73710 {
		t.Errorf("%d units with half as much again, want 73710", got)
	}
}

func TestSmallestFactorKeepsTheListUnderTheKubeletsLimit(t *testing.T) {
	for name, test := range map[string]struct {
		memory []int64
		want   int
	}{
		"one T4 counts in MiB":              {gpus(1, 15360), 1},
		"eight L40S":                        {gpus(8, 49140), 4},
		"eight GPUs of 192 GB":              {gpus(8, 183359), 16},
		"sixteen GPUs of 288 GB":            {gpus(16, 294912), 64},
		"a node without GPUs counts in MiB": {nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := SmallestFactor(test.memory, 1, Budget)
			if err != nil {
				t.Fatal(err)
			}
			if got != test.want {
				t.Errorf("factor %d, want %d", got, test.want)
			}
			size := messageSize(test.memory, got)
			if size > MessageLimit {
				t.Errorf("the list has %d bytes, over the kubelet's %d", size, MessageLimit)
			}
			t.Logf("units of %d MiB are a list of %d bytes", got, size)
		})
	}
}

// messageSize is the real size of the list on the wire.
func messageSize(memory []int64, factor int) int {
	response := &pluginapi.ListAndWatchResponse{}
	for i, m := range memory {
		for n := range CountUnits(m, 1, factor) {
			response.Devices = append(response.Devices, &pluginapi.Device{
				ID: UnitID(i, int(n)), Health: pluginapi.Healthy,
				Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 33}}},
			})
		}
	}
	return proto.Size(response)
}

func TestSmallestReportsWhyNoneFits(t *testing.T) {
	_, err := SmallestFactor(gpus(8, 183359), 1e9, Budget)
	if err == nil || !strings.Contains(err.Error(), "device-memory-scaling") {
		t.Errorf("got %v, want an error that names the setting", err)
	}
}

func TestUnitsRejectAFactorBeyondTheKubelet(t *testing.T) {
	for name, test := range map[string]struct {
		factor int
		memory []int64
		wrong  string
	}{
		"eight A100 in MiB": {1, gpus(8, 40960),
			"gpuMemoryFactor 1: the memory of 8 GPUs in units of 1 MiB is a list of at least 7536640 bytes, where the kubelet takes 4194304; set " +
				"4 or more"},
		"three A100 in MiB":         {1, gpus(3, 40960), ""},
		"the seed's eight L40S":     {10, gpus(8, 49140), ""},
		"a unit larger than a GPU":  {1 << 20, gpus(8, 49140), ""},
		"eight of 192 GB in 10 MiB": {10, gpus(8, 183359), ""},
		"eight of 192 GB in 8 MiB":  {8, gpus(8, 183359), "set 16 or more, or 0 to have it chosen"},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckFactor(test.factor, test.memory, 1)
			if test.wrong == "" && err != nil || test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)) {
				t.Errorf("got %v, want %q", err, test.wrong)
			}
			if size := messageSize(test.memory, test.factor); test.wrong == "" && size > MessageLimit {
				t.Errorf("the list has %d bytes, over the kubelet's %d", size, MessageLimit)
			}
		})
	}
}

func TestAgreeNeverShrinks(t *testing.T) {
	for _, test := range [][3]int{{0, 4, 4}, {4, 16, 16}, {16, 4, 16}} {
		if got := AgreeFactor(test[0], test[1]); got != test[2] {
			t.Errorf("AgreeFactor(%d, %d) = %d, want %d", test[0], test[1], got, test[2])
		}
	}
}
