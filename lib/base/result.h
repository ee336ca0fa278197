/* SPDX-License-Identifier: MIT */
/* result.h: stores the CUresult of a failed driver call for weir_last_driver_result(). */
#ifndef WEIR_RESULT_H
#define WEIR_RESULT_H

#include <weir/status.h>

#include "base/tls.h"

/* Sets the value that weir_last_driver_result() returns in this thread.  Every public call that fails must set the
 * value, to 0 if no driver call failed. */
void weir__set_driver_result(int result);

/* Returns `status`.  If it is a failure, sets weir_last_driver_result() to 0, since no driver call was the cause. */
weir_status weir__without_driver(weir_status status);

/* The value of weir_last_driver_result().  weir_alloc and weir_free read it by one instruction (tls.h). */
extern _Thread_local int weir__driver_result WEIR_FAST_TLS;

#endif
