// Package faults holds the fault suite: compute domains form and end, and GPUs and MIG instances are allocated and released,
// while processes are killed, the API server pauses, nodes go silent or reboot, disks are full, watches misbehave and clocks
// step, at random moments from a seed. `make test-faults` runs it.
package faults
