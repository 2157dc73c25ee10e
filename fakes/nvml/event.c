/* Events: sets, what they are registered for, and waiting. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "target.h"

#define SUPPORTED \
	(nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | nvmlEventTypePState | nvmlEventTypeXidCriticalError | \
		nvmlEventTypeClock)

/* A set remembers, for each GPU, which types it wants, and how far in the node's count of events it has looked. `magic` tells a set
 * that lives from one that was freed, as far as memory allows. */
struct set {
	uint64_t magic;
	uint64_t seen;
	uint64_t wanted[FF_MAX_GPUS];
	const struct ff_header *header; /* the file that `seen` counts in */
};

#define MAGIC 0x6576656e74736574ull

static struct set *of(nvmlEventSet_t handle)
{
	struct set *s = (struct set *)handle.handle;
	return s && s->magic == MAGIC ? s : NULL;
}

nvmlReturn_t impl_nvmlEventSetCreate(nvmlEventSet_t *out)
{
	OUT(out);
	struct set *s = calloc(1, sizeof *s);
	if (!s)
		return NVML_ERROR_MEMORY;
	s->magic = MAGIC;
	s->header = ff_state_header();
	s->seen = s->header ? __atomic_load_n(&s->header->event_head, __ATOMIC_ACQUIRE) : 0;
	out->handle = (void *)s;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlEventSetFree(nvmlEventSet_t handle)
{
	struct set *s = of(handle);
	OUT(s);
	s->magic = 0;
	free(s);
	return NVML_SUCCESS;
}

static unsigned long long supported(void)
{
	uint32_t ecc;
	if (FF_MODEL(ecc, &ecc) && ecc)
		return SUPPORTED;
	return SUPPORTED & ~(unsigned long long)(nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError);
}

nvmlReturn_t impl_nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	OUT(types);
	TARGET(ff_device);
	*types = supported();
	return NVML_SUCCESS;
}

/* Registering a MIG device registers its GPU: events then name the instances. */
nvmlReturn_t impl_nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t handle)
{
	struct set *s = of(handle);
	OUT(s);
	TARGET(ff_device);
	if (types & ~supported())
		return NVML_ERROR_NOT_SUPPORTED;
	__atomic_or_fetch(&s->wanted[t.gpu], types, __ATOMIC_RELEASE);
	return NVML_SUCCESS;
}

/* Takes the next event that the set wants; older ones than the ring holds are lost, as on a real machine. */
static bool take(struct set *s, nvmlEventData_t *data)
{
	const struct ff_header *h = s->header;
	uint64_t head = __atomic_load_n(&h->event_head, __ATOMIC_ACQUIRE);
	if (head > s->seen + FF_EVENT_RING)
		s->seen = head - FF_EVENT_RING;
	while (s->seen < head) {
		const struct ff_event *slot = &h->events[s->seen % FF_EVENT_RING];
		struct ff_event e;
		memcpy(&e, slot, sizeof e);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		uint64_t number = __atomic_load_n(&slot->number, __ATOMIC_RELAXED);
		s->seen++;
		if (e.number != s->seen || number != s->seen || e.gpu >= FF_MAX_GPUS || !(s->wanted[e.gpu] & e.type))
			continue;
		*data = (nvmlEventData_t){.device = ff_gpu_handle(e.gpu),
			.eventType = e.type,
			.eventData = e.data,
			.gpuInstanceId = e.gpu_instance,
			.computeInstanceId = e.compute_instance};
		return true;
	}
	return false;
}

static uint64_t milliseconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

nvmlReturn_t impl_nvmlEventSetWait_v2(nvmlEventSet_t handle, nvmlEventData_t *data, unsigned int timeout)
{
	struct set *s = of(handle);
	OUT(s && data);
	uint64_t end = milliseconds() + timeout;
	for (;;) {
		const struct ff_header *h = ff_state_header();
		if (!h)
			return NVML_ERROR_UNKNOWN;
		if (h != s->header) { /* the node was rendered again, and counts from 0 again */
			s->header = h;
			s->seen = 0;
		}
		uint32_t word = __atomic_load_n(&h->wake, __ATOMIC_ACQUIRE);
		if (take(s, data))
			return NVML_SUCCESS;
		uint64_t now = milliseconds();
		if (now >= end)
			return NVML_ERROR_TIMEOUT;
		ff_state_wait(h, word, (unsigned int)(end - now));
	}
}

/* Version 1 has no instance IDs. */
nvmlReturn_t impl_nvmlEventSetWait(nvmlEventSet_t handle, nvmlEventData_t *data, unsigned int timeout)
{
	nvmlEventData_t all;
	OUT(data);
	nvmlReturn_t r = impl_nvmlEventSetWait_v2(handle, &all, timeout);
	if (r == NVML_SUCCESS)
		memcpy(data, &all, offsetof(nvmlEventData_t, gpuInstanceId));
	return r;
}
