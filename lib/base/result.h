/* SPDX-License-Identifier: MIT */
/* result.h: the driver's result of a failed call.  This file must not know what the driver's numbers mean. */
#ifndef WEIR_RESULT_H
#define WEIR_RESULT_H

#include <weir/status.h>

#include "base/tls.h"

/* Sets the value of weir_last_driver_result on this thread: the CUresult that made a call fail, or 0 if no driver call
 * failed.  Every public call that fails sets it, and no other call. */
void weir__set_driver_result(int result);

/* Returns the status.  For a failure it sets the driver result to 0, since no driver call failed. */
weir_status weir__without_driver(weir_status status);

/* The value of weir_last_driver_result, for the hit path, which reads it by one instruction (initial-exec). */
extern _Thread_local int weir__driver_result WEIR_FAST_TLS;

#endif
