/* SPDX-License-Identifier: MIT */
/* check_model.h: the device model and its oracle, as the self-check of a shim (weir_torch_check.cpp) uses them.
 *
 * libweir-preload.so has this function, so that a self-check needs no other file and no GPU.  Results are CUresult.
 */
#ifndef WEIR_CHECK_MODEL_H
#define WEIR_CHECK_MODEL_H

#include <stddef.h>
#include <stdint.h>

struct weir_check_model {
    /* Creates a stream of device 0. */
    int (*stream_create)(void **stream);
    /* Launches work of 1 ms that reads and writes a block; `owner` is a number that no other block ever has. */
    int (*use)(void *stream, const void *block, size_t bytes, uint64_t owner);
    int (*synchronize)(void);
    int (*is_capturing)(void *stream, int *status);
    int (*capture_begin)(void *stream);
    /* Ends the capture and launches its graph on the stream, `launches` times. */
    int (*capture_end)(void *stream, int launches);
    int (*memory)(size_t *free_bytes, size_t *total);
    /* Returns a text about the first use that was not ordered behind an earlier owner's use of its bytes.  Returns NULL if
     * there was none. */
    const char *(*fault)(void);
};

/* weir_check_model_open makes the device model the device of weir in this process, and its context current.  Returns NULL
 * if that fails. */
typedef const struct weir_check_model *weir_check_model_function(void);

#endif
