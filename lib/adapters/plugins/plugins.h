/* SPDX-License-Identifier: MIT */
/* plugins.h: declares functions that all adapters of this folder need: error messages, and frees that cannot fail.
 *
 * This file must not depend on a framework, or on headers of weir outside include/weir. */
#ifndef WEIR_PLUGINS_H
#define WEIR_PLUGINS_H

#include <weir/adapters.h>
#include <weir/weir.h>

/* Writes an error message about a failed request, without a newline.  `who` is the name of the function that failed. */
void weir__adapter_text(char *text, size_t text_bytes, const char *who, size_t bytes,
                        weir_status status);
/* Prints an error line about a failed request, but only once for each status. */
void weir__adapter_report_failure(const char *who, size_t bytes, weir_status status);

/* Reports, once for each status, that weir could not record a stream's use of a block. */
void weir__adapter_lost_use(const char *who, const void *block, weir_status status);

/* Prints an error line about a failed call that concerns no block, but only once for each status. */
void weir__adapter_failed(const char *who, weir_status status);

/* Frees a block in the order of `stream`, or of all streams (WEIR__ADAPTER_ANY).  If the free is not possible now,
 * retries the free later and returns WEIR_OK. */
enum weir__adapter_order { WEIR__ADAPTER_STREAM, WEIR__ADAPTER_ANY };
weir_status weir__adapter_free(const char *who, weir_allocator *allocator, void *block,
                               enum weir__adapter_order order, weir_stream stream);
/* Retries the frees that were not possible before.  Each adapter calls this function before it allocates memory. */
void weir__adapter_retry_frees(void);

/* Finds the allocator that contains the block.  If there is none, finds the allocator of the stream's device. */
weir_status weir__adapter_owner(const void *block, weir_stream stream, weir_allocator **allocator);

#endif
