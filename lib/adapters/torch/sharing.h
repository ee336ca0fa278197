// SPDX-License-Identifier: MIT
// sharing.h: makes the handles by which PyTorch shares tensors among processes, and opens other processes' memory.
//
// Include errors.h before this file.
#pragma once

#include <cstring>
#include <mutex>
#include <unordered_map>

#include <c10/cuda/CUDAException.h>

namespace weir_torch {

// PyTorch sends a handle to another process as text.  The first letter tells whether CUDA or weir has made the handle.
constexpr char CUDA_HANDLE = 'c';
constexpr char WEIR_HANDLE = 'w';

inline cca::ShareableHandle share(void *block) {
    size_t bytes = 0, offset = 0;
    weir_status status = weir_tensors_ipc_make(block, nullptr, 0, &bytes, &offset);
    TORCH_CHECK(status != WEIR_E_NOT_SUPPORTED,
                "weir: tensors can be sent to other processes with engine mapped (WEIR_ENGINE) and "
                "a device that exports memory as file descriptors");
    check(status, "sharing a tensor");
    std::string text(bytes, '\0');
    check(weir_tensors_ipc_make(block, &text[0], text.size(), nullptr, &offset),
          "sharing a tensor");
    text.pop_back();
    return {static_cast<ptrdiff_t>(offset), WEIR_HANDLE + text};
}

inline void *open_handle(const std::string &handle) {
    void *base = nullptr;
    if (handle.size() == 1 + sizeof(cudaIpcMemHandle_t) && handle[0] == CUDA_HANDLE) {
        cudaIpcMemHandle_t cuda;
        std::memcpy(&cuda, handle.data() + 1, sizeof cuda);
        C10_CUDA_CHECK(cudaIpcOpenMemHandle(&base, cuda, cudaIpcMemLazyEnablePeerAccess));
        return base;
    }
    TORCH_CHECK(!handle.empty() && handle[0] == WEIR_HANDLE,
                "weir: a tensor from a process whose allocator is not weir cannot be opened here: "
                "run both processes under weir");
    char message[512] = "";
    int device;
    weir_status status = weir_ipc_open(handle.c_str() + 1, &device, &base, message, sizeof message);
    TORCH_CHECK(status == WEIR_OK, "weir: opening another process's tensor: ", message);
    return base;
}

// Opens the memory of each handle once, and closes the memory when no tensor uses it any more.
class OpenedMemory {
  public:
    std::shared_ptr<void> get(const std::string &handle) {
        std::lock_guard<std::mutex> guard(mutex);
        auto found = opened.find(handle);
        if (found != opened.end())
            if (auto base = found->second.lock())
                return base;
        auto base = std::shared_ptr<void>(open_handle(handle), [this, handle](void *memory) {
            std::lock_guard<std::mutex> lock(mutex);
            if (handle[0] == WEIR_HANDLE)
                (void)weir_ipc_close(memory);
            else
                (void)cudaIpcCloseMemHandle(memory);
            auto known = opened.find(handle);
            if (known != opened.end() && known->second.expired())
                opened.erase(known);
        });
        opened[handle] = base;
        return base;
    }

  private:
    std::mutex mutex;
    std::unordered_map<std::string, std::weak_ptr<void>> opened;
};

} // namespace weir_torch
