// Package conformance shows fake nodes to other projects' programs, built from their modules and not changed in any way: go-nvml, NVIDIA's
// DRA driver, device plugin, GPU feature discovery and nvidia-ctk, Node Feature Discovery, and rdmamap. Programs of Debian's packages are
// in fakes/conformance.
//
// Most of them look where a machine keeps its hardware and take no other path. Each is run in a mount namespace of its own, in which the
// fake node's sys, dev and proc lie where the kernel's are. See enter.sh.
package conformance
