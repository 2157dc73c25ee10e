/* The part of the export table that is not NVML: the PCI tree. */
#pragma once
#include "impl.h"
#include "state.h"

/* Tells how far two PCI functions are apart by the node's sys/bus/pci, as NVML would of two GPUs; false where one of them is not there. */
bool ff_pci_ancestor(const char *one, const char *other, nvmlGpuTopologyLevel_t *level);

/* The NUMA node that the kernel says a PCI function is at; -1 where it is at none, or not there. */
int ff_pci_numa_node(const char *id);
