/* SPDX-License-Identifier: MIT */
/* nvtx_abi_check.c: lib/nvtx_abi.h against NVTX of the toolkit.
 *
 * All of it is checked as it is compiled; a toolkit without NVTX 3 leaves nothing to compare. */
#include <stddef.h>
#include <stdio.h>

#include "nvtx_abi.h"

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

SAME(WEIR_NVTX_VERSION, NVTX_VERSION);
SAME(WEIR_NVTX_ETID_CALLBACKS, NVTX_ETID_CALLBACKS);
SAME(WEIR_NVTX_ETID_VERSIONINFO, NVTX_ETID_VERSIONINFO);
SAME(WEIR_NVTX_CORE, NVTX_CB_MODULE_CORE);
SAME(WEIR_NVTX_CUDA, NVTX_CB_MODULE_CUDA);
SAME(WEIR_NVTX_OPENCL, NVTX_CB_MODULE_OPENCL);
SAME(WEIR_NVTX_CUDART, NVTX_CB_MODULE_CUDART);
SAME(WEIR_NVTX_CORE2, NVTX_CB_MODULE_CORE2);
SAME(WEIR_NVTX_SYNC, NVTX_CB_MODULE_SYNC);
SAME(WEIR_NVTX_MODULES, NVTX_CB_MODULE_SIZE);
SAME(WEIR_NVTX_CORE_SIZE, NVTX_CBID_CORE_SIZE);
SAME(WEIR_NVTX_CUDA_SIZE, NVTX_CBID_CUDA_SIZE);
SAME(WEIR_NVTX_OPENCL_SIZE, NVTX_CBID_OPENCL_SIZE);
SAME(WEIR_NVTX_CUDART_SIZE, NVTX_CBID_CUDART_SIZE);
SAME(WEIR_NVTX_CORE2_SIZE, NVTX_CBID_CORE2_SIZE);
SAME(WEIR_NVTX_SYNC_SIZE, NVTX_CBID_SYNC_SIZE);
SAME(WEIR_NVTX_DOMAIN_MARK_EX, NVTX_CBID_CORE2_DomainMarkEx);
SAME(WEIR_NVTX_DOMAIN_RANGE_PUSH_EX, NVTX_CBID_CORE2_DomainRangePushEx);
SAME(WEIR_NVTX_DOMAIN_RANGE_POP, NVTX_CBID_CORE2_DomainRangePop);
SAME(WEIR_NVTX_DOMAIN_NAME_CATEGORY_A, NVTX_CBID_CORE2_DomainNameCategoryA);
SAME(WEIR_NVTX_DOMAIN_CREATE_A, NVTX_CBID_CORE2_DomainCreateA);
SAME(WEIR_NVTX_PAYLOAD_UNSIGNED_INT64, NVTX_PAYLOAD_TYPE_UNSIGNED_INT64);
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
SAME(sizeof(struct weir_nvtx_version_info), sizeof(NvtxExportTableVersionInfo));
SAME(offsetof(struct weir_nvtx_version_info, version),
     offsetof(NvtxExportTableVersionInfo, version));
SAME(offsetof(struct weir_nvtx_version_info, set_injection_version),
     offsetof(NvtxExportTableVersionInfo, SetInjectionNvtxVersion));

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
