// Package kerneltest tests the RDMA code against a kernel: discovery, health, events and moves between network namespaces.
//
// Its tests have the build tag rdmaguest and run as the first process of a machine of their own, which `make rdma-kernel` emulates: they
// load kernel modules, make and remove devices, and power the machine off at the end. tests/rdmakernel makes that machine.
package kerneltest
