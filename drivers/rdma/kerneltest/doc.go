// Package kerneltest tests the RDMA code with a real kernel: discovery, health, events and moves between network namespaces.
//
// Its tests have the build tag rdmaguest and run as the first process of a virtual machine, which `make rdma-kernel` emulates. They
// load kernel modules, make and remove devices, and power the machine off at the end. tests/rdmakernel makes that machine.
package kerneltest
