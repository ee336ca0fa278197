/* SPDX-License-Identifier: MIT */
/* group.h: the process group of the program's own allocators.
 *
 * Must not know: what they are for.
 */
#ifndef WEIR_CLI_GROUP_H
#define WEIR_CLI_GROUP_H

#include "driver/driver.h"

/* What this process takes of the device counts for the group of the environment: the table to call in place of that
 * one, which it is if there is no group.  NULL: it cannot take part, and a message has said why. */
const struct weir_driver *group_driver(const struct weir_driver *driver, int ordinal);

#endif
