/* SPDX-License-Identifier: MIT */
/* weir/weir.h: all of weir's public interface (weir/cuda.h apart, which needs CUDA's headers). */
#ifndef WEIR_WEIR_H
#define WEIR_WEIR_H

#include <weir/allocator.h>
#include <weir/growth.h>
#include <weir/options.h>
#include <weir/share.h>
#include <weir/stats.h>
#include <weir/status.h>
#include <weir/trace.h>
#include <weir/verdict.h>

#endif
