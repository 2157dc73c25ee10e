/* Settings that nvml.h has no function for. */
#pragma once
#include "impl.h"

/* Sets the compute policy's time slice: 0 default, 1 short, 2 medium, 3 long. */
nvmlReturn_t ff_set_time_slice(nvmlDevice_t device, uint32_t slice);

/* Resets a GPU, as nvidia-smi --gpu-reset does; IN_USE where somebody uses it or has it open. */
nvmlReturn_t ff_reset(nvmlDevice_t device);
