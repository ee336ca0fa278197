/* SPDX-License-Identifier: MIT */
/* result.c: the names and messages of statuses, and the CUresult of the driver call that failed last in this thread. */
#include "base/result.h"

#include <weir/status.h>

_Thread_local int weir__driver_result WEIR_FAST_TLS;

const char *weir_status_name(weir_status status) {
    switch ((int)status) {
#define STATUS_NAME(name, value, message)                                                          \
    case WEIR_##name:                                                                              \
        return "WEIR_" #name;
        WEIR_STATUSES(STATUS_NAME)
#undef STATUS_NAME
    default:
        return "unknown status";
    }
}

const char *weir_status_message(weir_status status) {
    switch ((int)status) {
#define STATUS_MESSAGE(name, value, message)                                                       \
    case WEIR_##name:                                                                              \
        return message;
        WEIR_STATUSES(STATUS_MESSAGE)
#undef STATUS_MESSAGE
    default:
        return "unknown status";
    }
}

int weir_last_driver_result(void) {
    return weir__driver_result;
}

void weir__set_driver_result(int result) {
    weir__driver_result = result;
}

weir_status weir__without_driver(weir_status status) {
    if (status != WEIR_OK)
        weir__driver_result = 0;
    return status;
}
