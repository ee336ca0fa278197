/* SPDX-License-Identifier: MIT */
/* preload_driver.c: stands for the device model, which libweir-preload.so does not have: the allocators of `weir run'
 * serve the driver's calls of a program, so they need the driver.
 */
#include <stdio.h>

#include "driver/driver.h"

/* Returns NULL and writes the reason to *failure. */
const struct weir_driver *weir__driver_model(struct weir_driver_failure *failure) {
    snprintf(failure->text, sizeof failure->text, "weir run has no device model");
    return NULL;
}
