// Package faults holds the fault suite: compute domains form and end while processes are killed, the API server stands still,
// nodes go silent or reboot and state directories cannot be written, at times drawn from a seed. `make test-faults` runs it.
package faults
