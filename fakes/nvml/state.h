/* The node's state file, mapped into this process. See package state for the layout and the rules. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "state_layout.h"

/* ff_state_open finds and maps the state file: FAKEFABRIC_ROOT, else the root that this library lies in, else /var/lib/fakefabric or
 * /proc/driver/fakefabric, which need /dev/nvidiactl as a driver does. */
bool ff_state_open(void);

/*
 * ff_state_opens tells whether this process can open a GPU, by the minor of its device node. Where the driver is the machine's own a GPU
 * without its node in
 * /dev is not there for NVML: a container sees the GPUs whose nodes it was given, with indices of their own
 * (docs.nvidia.com/datacenter/cloud-native/container-toolkit: NVIDIA_VISIBLE_DEVICES).
 */
bool ff_state_opens(uint32_t minor);

/* ff_state_pin finds the file once for everything this thread does until ff_state_unpin. */
void ff_state_pin(void);
void ff_state_unpin(void);

/* ff_library_version writes the full version in this library's file name (libnvidia-ml.so.550.163.01): the driver that it was installed
 * with. False where the name has none. */
bool ff_library_version(char *version, size_t size);

/* ff_state_delays is how many functions are slow, in the pinned file. */
uint32_t ff_state_delays(void);

/* ff_state_header gives the mapped file, the newest one if it was replaced, or NULL when it is gone or damaged. */
const struct ff_header *ff_state_header(void);

/* ff_state_gpus tells how many GPUs the node has; false when the state is gone. */
bool ff_state_gpus(unsigned int *count);

/* ff_state_root writes the node's root directory into a buffer of PATH_MAX bytes. */
bool ff_state_root(char *path);

/* ff_state_administered tells whether this process may change what nvml.h keeps for administrators (modes, MIG instances): root may, and so
 * may the owner of the state file, so that a fake works without root. Every client may write the file, because its memory and its process
 * stand there. */
bool ff_state_administered(void);

/* ff_state_copy copies from the current body; false when the state is gone or the range is outside the body. */
bool ff_state_copy(size_t offset, void *out, size_t size);

/* Where a GPU's part starts in the body. */
static inline size_t ff_gpu_offset(unsigned int gpu)
{
	return sizeof(struct ff_node) + (size_t)gpu * sizeof(struct ff_gpu);
}

enum ff_update { FF_UPDATED, FF_UPDATE_REFUSED, FF_UPDATE_NO_PERMISSION, FF_UPDATE_GONE };

/* ff_state_update runs change on a copy of the body, as the only writer on the node, and makes that copy the current one if it returns
 * true. */
enum ff_update ff_state_update(
	bool (*change)(struct ff_node *node, struct ff_gpu *gpus, unsigned int count, void *argument), void *argument);

/* ff_state_hold locks a byte of the file (a made-up one, behind its end) for as long as this process lives; only within a change.
 * ff_state_held tells whether another process holds it, or where that cannot be told. */
void ff_state_hold(uint64_t place);
bool ff_state_held(uint64_t place);

/* ff_state_client notes that this process has the GPUs open through NVML, or (false) no longer. It stays noted in a file that takes this
 * one's place. ff_state_other_clients tells whether anybody else has them open, or where that cannot be told. */
void ff_state_client(bool open);
bool ff_state_other_clients(void);

/* ff_state_wait sleeps until the wake word differs from value, or the time is over. */
void ff_state_wait(const struct ff_header *header, uint32_t value, unsigned int milliseconds);
