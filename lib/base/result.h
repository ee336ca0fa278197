/* SPDX-License-Identifier: MIT */
/* result.h: stores the CUresult of the driver call because of which a call of weir failed.  This file must not depend
 * on the meaning of a CUresult. */
#ifndef WEIR_RESULT_H
#define WEIR_RESULT_H

#include <weir/status.h>

#include "base/tls.h"

/* Sets the value that weir_last_driver_result() returns in this thread: the CUresult of the driver call that failed, or
 * 0 if no driver call failed.  Every public call that fails sets this value.  A public call that succeeds does not
 * change it. */
void weir__set_driver_result(int result);

/* Returns `status`.  If `status` is a failure, sets the value of weir_last_driver_result() to 0, because the failure
 * has another cause than a driver call. */
weir_status weir__without_driver(weir_status status);

/* The value that weir_last_driver_result() returns in this thread.  The TLS model initial-exec makes an access one
 * instruction, since weir_alloc and weir_free read this variable. */
extern _Thread_local int weir__driver_result WEIR_FAST_TLS;

#endif
