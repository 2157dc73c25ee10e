// Package conformance runs other projects' programs on fake nodes, built from their modules without any change: go-nvml, NVIDIA's
// DRA driver, device plugin, GPU feature discovery and nvidia-ctk, Node Feature Discovery, and rdmamap. Programs of Debian's
// packages are in fakes/conformance.
//
// Most of them read the machine's own hardware paths and accept no other path. So each runs in its own mount namespace, in which
// the fake node's sys, dev and proc are mounted over the kernel's. See enter.sh.
package conformance
