/* SPDX-License-Identifier: MIT */
/* model_kernel.c: modules, and the one kernel that the model plays.
 *
 * The model runs no code.  It knows a kernel by its name: weir_delay, whose only parameter is a
 * uint64_t, the nanoseconds that the launch keeps its stream busy.  Every module holds that kernel
 * and no other, whatever its image says, so there is one handle for all modules and one for the
 * kernel.
 *
 * Must not know: who wants a stream to be busy.
 */
#include "driver/model/model_inside.h"

#include <string.h>

static char delay_module, delay_kernel; /* their addresses are the handles */

static int is_module(CUmodule handle) {
    return (void *)handle == &delay_module;
}

CUresult weir__model_cuModuleLoadData(CUmodule *handle, const void *image) {
    CUresult why = CUDA_SUCCESS;

    if (!handle || !image)
        return CUDA_ERROR_INVALID_VALUE;
    if (weir__model_current(&why))
        *handle = (CUmodule)(void *)&delay_module;
    return why;
}

CUresult weir__model_cuModuleUnload(CUmodule handle) {
    return is_module(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult weir__model_cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name) {
    if (!function || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_module(handle))
        return CUDA_ERROR_INVALID_HANDLE;
    if (strcmp(name, "weir_delay") != 0)
        return CUDA_ERROR_NOT_FOUND;
    *function = (CUfunction)(void *)&delay_kernel;
    return CUDA_SUCCESS;
}

CUresult weir__model_cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                    unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                    unsigned int block_z, unsigned int shared_bytes,
                                    CUstream handle, void **parameters, void **extra) {
    CUresult why = CUDA_SUCCESS;
    struct model_stream *stream;
    struct model_step step = {.kind = STEP_KERNEL};

    if ((void *)function != &delay_kernel)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z || !parameters ||
        !parameters[0])
        return CUDA_ERROR_INVALID_VALUE;
    if (shared_bytes || extra)
        return CUDA_ERROR_NOT_SUPPORTED;
    stream = weir__model_stream(handle, &why);
    if (!stream)
        return why;
    memcpy(&step.duration_ns, parameters[0], sizeof step.duration_ns);
    weir__model_lock();
    why = weir__model_stream_kernel(stream, &step);
    weir__model_unlock();
    return why;
}
