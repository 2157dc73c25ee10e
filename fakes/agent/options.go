package agent

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"gpufabric.io/fakes/profile"
)

// check refuses options that would open the node to others, or put fake hardware beside real hardware unintentionally.
func (o Options) check() error {
	if o.Control != "" {
		host, _, err := net.SplitHostPort(o.Control)
		if err != nil {
			return fmt.Errorf("control address %q: %w, want a loopback address, as in 127.0.0.1:8090", o.Control, err)
		}
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			return fmt.Errorf("control address %q is not of loopback: every client that reaches it could break the node's hardware without "+
				"authentication; listen on 127.0.0.1 and reach it by `kubectl port-forward`", o.Control)
		}
	}
	if o.Profile != "" {
		if _, err := profile.Load(o.Profile); err != nil {
			return fmt.Errorf("profile of nodes without the label %s: %w", LabelProfile, err)
		}
	}
	if o.BesideGPUs {
		return nil
	}
	gpus, err := realGPUs(o.Sysfs)
	if err != nil {
		return fmt.Errorf("look for GPUs of this machine: %w", err)
	}
	if len(gpus) > 0 {
		return fmt.Errorf("this machine has NVIDIA GPUs (%s): fake ones beside them would be allocated as if they were real; exclude the "+
			"node, or set --beside-gpus (chart value besideGPUs) on a machine that is only for tests",
			strings.Join(gpus, ", "))
	}
	return nil
}

// realGPUs gives the PCI addresses of NVIDIA's display controllers: vendor 0x10de, base class 0x03 (PCI Code and ID Assignment
// Specification). A machine without PCI has none.
func realGPUs(sysfs string) ([]string, error) {
	vendors, err := filepath.Glob(filepath.Join(sysfs, "bus/pci/devices/*/vendor"))
	if err != nil {
		return nil, err
	}
	var gpus []string
	for _, file := range vendors {
		device := filepath.Dir(file)
		vendor, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		class, err := os.ReadFile(filepath.Join(device, "class"))
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(string(vendor)) == "0x10de" && strings.HasPrefix(string(class), "0x03") {
			gpus = append(gpus, filepath.Base(device))
		}
	}
	return gpus, nil
}
