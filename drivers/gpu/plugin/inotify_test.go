package plugin

import (
	"strings"
	"testing"

	"gpufabric.io/drivers/gpu/extendedresource"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/handover"
	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/drivers/node/filewatch/filewatchtest"
)

// This covers every part of the role that watches files: the handover, the kubelet's restart and the MPS daemon's pipe.
func TestPluginWorksWithoutInotify(t *testing.T) {
	if !filewatchtest.Spent(t) {
		return
	}
	m := gputest.New(t, 3)
	commands := mpsControl(t, m)
	kubelet := kubelettest.New(t)
	kubelet.Start()
	b := newBench(t, m, func(o *Options) { o.KubeletRoot, o.DevicePlugin = kubelet.Root(), []string{m.GPUs[2].UUID} })
	b.stop()
	b.enter = plainly
	b.start()
	if err := handover.Directory(b.options.HandoverDir).Request("volcano", m.GPUs[1].UUID); err != nil {
		t.Fatal(err)
	}
	b.taints("gpu-1", taken)
	kubelet.AwaitAllocatable(extendedresource.Resource, 1)
	kubelet.Stop()
	kubelet.Start()
	kubelet.AwaitAllocatable(extendedresource.Resource, 1)
	b.mustPrepare(b.claim("u1", []string{gpuConfig(`{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50}}`)},
		device{name: "gpu-0"}))
	if got := commands(); !strings.HasSuffix(got, "set_default_active_thread_percentage 50") {
		t.Errorf("the MPS daemon was told %q", got)
	}
}
