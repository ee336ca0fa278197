/* SPDX-License-Identifier: MIT */
/* top_view.h: shows the programs that `weir top' has found, as a table or as JSON.
 *
 * This file must not depend on the terminal, or on how the figures were read.
 */
#ifndef WEIR_CLI_TOP_VIEW_H
#define WEIR_CLI_TOP_VIEW_H

#include <jansson.h>
#include <stdio.h>

#include "api/show.h"
#include "cli/holders.h"

struct top_program {
    struct weir_segment_name name;
    /* The error at the last read of the shared file with the program's figures, or WEIR_SEGMENT_NONE. */
    enum weir_segment_fault fault;
    int is_running; /* set if the program was still running at the last read */
    int has_now;    /* set if `now' is valid */
    int has_before; /* set if `before' is valid */
    int is_fault_reported; /* set if a message has reported `fault' */
    /* The newest figures, and older figures; the rates are computed from both. */
    struct weir_show now, before;
};

/* The column by which the table is sorted.  TOP_BY_PID puts the smallest value first, the others the largest. */
enum top_order { TOP_BY_RESERVED, TOP_BY_IN_USE, TOP_BY_REQUESTS, TOP_BY_PID, TOP_ORDERS };

struct top {
    struct top_program **programs;
    enum top_order order;
    size_t count;
    struct holders holders; /* the processes that hold memory of each device */
    uint64_t now_ns;        /* the time of the last read, by CLOCK_MONOTONIC */
    char message[1024];     /* the message under the table on a terminal, or "" */
};

/* Returns the title of the column by which the table is sorted. */
const char *top_order_name(enum top_order order);
/* Sorts the programs by the column top->order. */
void top_sort(struct top *top);
/* Prints a table of the running programs. */
void top_print(FILE *file, const struct top *top);
/* Returns the programs as a JSON object, or NULL if there is no host memory. */
json_t *top_json(const struct top *top);
/* Writes the name of a program for messages, such as "12345 (python train.py)". */
void top_name(const struct top_program *program, char *text, size_t bytes);

#endif
