package edits

import (
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/hardware/driver"
)

// number writes type, major and minor into the driver's device nodes, so that a container gets the right node whatever stands on the host
// under that name. Nodes of others (DRM) are left to the container runtime.
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
