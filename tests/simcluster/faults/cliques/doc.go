// Package cliques holds the fault suite of domains that are channels of their clique's IMEX daemons (computeDomains.imex:
// clique), with two controllers, one of which leads. Daemons are cut off from each other, their sessions end, plugins are killed, a node is
// lost, and the leader loses its lease, or is killed, in the middle of its work. `make test-faults` runs it.
package cliques
