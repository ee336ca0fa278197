/* SPDX-License-Identifier: MIT */
/* modules.h: the files to which code addresses of another process belong.
 *
 * Must not know: why the caller needs the file.
 */
#ifndef WEIR_CLI_MODULES_H
#define WEIR_CLI_MODULES_H

#include <stddef.h>
#include <stdint.h>

#include "base/map.h"

struct module {
    uint64_t begin, end;
    char *name; /* without the folder */
};

struct modules {
    int process;
    struct module *modules; /* sorted by address */
    size_t count, room;
    struct weir_map nowhere; /* page + 1 of each page that belongs to no file */
    size_t last;             /* the module that was found last */
};

/* Reads the mappings of the process. */
void modules_begin(struct modules *modules, int process);
/* Returns the name of the file, which stays valid until the next call, or NULL if the file is not known.  Reads the
 * mappings again if no known file has the address, since a process may load libraries at any time.  Keeps what is known
 * if the process has ended. */
const char *modules_find(struct modules *modules, uint64_t address);
void modules_end(struct modules *modules);

#endif
