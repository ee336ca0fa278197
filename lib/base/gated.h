/* SPDX-License-Identifier: MIT */
/* gated.h: what libweir-gate.so (adapters/gate) has for weir in the same process; where it is not there, the process is
 * never parked.
 *
 * Must not know: how a process is parked.
 */
#ifndef WEIR_GATED_H
#define WEIR_GATED_H

#include <stdint.h>

/* This thread is one of weir's own: what it asks of the driver does not keep the process from being parked, nor wake it. */
void weir__gated_begin(void);
/* Around what such a thread does with the driver, or with a lock that others wait for: 1; 0: the process is parked, or
 * about to be, so it does nothing, and need not rest. */
int weir__gated_works(void);
void weir__gated_rests(void);
/* 1: the process has no device memory now. */
int weir__gated_is_away(void);
/* 1: the process may be parked while it is idle, or while it waits for memory. */
int weir__gated_may_park(void);
/* Waits so long; holds no lock.  A process that may be parked may be so meanwhile, since it lacks that many bytes, and is
 * back afterwards.  0 bytes: it lacks nothing any more. */
void weir__gated_pause(uint64_t lacks, unsigned ms);

#endif
