/* SPDX-License-Identifier: MIT */
/* figures.h: what the repeats of one configuration on one trace come to, out of their JSON. */
#ifndef WEIR_CLI_FIGURES_H
#define WEIR_CLI_FIGURES_H

#include <jansson.h>

#include "cli/report/choices.h"

/* Medians over the repeats.  The range of the steady time: of several processes, from the least to the most of theirs;
 * of one, the middle half of its steady iterations, and at least 20% to each side: by so much processes differ on a
 * machine that has other work, and one alone cannot tell.  1, or 0: out of memory. */
int figures_of(const json_t *const results[], size_t count, struct choice_figures *out);

#endif
