/* SPDX-License-Identifier: MIT */
/* result.h: stores the result of the driver call that made a call of weir fail.  This file must not know the meaning of
 * the driver's numbers. */
#ifndef WEIR_RESULT_H
#define WEIR_RESULT_H

#include <weir/status.h>

#include "base/tls.h"

/* Sets the result that weir_last_driver_result() returns on this thread.  The result is the CUresult of the driver call
 * that failed, or 0 if no driver call failed.  Every public call that fails sets the result.  A public call that
 * succeeds does not change it. */
void weir__set_driver_result(int result);

/* Returns `status`.  If `status` is a failure, sets the thread's last driver result to 0, because no driver call has
 * failed. */
weir_status weir__without_driver(weir_status status);

/* The result that weir_last_driver_result() returns on this thread.  The hit path reads the variable with one
 * instruction (TLS model initial-exec). */
extern _Thread_local int weir__driver_result WEIR_FAST_TLS;

#endif
