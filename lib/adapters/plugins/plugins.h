/* SPDX-License-Identifier: MIT */
/* plugins.h: the functions that the plug-in points share: error messages, and frees that cannot fail.
 *
 * This file must not know a framework, or any header of weir except include/weir.
 */
#ifndef WEIR_PLUGINS_H
#define WEIR_PLUGINS_H

#include <weir/adapters.h>
#include <weir/weir.h>

/* Writes the text for a request of `bytes` that failed, without a newline. */
void weir__adapter_text(char *text, size_t text_bytes, const char *who, size_t bytes,
                        weir_status status);
/* Prints the text of weir__adapter_text as a line on standard error, once for each status. */
void weir__adapter_refused(const char *who, size_t bytes, weir_status status);

/* Prints a line about a use of a block that weir could not note, once for each status. */
void weir__adapter_lost_use(const char *who, const void *block, weir_status status);

/* Prints a line about a failed call that concerns no block, once for each status. */
void weir__adapter_failed(const char *who, weir_status status);

/* Frees a block on `stream`, or for any stream if `order` is WEIR__ADAPTER_ANY.  If weir refuses the free for now,
 * keeps it for later and returns WEIR_OK.  Reports a wrong free in the name of `who`. */
enum weir__adapter_order { WEIR__ADAPTER_STREAM, WEIR__ADAPTER_ANY };
weir_status weir__adapter_free(const char *who, weir_allocator *allocator, void *block,
                               enum weir__adapter_order order, weir_stream stream);
/* Tries the kept frees again.  Called before each request of a framework. */
void weir__adapter_settle(void);

/* Finds the allocator of a block.  If no allocator knows the block, finds the allocator of the stream's device. */
weir_status weir__adapter_owner(const void *block, weir_stream stream, weir_allocator **allocator);

#endif
