// Package shares is the part of the fault suite for nodes whose GPUs vgpu-plugin shares. It takes all GPUs of such a node. Pods
// with shares come and go while vgpu-plugin, vgpu-monitor, gpufabric-scheduler and the webhook are killed, at random moments
// from a seed. `make test-faults` runs it after the other part.
package shares
