// Package faults holds the fault suite: compute domains form and end, and GPUs and MIG instances are handed out and taken back, while
// processes are killed, the API server stands still, nodes go silent or reboot, disks are full, watches misbehave and clocks
// step, at moments drawn from a seed. `make test-faults` runs it.
package faults
