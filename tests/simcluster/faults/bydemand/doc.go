// Package bydemand tests MIG layouts by demand while the planner, the GPU plugins, nodes and the API server fail at random moments from a
// seed. `make test-faults` runs it.
package bydemand
