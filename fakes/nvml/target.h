/* Short forms for the start of a getter. */
#pragma once
#include "handle.h"

/* Resolves `device` with ff_device or ff_whole_gpu into `t`, or returns what is wrong; `r` holds the last result. */
#define TARGET(check)                       \
	struct ff_target t;                 \
	nvmlReturn_t r = check(device, &t); \
	if (r != NVML_SUCCESS)              \
		return r

/* Returns INVALID_ARGUMENT unless the condition (usually: a pointer) holds. */
#define OUT(condition) \
	if (!(condition)) \
		return NVML_ERROR_INVALID_ARGUMENT

/* Returns ARGUMENT_VERSION_MISMATCH unless the caller's struct has the layout wanted. */
#define VERSION(pointer, wanted)               \
	OUT(pointer);                          \
	if ((pointer)->version != (wanted))    \
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH

/* A getter of one number: of the GPU, or of the node's model. */
#define CORE_NUMBER(function, type, expression)                      \
	nvmlReturn_t impl_##function(nvmlDevice_t device, type *out) \
	{                                                            \
		OUT(out);                                            \
		TARGET(ff_whole_gpu);                                \
		*out = (type)(expression);                           \
		return NVML_SUCCESS;                                 \
	}

#define MODEL_NUMBER(function, type, member)                         \
	nvmlReturn_t impl_##function(nvmlDevice_t device, type *out) \
	{                                                            \
		uint32_t v;                                          \
		OUT(out);                                            \
		TARGET(ff_device);                                   \
		if (!FF_MODEL(member, &v))                           \
			return NVML_ERROR_UNKNOWN;                   \
		*out = (type)v;                                      \
		return NVML_SUCCESS;                                 \
	}
