package tree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// uvmMajor is the major number of the module when it is loaded again: majors are dynamic, and another module may have taken the old
// one.
const uvmMajor = 508
const uvmName = "nvidia-uvm"

// SetUVM changes a rendered node's tree to the module nvidia-uvm loaded or unloaded. The kernel gives the module its
// major number when it is loaded. No program loads it at boot: the first CUDA program does through nvidia-modprobe, which also
// makes the nodes (nvidia_uvm_modprobe and nvidia_uvm_mknod in NVIDIA/nvidia-modprobe, modprobe-utils/nvidia-modprobe-utils.c), or
// the host's start-up scripts do.
func SetUVM(root string, loaded bool) error {
	table := filepath.Join(root, "proc/devices")
	data, err := os.ReadFile(table)
	if err != nil {
		return err
	}
	major, err := procMajor(root, uvmName)
	there := err == nil
	if there == loaded {
		return fmt.Errorf("%s is loaded already: %t", uvmName, loaded)
	}
	nodes := map[string]int{uvmName: 0, uvmName + "-tools": 1}
	if !loaded {
		text := strings.Replace(string(data), fmt.Sprintf("%3d %s\n", major, uvmName), "", 1)
		errs := []error{os.WriteFile(table, []byte(text), 0o644)}
		for node := range nodes {
			errs = append(errs, ignoreMissing(os.Remove(filepath.Join(root, "dev", node))))
		}
		return errors.Join(errs...)
	}
	_, char, err := charMajor(filepath.Join(root, "dev/nvidiactl"))
	if err != nil {
		return err
	}
	line := fmt.Sprintf("%3d %s\n", uvmMajor, uvmName)
	errs := []error{os.WriteFile(table, []byte(strings.Replace(string(data), "\nBlock devices:", line+"\nBlock devices:", 1)), 0o644)}
	for node, minor := range nodes {
		errs = append(errs, makeDevice(filepath.Join(root, "dev", node), uvmMajor, minor, !char))
	}
	return errors.Join(errs...)
}
