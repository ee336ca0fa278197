/* SPDX-License-Identifier: MIT */
/* plugins.h: declares the functions that the adapters of this folder share: they write error messages, and make
 * frees that cannot fail.
 *
 * This file must not know a framework, or any header of weir except include/weir.
 */
#ifndef WEIR_PLUGINS_H
#define WEIR_PLUGINS_H

#include <weir/adapters.h>
#include <weir/weir.h>

/* Writes an error message about a failed request of `bytes` to `text`, without a newline.  `who` is the name of the
 * function that failed. */
void weir__adapter_text(char *text, size_t text_bytes, const char *who, size_t bytes,
                        weir_status status);
/* Prints the message of weir__adapter_text() as a line on standard error, but only once for each status. */
void weir__adapter_refused(const char *who, size_t bytes, weir_status status);

/* Prints a line to say that weir could not record a stream's use of a block, but only once for each status. */
void weir__adapter_lost_use(const char *who, const void *block, weir_status status);

/* Prints a line about a failed call of the function `who` that has no block, but only once for each status. */
void weir__adapter_failed(const char *who, weir_status status);

/* Frees a block in the order of `stream`.  If `order` is WEIR__ADAPTER_ANY, frees the block after the work of all
 * streams.  If the free is not possible now, adds the free to a list for later and returns WEIR_OK.  If the program
 * has made an error, prints a message that begins with `who`. */
enum weir__adapter_order { WEIR__ADAPTER_STREAM, WEIR__ADAPTER_ANY };
weir_status weir__adapter_free(const char *who, weir_allocator *allocator, void *block,
                               enum weir__adapter_order order, weir_stream stream);
/* Repeats the frees that were not possible before.  Called before each request of a framework. */
void weir__adapter_settle(void);

/* Writes the allocator of the block to *allocator.  If no allocator has the block, writes the allocator of the
 * stream's device. */
weir_status weir__adapter_owner(const void *block, weir_stream stream, weir_allocator **allocator);

#endif
