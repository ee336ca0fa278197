/* SPDX-License-Identifier: MIT */
/* weir/weir.h: all public headers of weir but weir/cuda.h, which needs CUDA's headers, and weir/adapters.h. */
#ifndef WEIR_WEIR_H
#define WEIR_WEIR_H

#include <weir/allocator.h>
#include <weir/growth.h>
#include <weir/oom_report.h>
#include <weir/options.h>
#include <weir/share.h>
#include <weir/stats.h>
#include <weir/status.h>
#include <weir/trace.h>

#endif
