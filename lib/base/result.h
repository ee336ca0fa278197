/* SPDX-License-Identifier: MIT */
/* result.h: the driver's result of a failed call.  This file must not know the meaning of the driver's numbers. */
#ifndef WEIR_RESULT_H
#define WEIR_RESULT_H

#include <weir/status.h>

#include "base/tls.h"

/* Sets the value of weir_last_driver_result on this thread: the CUresult that made a call fail, or 0 if no driver call
 * failed.  Every public call that fails sets the value; no other call does. */
void weir__set_driver_result(int result);

/* Returns the status.  If the status is a failure, sets the thread's driver result to 0, since no driver call
 * failed. */
weir_status weir__without_driver(weir_status status);

/* The value of weir_last_driver_result.  The hit path reads the variable by one instruction (initial-exec). */
extern _Thread_local int weir__driver_result WEIR_FAST_TLS;

#endif
