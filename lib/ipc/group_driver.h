/* SPDX-License-Identifier: MIT */
/* group_driver.h: a driver table that counts the device memory that it takes for the group of this process.
 *
 * Must not know: who calls it, who is asked to give memory back.
 */
#ifndef WEIR_GROUP_DRIVER_H
#define WEIR_GROUP_DRIVER_H

#include "driver/driver.h"

/* The table that stands before that one, if the environment names a group that this library counts for; else that one
 * (NULL too).  One per process. */
const struct weir_driver *weir__group_driver(const struct weir_driver *inner);

#endif
