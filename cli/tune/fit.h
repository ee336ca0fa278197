/* SPDX-License-Identifier: MIT */
/* fit.h: whether traces are served with so much memory, and how little would do.
 *
 * Must not know: how long anything takes.
 */
#ifndef WEIR_CLI_FIT_H
#define WEIR_CLI_FIT_H

#include "cli/tune/search.h"

struct fit {
    uint64_t bytes;      /* what there is */
    int is_device;       /* of a device, of which the context takes some */
    uint64_t taken;      /* so much */
    uint64_t least;      /* if it does not fit: the smallest limit that was found; 0: none */
    struct candidate by; /* with these */
};

/* Limits the space to that memory, and its bases to those that serve all of the traces.  1: there are some; 0: none,
 * and what is missing has been looked for; -1: failed, with a message printed. */
int fit_run(struct tuning *tuning, struct fit *fit);
/* Whether the candidate serves all of the traces within the limit of the space; -1 likewise. */
int fit_holds(const struct tuning *tuning, const struct candidate *candidate);

#endif
