/* SPDX-License-Identifier: MIT */
/* every_kind.h: each way of handing out blocks, with the front and without, for suites that go through all.
 *
 * Must not know: what is asked of them.
 */
#ifndef WEIR_TEST_EVERY_KIND_H
#define WEIR_TEST_EVERY_KIND_H

#include "support.h"

static const struct {
    int kind, front;
} worlds[] = {
    {KIND_POOL, WEIR_SWITCH_ON},     {KIND_POOL, WEIR_SWITCH_OFF},
    {KIND_FIXED, WEIR_SWITCH_ON},    {KIND_FIXED, WEIR_SWITCH_OFF},
    {KIND_REGIONS, WEIR_SWITCH_ON},  {KIND_REGIONS, WEIR_SWITCH_OFF},
    {KIND_MAPPED, WEIR_SWITCH_ON},   {KIND_MAPPED, WEIR_SWITCH_OFF},
    {KIND_PLATFORM, WEIR_SWITCH_ON}, {KIND_PLATFORM, WEIR_SWITCH_OFF},
};
enum { WORLDS = sizeof worlds / sizeof worlds[0] };

#endif
