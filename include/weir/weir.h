/* SPDX-License-Identifier: MIT */
/* weir/weir.h: includes all public headers of weir, except weir/cuda.h, which needs CUDA's headers, weir/adapters.h and
 * weir/tensors.h.
 *
 * Most programs need six calls of weir/allocator.h:
 *     weir_allocator_create     creates an allocator on one device
 *     weir_alloc                allocates a block of device memory for use on a stream
 *     weir_free                 frees a block in the order of a stream
 *     weir_stats                copies the figures of the allocator
 *     weir_trim                 releases idle memory to the device
 *     weir_allocator_destroy    destroys the allocator
 *
 * A complete program:
 *
 *     #include <stdio.h>
 *     #include <weir/weir.h>
 *
 *     int main(void) {
 *         weir_statistics stats = {.size = sizeof stats};
 *         weir_allocator *weir = NULL;
 *         weir_stream stream = NULL; // the default stream; or any cudaStream_t or CUstream
 *         weir_options options;
 *         weir_status status;
 *         void *block;
 *
 *         weir_options_init(&options);
 *         options.device = "model"; // the device model; without this line it is the first GPU
 *         status = weir_allocator_create(&options, &weir);
 *         if (status == WEIR_OK)
 *             status = weir_alloc(weir, 64 << 20, stream, &block);
 *         // launch work on the stream, which uses the block
 *         if (status == WEIR_OK)
 *             status = weir_free(weir, block, stream);
 *         if (status == WEIR_OK)
 *             status = weir_trim(weir, 0, NULL);
 *         if (status == WEIR_OK)
 *             status = weir_stats(weir, &stats);
 *         printf("%llu MiB reserved at most\n", (unsigned long long)(stats.reserved_peak >> 20));
 *         if (status == WEIR_OK)
 *             status = weir_allocator_destroy(weir);
 *         puts(weir_status_message(status));
 *         return status != WEIR_OK;
 *     }
 *
 * Compile it with
 *     cc prog.c $(pkg-config --cflags --libs weir) */
#ifndef WEIR_WEIR_H
#define WEIR_WEIR_H

#include <weir/allocator.h>
#include <weir/growth.h>
#include <weir/oom_report.h>
#include <weir/options.h>
#include <weir/share.h>
#include <weir/stats.h>
#include <weir/status.h>
#include <weir/trace.h>

#endif
