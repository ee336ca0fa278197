/* SPDX-License-Identifier: MIT */
/* modules.h: which file the code at an address of another process is from.
 *
 * Must not know: why it is asked.
 */
#ifndef WEIR_CLI_MODULES_H
#define WEIR_CLI_MODULES_H

#include <stddef.h>
#include <stdint.h>

#include "base/map.h"

struct module {
    uint64_t begin, end;
    size_t name; /* where it begins in the names */
};

struct modules {
    int process;
    struct module *modules; /* by address */
    size_t count, room;
    char *names;
    size_t used, names_room;
    struct weir_map nowhere; /* pages that are no file's: page + 1 */
    size_t last;             /* found */
};

/* Reads what the process has mapped now; what was known stays if it has ended. */
void modules_begin(struct modules *modules, int process);
/* The file's name without its folder, until the next call; NULL: it is not known.  Reads again where an
 * address is in no file that is known, which libraries that came later are. */
const char *modules_find(struct modules *modules, uint64_t address);
void modules_end(struct modules *modules);

#endif
