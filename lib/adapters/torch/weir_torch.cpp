// SPDX-License-Identifier: MIT
// weir_torch.cpp: weir as PyTorch's allocator; compiled for one PyTorch by weir_torch_build.py.
#include <c10/cuda/CUDACachingAllocator.h>

extern "C" __attribute__((visibility("default"))) int weir_torch_install(void) {
    return 1;
}
