/* SPDX-License-Identifier: MIT */
/* default_engine.h: allocators of an engine that nobody has named, for those who make them in a user's place: the
 * process's own (process.c) and those below a program that knows nothing of weir (drop_in.h).
 *
 * Must not know: who asks.
 */
#ifndef WEIR_DEFAULT_ENGINE_H
#define WEIR_DEFAULT_ENGINE_H

#include <weir/allocator.h>

#include "config/settings.h"
#include "driver/driver.h"

/* weir_options_from_env, in a user's place: see settings.h.  `sources` may be NULL. */
weir_status weir__choice_options(weir_options *options, struct weir_sources *sources, char *message,
                                 size_t message_bytes);

/* As weir__allocator_create, of options.device, which is that one, and options of weir__choice_options, to which an
 * arena names its engine.  Where they name none, nor want what only a pool has, it is a mapped arena, which hardly
 * reserves more than is in use while work is pending, when every other way reserves a third more; and the pool engine
 * where the device cannot map, or not memory for hardware decompression if `decompresses', or has no addresses left.
 * The options say which one it was; on an error `message' (NUL-terminated; may be NULL with 0 bytes) says why, or is
 * empty. */
weir_status weir__choice_create(const struct weir_driver *driver, CUdevice device, int decompresses,
                                weir_options *options, weir_allocator **allocator, char *message,
                                size_t message_bytes);

#endif
