/* SPDX-License-Identifier: MIT */
/* test_asserts.h: mistakes in placements, whose records have names that other headers have, too. */
#ifndef WEIR_TEST_ASSERTS_H
#define WEIR_TEST_ASSERTS_H

#include "placement/placement.h"

/* Makes the sum of bytes wrong (0), or the first clean chunk too short (1), or removes its class from its set (2). */
void plant_in_placement(struct weir_placement *p, int mistake);

#endif
