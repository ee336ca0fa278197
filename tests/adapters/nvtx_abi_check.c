/* SPDX-License-Identifier: MIT */
/* nvtx_abi_check.c: lib/adapters/record/nvtx_abi.h against NVTX of the toolkit.
 *
 * The compiler makes each check.  A toolkit without NVTX 3 leaves nothing to compare. */
#include <stddef.h>
#include <stdio.h>

#include "adapters/record/nvtx_abi.h"

#ifdef __has_include
#if __has_include(<nvtx3/nvToolsExt.h>)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wcast-function-type"
#include <nvtx3/nvToolsExt.h>
#pragma GCC diagnostic pop
#define HAVE_NVTX 1
#endif
#endif

#ifdef HAVE_NVTX
#define SAME(ours, theirs) _Static_assert((ours) == (long)(theirs), #ours)
#define SAME_FIELD(ours, theirs)                                                                   \
    _Static_assert(offsetof(struct weir_nvtx_attributes, ours) ==                                  \
                           offsetof(nvtxEventAttributes_t, theirs) &&                              \
                       sizeof(((struct weir_nvtx_attributes *)0)->ours) ==                         \
                           sizeof(((nvtxEventAttributes_t *)0)->theirs),                           \
                   #ours)

SAME(WEIR_NVTX_ETID_CALLBACKS, NVTX_ETID_CALLBACKS);
SAME(WEIR_NVTX_CORE, NVTX_CB_MODULE_CORE);
SAME(WEIR_NVTX_CORE2, NVTX_CB_MODULE_CORE2);
SAME(WEIR_NVTX_MARK_EX, NVTX_CBID_CORE_MarkEx);
SAME(WEIR_NVTX_MARK_A, NVTX_CBID_CORE_MarkA);
SAME(WEIR_NVTX_MARK_W, NVTX_CBID_CORE_MarkW);
SAME(WEIR_NVTX_RANGE_START_EX, NVTX_CBID_CORE_RangeStartEx);
SAME(WEIR_NVTX_RANGE_START_A, NVTX_CBID_CORE_RangeStartA);
SAME(WEIR_NVTX_RANGE_START_W, NVTX_CBID_CORE_RangeStartW);
SAME(WEIR_NVTX_RANGE_PUSH_EX, NVTX_CBID_CORE_RangePushEx);
SAME(WEIR_NVTX_RANGE_PUSH_A, NVTX_CBID_CORE_RangePushA);
SAME(WEIR_NVTX_RANGE_PUSH_W, NVTX_CBID_CORE_RangePushW);
SAME(WEIR_NVTX_RANGE_POP, NVTX_CBID_CORE_RangePop);
SAME(WEIR_NVTX_DOMAIN_RANGE_START_EX, NVTX_CBID_CORE2_DomainRangeStartEx);
SAME(WEIR_NVTX_DOMAIN_REGISTER_STRING_A, NVTX_CBID_CORE2_DomainRegisterStringA);
SAME(WEIR_NVTX_DOMAIN_REGISTER_STRING_W, NVTX_CBID_CORE2_DomainRegisterStringW);
SAME(WEIR_NVTX_MESSAGE_UNICODE, NVTX_MESSAGE_TYPE_UNICODE);
SAME(WEIR_NVTX_MESSAGE_REGISTERED, NVTX_MESSAGE_TYPE_REGISTERED);
SAME(WEIR_NVTX_NO_PUSH_POP_TRACKING, NVTX_NO_PUSH_POP_TRACKING);
SAME(WEIR_NVTX_DOMAIN_MARK_EX, NVTX_CBID_CORE2_DomainMarkEx);
SAME(WEIR_NVTX_DOMAIN_RANGE_PUSH_EX, NVTX_CBID_CORE2_DomainRangePushEx);
SAME(WEIR_NVTX_DOMAIN_RANGE_POP, NVTX_CBID_CORE2_DomainRangePop);
SAME(WEIR_NVTX_MESSAGE_ASCII, NVTX_MESSAGE_TYPE_ASCII);

SAME(sizeof(struct weir_nvtx_attributes), sizeof(nvtxEventAttributes_t));
SAME_FIELD(version, version);
SAME_FIELD(size, size);
SAME_FIELD(category, category);
SAME_FIELD(color_type, colorType);
SAME_FIELD(color, color);
SAME_FIELD(payload_type, payloadType);
SAME_FIELD(reserved, reserved0);
SAME_FIELD(payload, payload);
SAME_FIELD(message_type, messageType);
SAME_FIELD(message, message);

SAME(sizeof(struct weir_nvtx_callbacks), sizeof(NvtxExportTableCallbacks));
SAME(offsetof(struct weir_nvtx_callbacks, table_of),
     offsetof(NvtxExportTableCallbacks, GetModuleFunctionTable));

int main(void) {
    puts("1..1\nok 1 - nvtx_abi.h is what the toolkit's NVTX says");
    return 0;
}
#else
int main(void) {
    puts("1..0 # SKIP no NVTX 3 in the toolkit");
    return 77;
}
#endif
