/* SPDX-License-Identifier: MIT */
/* default_engine.h: chooses the engine if the options name none.
 *
 * The choice is engine mapped if the device can map memory: while work is pending, other engines reserve about a third
 * more.  The choice is the pool engine if the device cannot map memory, cannot map memory for hardware decompression
 * although that is wanted, or has no addresses left, and if an option is set that only a pool has.
 *
 * This file must not know the caller.
 */
#ifndef WEIR_DEFAULT_ENGINE_H
#define WEIR_DEFAULT_ENGINE_H

#include <weir/allocator.h>

#include "config/settings.h"
#include "driver/driver.h"

/* Sets options->engine to mapped if the options name no engine and the device can map memory.  Allocates nothing to
 * find out. */
void weir__default_engine_fill(const struct weir_driver *driver, CUdevice device,
                               weir_options *options);

/* Creates an allocator as weir__allocator_create_on does, with complete options.  `how` has the WEIR_CREATE_ bits of
 * allocator_internal.h. */
weir_status weir__default_engine_create(const struct weir_driver *driver, CUdevice device,
                                        const weir_options *options, unsigned how,
                                        weir_allocator **allocator, char *message,
                                        size_t message_bytes);

#endif
