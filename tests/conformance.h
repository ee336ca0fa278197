/* SPDX-License-Identifier: MIT */
/* conformance.h: the parts of the conformance suite. */
#ifndef WEIR_TEST_CONFORMANCE_H
#define WEIR_TEST_CONFORMANCE_H

#include <check.h>

/* conformance_driver.c: what is asked of the driver alone. */
void add_driver_points(Suite *suite);

#endif
