/* SPDX-License-Identifier: MIT */
/* check_model.h: the functions of the device model and its oracle that the self-check of a shim calls
 * (weir_torch_check.cpp).
 *
 * libweir-preload.so exports weir_check_model_open, so the self-check needs no other file and no GPU.  Each function
 * that returns an int returns a CUresult.
 */
#ifndef WEIR_CHECK_MODEL_H
#define WEIR_CHECK_MODEL_H

#include <stddef.h>
#include <stdint.h>

struct weir_check_model {
    /* Creates a stream of device 0. */
    int (*stream_create)(void **stream);
    /* Launches work of 1 ms that reads and writes a block.  No other block ever has the number `owner`. */
    int (*use)(void *stream, const void *block, size_t bytes, uint64_t owner);
    int (*synchronize)(void);
    int (*is_capturing)(void *stream, int *status);
    int (*capture_begin)(void *stream);
    /* Ends the capture and launches the captured graph on the stream, `launches` times. */
    int (*capture_end)(void *stream, int launches);
    int (*memory)(size_t *free_bytes, size_t *total);
    /* Returns a description of the first use of memory that was not ordered after the uses of the memory's earlier
     * owner.  Returns NULL if all uses were ordered. */
    const char *(*fault)(void);
};

/* weir_check_model_open makes the device model the device of weir in this process, and makes the device's context
 * current.  Returns NULL if either step fails. */
typedef const struct weir_check_model *weir_check_model_function(void);

#endif
