/* Names of results. */
#include "cuda.h"

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	switch (error) {
#define CASE(e)            \
	case e:            \
		*name = #e; \
		return CUDA_SUCCESS
		CASE(CUDA_SUCCESS);
		CASE(CUDA_ERROR_INVALID_VALUE);
		CASE(CUDA_ERROR_OUT_OF_MEMORY);
		CASE(CUDA_ERROR_NOT_INITIALIZED);
		CASE(CUDA_ERROR_DEVICE_UNAVAILABLE);
		CASE(CUDA_ERROR_NO_DEVICE);
		CASE(CUDA_ERROR_INVALID_DEVICE);
		CASE(CUDA_ERROR_INVALID_CONTEXT);
		CASE(CUDA_ERROR_NOT_FOUND);
		CASE(CUDA_ERROR_NOT_READY);
		CASE(CUDA_ERROR_CONTEXT_IS_DESTROYED);
		CASE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
		CASE(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
		CASE(CUDA_ERROR_NOT_SUPPORTED);
		CASE(CUDA_ERROR_UNKNOWN);
	default:
		*name = NULL;
		return CUDA_ERROR_INVALID_VALUE;
	}
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
	return cuGetErrorName(error, text);
}
