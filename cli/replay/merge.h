/* SPDX-License-Identifier: MIT */
/* merge.h: one record out of what two children tell of the same replay.
 *
 * One child timed single operations, the other allocations and frees of each iteration as one
 * stretch.  Times of iterations, and what follows from them (first, steady), become those of the
 * stretches; sums of single operations stay beside them under keys with `single`.  What was refused is told
 * of the one that was refused more.  Everything else, so also which iterations are steady, is told by the child
 * of single operations.
 *
 * Must not know: how either was measured.
 */
#ifndef WEIR_CLI_MERGE_H
#define WEIR_CLI_MERGE_H

#include <jansson.h>

/* Changes `result`, the record of single operations.  NULL, or what is wrong; `result` is then
 * unchanged. */
const char *merge_stretches(json_t *result, const json_t *stretches);

#endif
