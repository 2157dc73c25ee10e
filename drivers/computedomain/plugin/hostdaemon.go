package plugin

import (
	"os"
	"path/filepath"
	"strings"
)

// hostService is the unit of the nvidia-imex that a node may run itself.
const hostService = "nvidia-imex.service"

// hostDaemon says whether the node's own nvidia-imex runs. The driver gives a node one IMEX session, so beside it no daemon of a compute
// domain becomes READY (#524 of NVIDIA's DRA driver). systemd keeps each service in a cgroup of its name, which is seen without the node's
// processes.
func hostDaemon(sysfs string) bool {
	for _, hierarchy := range []string{"fs/cgroup", "fs/cgroup/systemd"} { // version 2, and version 1
		processes, err := os.ReadFile(filepath.Join(sysfs, hierarchy, "system.slice", hostService, "cgroup.procs"))
		if err == nil && strings.TrimSpace(string(processes)) != "" {
			return true
		}
	}
	return false
}
