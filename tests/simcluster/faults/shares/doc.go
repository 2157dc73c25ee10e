// Package shares is the part of the fault suite about nodes whose GPUs are shared by vgpu-plugin, which takes all of a node's: pods with
// shares come and go while vgpu-plugin, vgpu-monitor, gpufabric-scheduler and the webhook are killed, at moments drawn from a seed.
// `make test-faults` runs it after the other part.
package shares
