package plugin

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

func TestClaimsPublishAnEmptyPoolWithoutDevices(t *testing.T) {
	taint := []resourceapi.DeviceTaint{{Key: "a"}}
	for _, test := range []struct {
		name            string
		slices          [][]resourceapi.Device
		chunks, tainted int
	}{
		{"no device", nil, 1, 0},
		{"two slices", [][]resourceapi.Device{{{Name: "a", Taints: taint}, {Name: "b"}}, {{Name: "c", Taints: taint}}}, 2, 2},
	} {
		p := &publication{slices: test.slices}
		published := p.resources("node-a-rdma").Pools["node-a-rdma"].Slices
		if len(published) != test.chunks || published[0].Devices == nil || p.tainted() != test.tainted {
			t.Errorf("%s: %d slices, %d devices tainted", test.name, len(published), p.tainted())
		}
	}
}
