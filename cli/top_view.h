/* SPDX-License-Identifier: MIT */
/* top_view.h: what `weir top' has seen of programs, as text and as JSON.
 *
 * Must not know: terminals, where figures come from.
 */
#ifndef WEIR_CLI_TOP_VIEW_H
#define WEIR_CLI_TOP_VIEW_H

#include <jansson.h>
#include <stdio.h>

#include "api/show.h"
#include "cli/holders.h"

struct top_program {
    struct weir_segment_name name;
    enum weir_segment_fault fault; /* of the last look */
    int is_there;                  /* at the last look */
    int is_known;                  /* `now' was read at least once */
    int has_before;
    int was_said;                 /* what is wrong with it */
    struct weir_show now, before; /* as last read; as last shown */
};

struct top {
    struct top_program **programs;
    size_t count;
    struct holders holders; /* of the devices, as far as they are known */
    uint64_t now_ns;        /* CLOCK_MONOTONIC of the last look */
    char message[1024];     /* under the table on a terminal; "": none */
};

/* A table of all that are there. */
void top_print(FILE *file, const struct top *top);
/* An object; NULL: no memory. */
json_t *top_json(const struct top *top);
/* "12345 (python train.py)" */
void top_name(const struct top_program *program, char *text, size_t bytes);

#endif
