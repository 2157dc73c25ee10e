/* The table of functions that nvml.h does not have, for NVIDIA's own nvidia-smi: it asks for the table by its identifier before anything
 * else and ends with "Mismatch in versions between nvidia-smi and NVML" where there is none.
 *
 * There is no public description. What stands here was found by giving nvidia-smi 535.261.03 and 550.163.01 a table of functions that write
 * down their number and arguments, answering with made-up values, and looking at what it prints. The table begins with its size in bytes;
 * the library of 535 has 245 entries and that of 550 has 251 (the size that each hands out); new ones are added behind the old, whose
 * numbers stay. An entry that answers NOT_SUPPORTED is shown as N/A or left out, so only those are here without which a command fails or a
 * table is empty. FAKEFABRIC_TRACE shows the others as stubs, by number.
 */
#include "export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "settings.h"
#include "target.h"

#define ENTRIES 251

/* Stands for every entry where delays are looked up: none can be named in a scenario. */
#define TABLE_CALL 1u

static nvmlReturn_t unsupported(unsigned int number)
{
	char name[32];
	nvmlReturn_t r = ff_call(TABLE_CALL, false);
	snprintf(name, sizeof name, "nvmlInternal.%u", number);
	ff_traced(name, r, false);
	return r;
}

/* One function an entry, so that a trace can tell which was called. */
#define E(n) __attribute__((unused)) static nvmlReturn_t entry_##n(void) { return unsupported(0x##n); }
#define ROW(x) \
	E(x##0) E(x##1) E(x##2) E(x##3) E(x##4) E(x##5) E(x##6) E(x##7) E(x##8) E(x##9) E(x##a) E(x##b) E(x##c) E(x##d) E(x##e) E(x##f)
ROW(0) ROW(1) ROW(2) ROW(3) ROW(4) ROW(5) ROW(6) ROW(7) ROW(8) ROW(9) ROW(a) ROW(b) ROW(c) ROW(d) ROW(e) ROW(f)
#undef E
#undef ROW

/* Wraps the work of an entry as exports.c wraps that of an exported function. */
#define ENTRY(number, function, parameters, arguments)                   \
	static nvmlReturn_t function##_entry parameters                  \
	{                                                                \
		nvmlReturn_t r = ff_call(TABLE_CALL, true);              \
		if (r == NVML_SUCCESS)                                   \
			r = function arguments;                          \
		ff_traced("nvmlInternal." #number "." #function, r, true); \
		return r;                                                \
	}

/* Entry 20, before a reset: whether the GPU is the one that shows the console. A server's GPU never is. */
static nvmlReturn_t is_primary(nvmlDevice_t device, unsigned int *primary)
{
	OUT(primary);
	TARGET(ff_whole_gpu);
	*primary = 0;
	return NVML_SUCCESS;
}
ENTRY(20, is_primary, (nvmlDevice_t device, unsigned int *primary), (device, primary))

/* Whether this machine's GPUs of one CPU are called SYS and not NODE apart, as those of a GB200 are, where each has a PCI domain of its
 * own. */
static bool system_between_bridges(void)
{
	unsigned int count = ff_gpu_count();
	for (unsigned int i = 0; i < count; i++) {
		struct ff_target a, b;
		if (ff_device(ff_gpu_handle(i), &a) != NVML_SUCCESS)
			continue;
		for (unsigned int j = 0; j < i; j++)
			if (ff_device(ff_gpu_handle(j), &b) == NVML_SUCCESS && memcmp(a.core.cpus, b.core.cpus, sizeof a.core.cpus) == 0 &&
			    a.core.topology[j] == NVML_TOPOLOGY_SYSTEM)
				return true;
	}
	return false;
}

/* Entry 23, for each pair of topo -m: how far two PCI functions are apart, as 0 PIX, 1 PXB, 2 PHB, 3 NODE, 4 SYS (5 and above: that many
 * NVLinks and 4). */
static nvmlReturn_t distance(const char *one, const char *other, unsigned int *level)
{
	nvmlGpuTopologyLevel_t ancestor;
	nvmlDevice_t a, b;
	OUT(one && other && level);
	if (impl_nvmlDeviceGetHandleByPciBusId_v2(one, &a) == NVML_SUCCESS && impl_nvmlDeviceGetHandleByPciBusId_v2(other, &b) == NVML_SUCCESS) {
		nvmlReturn_t r = impl_nvmlDeviceGetTopologyCommonAncestor(a, b, &ancestor);
		if (r != NVML_SUCCESS)
			return r;
	} else if (!ff_pci_ancestor(one, other, &ancestor)) {
		return NVML_ERROR_NOT_FOUND;
	} else if (ancestor == NVML_TOPOLOGY_NODE && system_between_bridges()) {
		ancestor = NVML_TOPOLOGY_SYSTEM;
	}
	switch (ancestor) {
	case NVML_TOPOLOGY_INTERNAL:
	case NVML_TOPOLOGY_SINGLE:
		*level = 0;
		break;
	case NVML_TOPOLOGY_MULTIPLE:
		*level = 1;
		break;
	case NVML_TOPOLOGY_HOSTBRIDGE:
		*level = 2;
		break;
	case NVML_TOPOLOGY_NODE:
		*level = 3;
		break;
	default:
		*level = 4;
	}
	return NVML_SUCCESS;
}
ENTRY(23, distance, (const char *one, const char *other, unsigned int *level), (one, other, level))

/* Entry 26: a line for a log, printf's arguments behind it. It is called a hundred times for each GPU of -q, so it is not traced. */
static nvmlReturn_t note(void)
{
	return NVML_SUCCESS;
}

/* Entry 72, before dmon: the kind of product; 1 and 2 are monitored, 0 is not. */
static nvmlReturn_t product(nvmlDevice_t device, unsigned int *kind)
{
	OUT(kind);
	TARGET(ff_whole_gpu);
	*kind = 1;
	return NVML_SUCCESS;
}
ENTRY(72, product, (nvmlDevice_t device, unsigned int *kind), (device, kind))

/* Entry 168: resets GPUs, and gives what came of each. */
static nvmlReturn_t reset(unsigned int count, nvmlDevice_t *devices, nvmlReturn_t *results)
{
	nvmlReturn_t first = NVML_SUCCESS;
	OUT(count && devices && results);
	for (unsigned int i = 0; i < count; i++)
		if ((results[i] = ff_reset(devices[i])) != NVML_SUCCESS && first == NVML_SUCCESS)
			first = results[i];
	return first;
}
ENTRY(168, reset, (unsigned int count, nvmlDevice_t *devices, nvmlReturn_t *results), (count, devices, results))

/* Entry 169, before a reset: how far the fabric manager has the fabric. 0 lets the reset go on; 1 to 3 did so too. */
static nvmlReturn_t fabric_state(unsigned int *state)
{
	OUT(state);
	*state = 0;
	return NVML_SUCCESS;
}
ENTRY(169, fabric_state, (unsigned int *state), (state))

/* Entries 182 to 184, before a reset: a group of the GPUs, the PCI functions that have to be reset with them, which have 32 bytes each, and
 * the group's end. A machine whose NVLinks tie GPUs together names others; the fake's are reset one by one. */
struct group {
	unsigned int count;
	nvmlDevice_t devices[];
};

static nvmlReturn_t make_group(struct group **group, const nvmlDevice_t *devices, unsigned int count)
{
	OUT(group && devices && count <= ff_gpu_count());
	*group = malloc(sizeof **group + count * sizeof *devices);
	if (!*group)
		return NVML_ERROR_MEMORY;
	(*group)->count = count;
	memcpy((*group)->devices, devices, count * sizeof *devices);
	return NVML_SUCCESS;
}
ENTRY(182, make_group, (struct group **group, const nvmlDevice_t *devices, unsigned int count), (group, devices, count))

static nvmlReturn_t functions_of(const struct group *group, char **functions, unsigned int *count)
{
	OUT(group && functions && count);
	for (unsigned int i = 0; i < group->count; i++) {
		nvmlPciInfo_t pci;
		nvmlReturn_t r = impl_nvmlDeviceGetPciInfo_v3(group->devices[i], &pci);
		if (r != NVML_SUCCESS)
			return r;
		snprintf(functions[i], 32, "%s", pci.busId);
	}
	*count = group->count;
	return NVML_SUCCESS;
}
ENTRY(183, functions_of, (const struct group *group, char **functions, unsigned int *count), (group, functions, count))

static nvmlReturn_t end_group(struct group *group)
{
	free(group);
	return NVML_SUCCESS;
}
ENTRY(184, end_group, (struct group *group), (group))

/* Entries 192 and 193: compute policies. There is one, the time slice, with number 0. */
struct policy {
	unsigned int number, value;
};

struct policies {
	unsigned int count;
	struct policy policies[1]; /* how many there is room for was not found out */
};

static nvmlReturn_t set_policy(nvmlDevice_t device, const struct policy *policy)
{
	OUT(policy && policy->number == 0);
	return ff_set_time_slice(device, policy->value);
}
ENTRY(192, set_policy, (nvmlDevice_t device, const struct policy *policy), (device, policy))

static nvmlReturn_t get_policies(nvmlDevice_t device, struct policies *all)
{
	OUT(all);
	TARGET(ff_whole_gpu);
	all->count = 1;
	all->policies[0] = (struct policy){.number = 0, .value = t.core.time_slice};
	return NVML_SUCCESS;
}
ENTRY(193, get_policies, (nvmlDevice_t device, struct policies *all), (device, all))

/* Entries 213, 214 and 215: processes that compute, processes that compute through MPS (nvidia-smi writes M+C where one is in both lists),
 * and processes that draw. The public functions are not asked. */
struct named_process {
	unsigned int pid;
	unsigned long long memory;
	unsigned int gpu_instance, compute_instance;
	unsigned long long protected_memory;
	char name[4096];
};
_Static_assert(sizeof(struct named_process) == 4128, "nvidia-smi takes memory for 500 times 4128 bytes");

enum { COMPUTE = 1, GRAPHICS = 2, MPS = 4 };

static void name_of(const struct ff_process *table, unsigned int pid, char *name, size_t size)
{
	for (int i = 0; i < FF_MAX_PROCESSES; i++)
		if (table[i].pid == pid && table[i].name[0]) {
			snprintf(name, size, "%.*s", (int)sizeof table[i].name, table[i].name);
			return;
		}
	if (impl_nvmlSystemGetProcessName(pid, name, (unsigned int)size) != NVML_SUCCESS)
		snprintf(name, size, "[Not Found]");
}

static nvmlReturn_t list(nvmlDevice_t device, unsigned int kinds, unsigned int *count, struct named_process *out)
{
	typedef nvmlReturn_t (*lister)(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *);
	static const struct {
		unsigned int kind;
		lister list;
	} listers[] = {
		{COMPUTE, impl_nvmlDeviceGetComputeRunningProcesses_v3},
		{GRAPHICS, impl_nvmlDeviceGetGraphicsRunningProcesses_v3},
		{MPS, impl_nvmlDeviceGetMPSComputeRunningProcesses_v3},
	};
	struct ff_process table[FF_MAX_PROCESSES];
	unsigned int found = 0;
	OUT(count);
	TARGET(ff_device);
	if (!ff_state_copy(ff_gpu_offset(t.gpu) + offsetof(struct ff_gpu, processes), table, sizeof table))
		return NVML_ERROR_UNKNOWN;
	for (size_t k = 0; k < sizeof listers / sizeof listers[0]; k++) {
		nvmlProcessInfo_t infos[FF_MAX_PROCESSES];
		unsigned int n = FF_MAX_PROCESSES;
		if (!(kinds & listers[k].kind))
			continue;
		if ((r = listers[k].list(device, &n, infos)) != NVML_SUCCESS)
			return r;
		for (unsigned int i = 0; i < n; i++, found++) {
			if (!out || found >= *count)
				continue;
			out[found] = (struct named_process){.pid = infos[i].pid,
							    .memory = infos[i].usedGpuMemory,
							    .gpu_instance = infos[i].gpuInstanceId,
							    .compute_instance = infos[i].computeInstanceId};
			name_of(table, infos[i].pid, out[found].name, sizeof out[found].name);
		}
	}
	bool fits = found == 0 || (out && found <= *count);
	*count = found;
	return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

static nvmlReturn_t computing(nvmlDevice_t device, unsigned int *count, struct named_process *out)
{
	return list(device, COMPUTE | MPS, count, out);
}
ENTRY(213, computing, (nvmlDevice_t device, unsigned int *count, struct named_process *out), (device, count, out))

static nvmlReturn_t through_mps(nvmlDevice_t device, unsigned int *count, struct named_process *out)
{
	return list(device, MPS, count, out);
}
ENTRY(214, through_mps, (nvmlDevice_t device, unsigned int *count, struct named_process *out), (device, count, out))

static nvmlReturn_t drawing(nvmlDevice_t device, unsigned int *count, struct named_process *out)
{
	return list(device, GRAPHICS, count, out);
}
ENTRY(215, drawing, (nvmlDevice_t device, unsigned int *count, struct named_process *out), (device, count, out))

/* Entry 223, for topo -C: the NUMA nodes of the CPUs that are nearest, a bit each, in so many words. The last argument has been 0 each
 * time, as the scope of nvmlDeviceGetMemoryAffinity would be. */
static nvmlReturn_t cpu_nodes(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
	nvmlPciInfo_t pci;
	OUT(words && set);
	nvmlReturn_t r = impl_nvmlDeviceGetPciInfo_v3(device, &pci);
	if (r != NVML_SUCCESS)
		return r;
	int node = ff_pci_numa_node(pci.busId);
	if (node < 0 || (unsigned int)node >= words * 8 * sizeof *set)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(set, 0, words * sizeof *set);
	set[(unsigned int)node / (8 * sizeof *set)] = 1ul << (unsigned int)node % (8 * sizeof *set);
	return NVML_SUCCESS;
}
ENTRY(223, cpu_nodes, (nvmlDevice_t device, unsigned int words, unsigned long *set), (device, words, set))

typedef void (*entry)(void);

/* The first place has the size. The entries that are implemented take the place of those that are not. */
#pragma GCC diagnostic ignored "-Woverride-init"
#define E(n) [0x##n] = (entry)entry_##n,
#define ROW(x) \
	E(x##0) E(x##1) E(x##2) E(x##3) E(x##4) E(x##5) E(x##6) E(x##7) E(x##8) E(x##9) E(x##a) E(x##b) E(x##c) E(x##d) E(x##e) E(x##f)
static const entry table[256] = {
	ROW(0) ROW(1) ROW(2) ROW(3) ROW(4) ROW(5) ROW(6) ROW(7) ROW(8) ROW(9) ROW(a) ROW(b) ROW(c) ROW(d) ROW(e) ROW(f)
	[0] = (entry)(ENTRIES * sizeof(entry)),
	[20] = (entry)is_primary_entry,
	[23] = (entry)distance_entry,
	[26] = (entry)note,
	[72] = (entry)product_entry,
	[168] = (entry)reset_entry,
	[169] = (entry)fabric_state_entry,
	[182] = (entry)make_group_entry,
	[183] = (entry)functions_of_entry,
	[184] = (entry)end_group_entry,
	[192] = (entry)set_policy_entry,
	[193] = (entry)get_policies_entry,
	[213] = (entry)computing_entry,
	[214] = (entry)through_mps_entry,
	[215] = (entry)drawing_entry,
	[223] = (entry)cpu_nodes_entry,
};

EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **out, const unsigned char id[16])
{
	static const unsigned char known[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
	/* NVIDIA's library hands the table out before nvmlInit, and calls any other identifier, and no pointer, an invalid argument. */
	if (!out || !id || memcmp(id, known, sizeof known) != 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = table;
	return NVML_SUCCESS;
}
