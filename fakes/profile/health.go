package profile

import "slices"

// healthWords are the words of Fabric.Health.
var healthWords = map[string]bool{"bandwidth": true, "routeRecovery": true, "routeUnhealthy": true, "accessTimeout": true,
	"configuration": true, "summary": true, "none": true}

// Reports reports whether NVML reports that part of the fabric's health on this machine.
func (f *Fabric) Reports(word string) bool {
	return len(f.Health) == 0 || slices.Contains(f.Health, word)
}
