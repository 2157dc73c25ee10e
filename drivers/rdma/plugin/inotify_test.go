package plugin_test

import (
	"strings"
	"testing"

	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/drivers/node/filewatch/filewatchtest"
)

// The role watches three kinds of files: its configuration, the kubelet's socket, and device nodes. The seed's periodic discovery
// is every 300 s.
func TestPluginRunsWithoutInotify(t *testing.T) {
	if !filewatchtest.Spent(t) {
		return
	}
	n := newNode(t)
	n.two()
	n.start()
	n.kubelet.AwaitAllocatable(shared, 1000)
	n.configure(strings.Replace(divided, "1000", "200", 1))
	n.kubelet.AwaitAllocatable(shared, 200)
	n.kubelet.Stop()
	n.kubelet.Start()
	n.kubelet.AwaitAllocatable(shared, 200)
	n.configure(strings.Replace(divided, `["1021"]`, `["1021", "101f"]`, 1))
	n.kubelet.AwaitAllocatable(shared, 1000)
	before := n.kubelet.View(shared).Devices
	n.addHCA(0x7a, "1", sysfstest.HCA{Nets: []string{"ibp123s0"}})
	n.kubelet.Await(shared, "units of the third HCA", func(r kubelettest.Resource) bool {
		return r.Allocatable == 1000 && numa(r.Devices)[1] > numa(before)[1]
	})
}
