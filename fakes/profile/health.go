package profile

import "slices"

// healthWords are the words of Fabric.Health.
var healthWords = map[string]bool{"bandwidth": true, "routeRecovery": true, "routeUnhealthy": true, "accessTimeout": true,
	"configuration": true, "partition": true, "fabricManager": true, "summary": true, "none": true}

// namedHealth are the words that a profile names: drivers up to 580.173 report neither.
var namedHealth = map[string]bool{"partition": true, "fabricManager": true}

// Reports reports whether NVML reports that part of the fabric's health on this machine.
func (f *Fabric) Reports(word string) bool {
	return len(f.Health) == 0 && !namedHealth[word] || slices.Contains(f.Health, word)
}
