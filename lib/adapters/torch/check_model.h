/* SPDX-License-Identifier: MIT */
/* check_model.h: declares the functions of the device model, a GPU in software, for weir_torch_check.cpp.
 *
 * Each function that returns an int returns a CUresult. */
#ifndef WEIR_CHECK_MODEL_H
#define WEIR_CHECK_MODEL_H

#include <stddef.h>
#include <stdint.h>

struct weir_check_model {
    int (*stream_create)(void **stream);
    /* Launches work that uses the block for 1 ms.  The model detects two owners of the same memory. */
    int (*use)(void *stream, const void *block, size_t bytes, uint64_t owner);
    int (*synchronize)(void);
    int (*is_capturing)(void *stream, int *status);
    int (*capture_begin)(void *stream);
    /* Ends the capture, and launches the captured graph on the stream, `launches` times. */
    int (*capture_end)(void *stream, int launches);
    int (*memory)(size_t *free_bytes, size_t *total);
    /* Returns a text about the first use of memory that was not ordered after an earlier owner's work, or NULL. */
    const char *(*fault)(void);
};

/* weir_check_model_open() makes the device model and its context current in this process.  Returns NULL on failure. */
typedef const struct weir_check_model *weir_check_model_function(void);

#endif
