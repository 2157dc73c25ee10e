// Package cliques holds the fault suite of domains that are channels of their clique's IMEX daemons (computeDomains.imex: clique), with two
// controllers of which one works: daemons are cut off from each other, and the controller at work loses its lease, or is killed, in the
// middle. `make test-faults` runs it.
package cliques
