/* SPDX-License-Identifier: MIT */
/* top_view.h: the programs that `weir top' has seen, as text and as JSON.
 *
 * This file must not know terminals or the source of the figures.
 */
#ifndef WEIR_CLI_TOP_VIEW_H
#define WEIR_CLI_TOP_VIEW_H

#include <jansson.h>
#include <stdio.h>

#include "api/show.h"
#include "cli/holders.h"

struct top_program {
    struct weir_segment_name name;
    enum weir_segment_fault fault; /* the fault at the last look */
    int is_there;                  /* set if the program was there at the last look */
    int is_known;                  /* set if `now' was read at least once */
    int has_before;                /* set if `before' has figures */
    int was_said;                  /* set if a message has reported the fault */
    struct weir_show now, before;  /* the figures as last read, and as last shown */
};

/* The key by which the table is sorted; process ids rise, all other keys fall. */
enum top_order { TOP_BY_RESERVED, TOP_BY_IN_USE, TOP_BY_REQUESTS, TOP_BY_PID, TOP_ORDERS };

struct top {
    struct top_program **programs;
    enum top_order order;
    size_t count;
    struct holders holders; /* the processes on each known device */
    uint64_t now_ns;        /* CLOCK_MONOTONIC of the last look */
    char message[1024];     /* the last message, under the table on a terminal, or "" */
};

/* Returns the title of the column by which `order' sorts. */
const char *top_order_name(enum top_order order);
/* Sorts the programs by top->order. */
void top_sort(struct top *top);
/* Prints a table of all programs that run now. */
void top_print(FILE *file, const struct top *top);
/* Returns an object, or NULL if there is no host memory. */
json_t *top_json(const struct top *top);
/* Writes a name such as "12345 (python train.py)". */
void top_name(const struct top_program *program, char *text, size_t bytes);

#endif
