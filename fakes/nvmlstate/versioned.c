/*
 * go-nvml's handlers (GetGpuFabricInfoV().V3() and such) call these functions of C, whichever library their device came from. Where that is
 * package nvmlstate the handle is one of its tickets and Go answers; every other handle goes to the library that was loaded.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#include "versioned.h"

enum { function_not_found = 13 }; /* NVML_ERROR_FUNCTION_NOT_FOUND */

extern int fakefabricVersioned(void *handle, unsigned int function, unsigned int first, unsigned int second, void *out);

/* The executable's own symbols hide the library's of the same name; RTLD_NEXT is the library, which go-nvml opens for all to see. */
#define FORWARD(name, types, ...)                                           \
	int (*real) types = (int (*) types)dlsym(RTLD_NEXT, #name);         \
	return real ? real(__VA_ARGS__) : function_not_found

#define HANDLE_OUT(name, function)                                          \
	int name(void *handle, void *out)                                   \
	{                                                                   \
		int code = fakefabricVersioned(handle, function, 0, 0, out); \
		if (code != FF_NOT_OURS)                                    \
			return code;                                        \
		FORWARD(name, (void *, void *), handle, out);               \
	}

#define HANDLE_NUMBER_OUT(name, function)                                       \
	int name(void *handle, unsigned int number, void *out)                  \
	{                                                                       \
		int code = fakefabricVersioned(handle, function, number, 0, out); \
		if (code != FF_NOT_OURS)                                        \
			return code;                                            \
		FORWARD(name, (void *, unsigned int, void *), handle, number, out); \
	}

#define HANDLE_NUMBERS_OUT(name, function)                                                        \
	int name(void *handle, unsigned int first, unsigned int second, void *out)                \
	{                                                                                         \
		int code = fakefabricVersioned(handle, function, first, second, out);             \
		if (code != FF_NOT_OURS)                                                          \
			return code;                                                              \
		FORWARD(name, (void *, unsigned int, unsigned int, void *), handle, first, second, out); \
	}

HANDLE_OUT(nvmlDeviceGetGpuFabricInfo, FF_FABRIC_INFO)
HANDLE_OUT(nvmlDeviceGetGpuFabricInfoV, FF_FABRIC_INFO_V)
HANDLE_OUT(nvmlDeviceGetTemperatureV, FF_TEMPERATURE_V)
HANDLE_OUT(nvmlDeviceGetC2cModeInfoV, FF_C2C_MODE)
HANDLE_OUT(nvmlDeviceGetNvLinkInfo, FF_UNSUPPORTED)
HANDLE_NUMBER_OUT(nvmlDeviceGetGpuInstanceProfileInfo, FF_GPU_INSTANCE_PROFILE)
HANDLE_NUMBER_OUT(nvmlDeviceGetGpuInstanceProfileInfoV, FF_GPU_INSTANCE_PROFILE_V)
HANDLE_NUMBER_OUT(nvmlDeviceGetGpuInstanceProfileInfoByIdV, FF_GPU_INSTANCE_PROFILE_BY_ID_V)
HANDLE_NUMBERS_OUT(nvmlGpuInstanceGetComputeInstanceProfileInfo, FF_COMPUTE_INSTANCE_PROFILE)
HANDLE_NUMBERS_OUT(nvmlGpuInstanceGetComputeInstanceProfileInfoV, FF_COMPUTE_INSTANCE_PROFILE_V)
