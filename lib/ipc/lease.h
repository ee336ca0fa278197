/* SPDX-License-Identifier: MIT */
/* lease.h: who has which shared block, in memory that exporter and importers map.
 *
 * A file without a name: a page that says whose it is, and a word for each block that is shared, which says where
 * it is in its life.  Who is alive is told by locks of the file, which the kernel drops when a process ends: the
 * exporter's on byte 0, an importer's on byte 1 + n while it has the block of place n.  Locks belong to open
 * files, so each side opens the file again for its own (through /proc/self/fd), and never hands that on.
 *
 * Must not know: blocks, drivers.
 */
#ifndef WEIR_LEASE_H
#define WEIR_LEASE_H

#include <stdint.h>

#include <weir/status.h>

#include "base/kept.h"

enum { WEIR_LOANS_PLACES = 4096 };

struct weir_loans_page;

struct weir_loans {
    struct weir_loans_page *page;
    struct weir_kept
        file; /* with this side's locks; where the program took its number all count as locked */
    struct weir_kept given; /* the exporter's: what is handed to others */
};

/* `device`: 16 bytes of a UUID.  E_HOST_MEMORY: the system has no such file. */
weir_status weir__loans_make(struct weir_loans *l, const char device[16]);
/* What an exporter gave; E_INVALID: it is no list of loans, E_NOT_OWNED: the exporter has ended. */
weir_status weir__loans_open(struct weir_loans *l, int file);
void weir__loans_close(struct weir_loans *l);
const char *weir__loans_device(const struct weir_loans *l);
/* Of this list among all. */
uint64_t weir__loans_name(const struct weir_loans *l);
/* 1 as long as the exporter has it open. */
int weir__loans_is_kept(const struct weir_loans *l);

/* The exporter's: a place for a block to be imported.  E_LIMIT: there is none. */
weir_status weir__loans_offer(struct weir_loans *l, uint32_t *place, uint64_t *life);
/* 1 if an importer had the block and has no more. */
int weir__loans_is_over(const struct weir_loans *l, uint32_t place);
/* Takes it back: OK, or E_BUSY as long as a living importer has the block. */
weir_status weir__loans_withdraw(struct weir_loans *l, uint32_t place);

/* An importer's: has the block from now on.  E_BUSY: another has it, E_NOT_OWNED: it is not offered any more. */
weir_status weir__loans_take(struct weir_loans *l, uint32_t place, uint64_t life);
void weir__loans_give(struct weir_loans *l, uint32_t place, int is_over);

#endif
