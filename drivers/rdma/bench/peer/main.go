//go:build ignore

// This program runs k8s-rdma-shared-dev-plugin to be measured: `discover CONFIG` times its discovery, `serve CONFIG` serves like
// its own main until it is ended. compare.sh builds it inside that plugin's module, because that plugin pins versions of libraries
// that this module cannot use.
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
	config := os.Args[2]
	if os.Args[1] == "serve" {
		serve(config)
		return
	}
	var took []time.Duration
	devices := 0
	for range rounds {
		manager := resources.NewResourceManager(config, false)
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

// serve runs the steps of the plugin's main, except the query of the mode of the kernel's RDMA subsystem: on a kernel without one
// main ends there.
func serve(config string) {
	manager := resources.NewResourceManager(config, false)
	for _, step := range []func() error{
		manager.ReadConfig, manager.ValidateConfigs, manager.DiscoverHostDevices, manager.InitServers, manager.StartAllServers,
	} {
		if err := step(); err != nil {
			panic(err)
		}
	}
	manager.PeriodicUpdate()
	select {}
}
