package edits

import (
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/hardware/driver"
)

// number writes type, major and minor into the driver's device nodes, so that a container gets the right node whatever the host has
// under that name. The container runtime handles nodes of others (DRM).
func number(nodes []*specs.DeviceNode, known driver.Numbers) {
	for _, n := range nodes {
		if n.Type != "" {
			continue
		}
		if major, minor, ok := known.Node(n.Path); ok {
			n.Type, n.Major, n.Minor = "c", major, minor
		}
	}
}
