// gpufabric-scheduler is kube-scheduler with the plugins that place shares of GPUs and preempt for them.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the API client's metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info

	"gpufabric.io/drivers/scheduler/program"
)

func main() { os.Exit(cli.Run(program.Command())) }
