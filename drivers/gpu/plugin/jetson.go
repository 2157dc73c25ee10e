package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// jetson returns why a node's integrated GPU is not offered; empty: the node is no Jetson. A Jetson has a device tree whose property
// compatible names its Tegra (nvidia,tegra234), as strings that end in NUL (Devicetree Specification, "compatible"). Servers with NVIDIA's
// Grace are started by ACPI, and have no device tree.
func jetson(sysfs string) string {
	text, err := os.ReadFile(filepath.Join(sysfs, "firmware/devicetree/base/compatible"))
	if err != nil {
		return ""
	}
	for name := range strings.SplitSeq(string(text), "\x00") {
		if strings.HasPrefix(name, "nvidia,tegra") {
			return fmt.Sprintf("the node is a Jetson (%s), whose integrated GPU gpufabric does not serve: keep gpu-plugin off it with "+
				"nodePlugins.nodeSelector, and use NVIDIA's device plugin there", name)
		}
	}
	return ""
}
