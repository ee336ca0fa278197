/* SPDX-License-Identifier: MIT */
/* result.h: the driver's part in a failure. Must not know: what the numbers mean. */
#ifndef WEIR_RESULT_H
#define WEIR_RESULT_H

#include <weir/status.h>

#include "base/tls.h"

/* What weir_last_driver_result answers on this thread from now on: the CUresult that made a call
 * fail, 0 when it failed without the driver.  For every failing public call, and for no other. */
void weir__set_driver_result(int result);

/* Passes a status on; a failure is one that the driver had no part in. */
weir_status weir__without_driver(weir_status status);

/* What weir_last_driver_result answers, for the hit path.  Initial-exec: one instruction to read. */
extern _Thread_local int weir__driver_result WEIR_FAST_TLS;

#endif
