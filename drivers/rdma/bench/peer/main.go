//go:build ignore

// This program times the discovery of k8s-rdma-shared-dev-plugin. compare.sh builds it inside that plugin's own module, which pins libraries
// that this one cannot have beside its own.
package main

import (
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"time"

	"github.com/Mellanox/k8s-rdma-shared-dev-plugin/pkg/resources"
)

// rounds is how often the discovery is timed.
const rounds = 5

func main() {
	log.SetOutput(io.Discard)
	var took []time.Duration
	devices := 0
	for range rounds {
		manager := resources.NewResourceManager(os.Args[1], false)
		if err := manager.ReadConfig(); err != nil {
			panic(err)
		}
		start := time.Now()
		if err := manager.DiscoverHostDevices(); err != nil {
			panic(err)
		}
		devices = len(manager.GetDevices())
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	fmt.Printf("theirs: %d devices, median %v, fastest %v\n", devices, took[rounds/2], took[0])
}
