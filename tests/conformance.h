/* SPDX-License-Identifier: MIT */
/* conformance.h: the parts of the conformance suite. */
#ifndef WEIR_TEST_CONFORMANCE_H
#define WEIR_TEST_CONFORMANCE_H

#include <check.h>

/* conformance_driver.c: what is asked of the driver alone. */
void add_driver_points(Suite *suite);
/* What is asked in a process of its own, since a driver may crash there (WEIR_TEST_ASK is set): its exit
 * status. */
int answer_alone(const char *question);

#endif
