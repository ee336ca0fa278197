/* SPDX-License-Identifier: MIT */
/* result.h: the driver's part in a failure. Must not know: what the numbers mean. */
#ifndef WEIR_RESULT_H
#define WEIR_RESULT_H

/* What weir_last_driver_result answers on this thread from now on: the CUresult that made a call
 * fail, 0 when it failed without the driver.  For every failing public call, and for no other. */
void weir__set_driver_result(int result);

#endif
