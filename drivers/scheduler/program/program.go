// Package program is the part of gpufabric-scheduler that is not kube-scheduler.
package program

import (
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"gpufabric.io/drivers/scheduler/preemption"
	"gpufabric.io/drivers/scheduler/profiles"
	"gpufabric.io/drivers/scheduler/vgpu"
)

// Plugins are the plugins that a KubeSchedulerConfiguration may name besides the stock ones.
func Plugins() []app.Option {
	return []app.Option{
		app.WithPlugin(vgpu.Name, vgpu.New),
		app.WithPlugin(preemption.Name, preemption.New),
		app.WithPlugin(profiles.Name, profiles.New),
	}
}
