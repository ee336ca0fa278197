/* SPDX-License-Identifier: MIT */
/* nvtx_abi_check.c: lib/driver/nvtx_abi.h against NVTX of the toolkit.
 *
 * All of it is checked as it is compiled; a toolkit without NVTX 3 leaves nothing to compare. */
#include <stddef.h>
#include <stdio.h>

#include "driver/nvtx_abi.h"

#ifdef __has_include
#if __has_include(<nvtx3/nvToolsExt.h>)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wcast-function-type"
#include <nvtx3/nvToolsExt.h>
#if __has_include(<nvtx3/nvToolsExtMem.h>)
#include <nvtx3/nvToolsExtMem.h>
#define HAVE_NVTX_MEM 1
#endif
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

#ifdef HAVE_NVTX_MEM
#define SAME_IN(ours, theirs, our_field, their_field)                                              \
    _Static_assert(offsetof(struct ours, our_field) == offsetof(theirs, their_field) &&            \
                       sizeof(((struct ours *)0)->our_field) ==                                    \
                           sizeof(((theirs *)0)->their_field),                                     \
                   #ours " " #our_field)

SAME(WEIR_NVTX_EXT_MEM, NVTX_EXT_MODULEID_MEM);
SAME(WEIR_NVTX_EXT_MEM_VERSION, NVTX_EXT_COMPATID_MEM);
SAME(WEIR_NVTX_EXT_MEM_SLOTS, NVTX_EXT_MEM_SLOT_COUNT);
SAME(WEIR_NVTX_EXT_FRESH, NVTX_EXTENSION_FRESH);
SAME(WEIR_NVTX_EXT_DISABLED, NVTX_EXTENSION_DISABLED);
SAME(WEIR_NVTX_MEM_REGIONS_REGISTER, NVTX3EXT_CBID_nvtxMemRegionsRegister);
SAME(WEIR_NVTX_MEM_REGIONS_UNREGISTER, NVTX3EXT_CBID_nvtxMemRegionsUnregister);
SAME(WEIR_NVTX_MEM_REGIONS_NAME, NVTX3EXT_CBID_nvtxMemRegionsName);
SAME(WEIR_NVTX_MEM_VIRTUAL_ADDRESS, NVTX_MEM_TYPE_VIRTUAL_ADDRESS);
SAME(WEIR_NVTX_MEM_BY_POINTER, NVTX_MEM_REGION_REF_TYPE_POINTER);

SAME(sizeof(struct weir_nvtx_segment), sizeof(nvtxExtModuleSegment_t));
SAME_IN(weir_nvtx_segment, nvtxExtModuleSegment_t, id, segmentId);
SAME_IN(weir_nvtx_segment, nvtxExtModuleSegment_t, slots, slotCount);
SAME_IN(weir_nvtx_segment, nvtxExtModuleSegment_t, functions, functionSlots);
SAME(sizeof(struct weir_nvtx_extension), sizeof(nvtxExtModuleInfo_t));
SAME_IN(weir_nvtx_extension, nvtxExtModuleInfo_t, version, nvtxVer);
SAME_IN(weir_nvtx_extension, nvtxExtModuleInfo_t, size, structSize);
SAME_IN(weir_nvtx_extension, nvtxExtModuleInfo_t, module, moduleId);
SAME_IN(weir_nvtx_extension, nvtxExtModuleInfo_t, compatible, compatId);
SAME_IN(weir_nvtx_extension, nvtxExtModuleInfo_t, segments, segmentsCount);
SAME_IN(weir_nvtx_extension, nvtxExtModuleInfo_t, segment, segments);
SAME_IN(weir_nvtx_extension, nvtxExtModuleInfo_t, export_function, getExportFunction);
SAME_IN(weir_nvtx_extension, nvtxExtModuleInfo_t, info, extInfo);
SAME(sizeof(struct weir_nvtx_range), sizeof(nvtxMemVirtualRangeDesc_t));
SAME_IN(weir_nvtx_range, nvtxMemVirtualRangeDesc_t, size, size);
SAME_IN(weir_nvtx_range, nvtxMemVirtualRangeDesc_t, pointer, ptr);
SAME(sizeof(struct weir_nvtx_regions_register), sizeof(nvtxMemRegionsRegisterBatch_t));
SAME_IN(weir_nvtx_regions_register, nvtxMemRegionsRegisterBatch_t, compatible, extCompatID);
SAME_IN(weir_nvtx_regions_register, nvtxMemRegionsRegisterBatch_t, size, structSize);
SAME_IN(weir_nvtx_regions_register, nvtxMemRegionsRegisterBatch_t, type, regionType);
SAME_IN(weir_nvtx_regions_register, nvtxMemRegionsRegisterBatch_t, heap, heap);
SAME_IN(weir_nvtx_regions_register, nvtxMemRegionsRegisterBatch_t, count, regionCount);
SAME_IN(weir_nvtx_regions_register, nvtxMemRegionsRegisterBatch_t, element_size,
        regionDescElementSize);
SAME_IN(weir_nvtx_regions_register, nvtxMemRegionsRegisterBatch_t, elements, regionDescElements);
SAME_IN(weir_nvtx_regions_register, nvtxMemRegionsRegisterBatch_t, handles,
        regionHandleElementsOut);
SAME(sizeof(struct weir_nvtx_regions_unregister), sizeof(nvtxMemRegionsUnregisterBatch_t));
SAME_IN(weir_nvtx_regions_unregister, nvtxMemRegionsUnregisterBatch_t, by, refType);
SAME_IN(weir_nvtx_regions_unregister, nvtxMemRegionsUnregisterBatch_t, count, refCount);
SAME_IN(weir_nvtx_regions_unregister, nvtxMemRegionsUnregisterBatch_t, element_size,
        refElementSize);
SAME_IN(weir_nvtx_regions_unregister, nvtxMemRegionsUnregisterBatch_t, elements, refElements);
SAME(sizeof(const void *), sizeof(nvtxMemRegionRef_t));
SAME(sizeof(struct weir_nvtx_region_name), sizeof(nvtxMemRegionNameDesc_t));
SAME_IN(weir_nvtx_region_name, nvtxMemRegionNameDesc_t, by, regionRefType);
SAME_IN(weir_nvtx_region_name, nvtxMemRegionNameDesc_t, message_type, nameType);
SAME_IN(weir_nvtx_region_name, nvtxMemRegionNameDesc_t, region, region);
SAME_IN(weir_nvtx_region_name, nvtxMemRegionNameDesc_t, message, name);
SAME_IN(weir_nvtx_region_name, nvtxMemRegionNameDesc_t, category, category);
SAME(sizeof(struct weir_nvtx_regions_name), sizeof(nvtxMemRegionsNameBatch_t));
SAME_IN(weir_nvtx_regions_name, nvtxMemRegionsNameBatch_t, compatible, extCompatID);
SAME_IN(weir_nvtx_regions_name, nvtxMemRegionsNameBatch_t, size, structSize);
SAME_IN(weir_nvtx_regions_name, nvtxMemRegionsNameBatch_t, count, regionCount);
SAME_IN(weir_nvtx_regions_name, nvtxMemRegionsNameBatch_t, element_size, regionElementSize);
SAME_IN(weir_nvtx_regions_name, nvtxMemRegionsNameBatch_t, elements, regionElements);
#endif

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
