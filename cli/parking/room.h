/* SPDX-License-Identifier: MIT */
/* room.h: how much host memory a process may take, and how much device memory it may have.
 *
 * Must not know: why.
 */
#ifndef WEIR_CLI_PARKING_ROOM_H
#define WEIR_CLI_PARKING_ROOM_H

#include <stdint.h>
#include <sys/types.h>

#include "driver/driver.h"

/* Bytes that the process may take of the host: what the kernel says is available, and no more than its control groups
 * leave it.  `proc' and `groups' are "/proc" and "/sys/fs/cgroup". */
uint64_t room_of_host(const char *proc, const char *groups, pid_t pid);
/* Bytes of all devices together. */
uint64_t room_of_devices(const struct weir_driver *driver);
/* Bytes that are used of all devices, but for what other processes under weir have of them: no process has more.  Makes
 * contexts. */
uint64_t room_used(const struct weir_driver *driver, pid_t but);
/* Bytes that are free of all devices together; 0 of one that has no room for a context.  Makes contexts. */
uint64_t room_left(const struct weir_driver *driver);
/* 1: the host has room for what the process may have of devices: `most' bytes, or all that it may (0); 0 and why not. */
enum { ROOM_WHY = 256 };
int room_for(const struct weir_driver *driver, pid_t pid, uint64_t most, char why[ROOM_WHY]);

#endif
