package plugin

import (
	"testing"

	"gpufabric.io/drivers/gpu/handover"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/filewatch/filewatchtest"
)

func TestPluginRunsWithoutInotify(t *testing.T) {
	if !filewatchtest.Spent(t) {
		return
	}
	directory := handover.Directory(t.TempDir())
	n := start(t, "--handover-dir="+string(directory))
	var uuids []string
	for _, gpu := range n.machine.GPUs {
		uuids = append(uuids, gpu.UUID)
	}
	changes, err := directory.Watch(t.Context(), &filewatch.Watcher{})
	if err != nil {
		t.Fatal(err)
	}
	for ended := 0; ended < len(uuids); {
		requests, err := directory.Requests()
		if err != nil {
			t.Fatal(err)
		}
		if ended = len(requests); ended < len(uuids) {
			<-changes
		}
	}
	if err := directory.Confirm(uuids...); err != nil {
		t.Fatal(err)
	}
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
	n.kubelet.Stop()
	n.kubelet.Start()
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
}
