/* SPDX-License-Identifier: MIT */
/* default_engine.h: which engine serves where nobody has named one.
 *
 * Engine mapped where the device can map memory: it hardly reserves more than is in use while work is pending, when every
 * other way reserves a third more.  The pool engine where the device cannot map, or not memory for hardware
 * decompression if that is wanted, or has no addresses left; and for what only a pool has.
 *
 * Must not know: the caller.
 */
#ifndef WEIR_DEFAULT_ENGINE_H
#define WEIR_DEFAULT_ENGINE_H

#include <weir/allocator.h>

#include "config/settings.h"
#include "driver/driver.h"

/* Fills in the engine that serves these options on that device, as far as nothing need be tried, if they name none. */
void weir__default_engine_fill(const struct weir_driver *driver, CUdevice device,
                               weir_options *options);

/* As weir__allocator_create_on, of options of this version that are an allocator's.  `how': see
 * allocator_internal.h. */
weir_status weir__default_engine_create(const struct weir_driver *driver, CUdevice device,
                                        const weir_options *options, unsigned how,
                                        weir_allocator **allocator, char *message,
                                        size_t message_bytes);

#endif
