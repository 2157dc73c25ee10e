// Package rdmakernel runs the RDMA drivers' own code on Debian's kernel, in a machine that QEMU emulates: no KVM, no root and no hardware
// is needed.
//
// The kernel, its modules and QEMU are Debian 12's packages, QEMU from its backports (which has an SR-IOV device); they are downloaded by
// apt into the cache and unpacked there. The machine has two NUMA nodes, PCIe switches, a network controller with virtual functions and a
// display controller. Debian's rdma_rxe is a software device there; the device below PCI functions that moves between network namespaces is
// testhca, a kernel module of ours that is built against Debian's headers (testhca/, under the GPL as an alternative). The guest's first
// process is a Go test binary: drivers/rdma/kerneltest.
package rdmakernel
