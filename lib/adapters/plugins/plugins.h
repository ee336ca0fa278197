/* SPDX-License-Identifier: MIT */
/* plugins.h: what the plug-in points share: telling what was refused, and frees that cannot fail.
 *
 * Must not know: a framework; anything of weir's but include/weir.
 */
#ifndef WEIR_PLUGINS_H
#define WEIR_PLUGINS_H

#include <weir/adapters.h>
#include <weir/weir.h>

/* What a refused request of so many bytes should be told as, without a newline. */
void weir__adapter_text(char *text, size_t text_bytes, const char *who, size_t bytes,
                        weir_status status);
/* That, as a line on standard error; of the same status the first. */
void weir__adapter_refused(const char *who, size_t bytes, weir_status status);

/* A use that could not be noted, likewise. */
void weir__adapter_lost_use(const char *who, const void *block, weir_status status);

/* A call about no block, likewise. */
void weir__adapter_failed(const char *who, weir_status status);

/* Frees on `stream`, or for any stream; what is refused for now is kept for later, and OK is the answer;
 * what is a mistake is told as `who`. */
enum weir__adapter_order { WEIR__ADAPTER_STREAM, WEIR__ADAPTER_ANY };
weir_status weir__adapter_free(const char *who, weir_allocator *allocator, void *block,
                               enum weir__adapter_order order, weir_stream stream);
/* Before a request: does what was kept. */
void weir__adapter_settle(void);

/* The block's allocator, or that of the stream's device where it cannot be told. */
weir_status weir__adapter_owner(const void *block, weir_stream stream, weir_allocator **allocator);

#endif
