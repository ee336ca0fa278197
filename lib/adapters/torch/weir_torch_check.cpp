// SPDX-License-Identifier: MIT
// weir_torch_check.cpp: checks a shim before its first use, if PyTorch is newer than in interface.txt.  A shim is a
// library that makes weir the allocator of one build of PyTorch.
//
//     weir_torch_check SHIM LIBWEIR-PRELOAD
//
// The program is compiled against the headers of this PyTorch, so it calls the allocator as PyTorch does.  weir
// allocates memory of the device model, a GPU in software, which records each use of a block.  The functions below
// replace CUDA's runtime.  If a check fails, the program prints the reason and exits with status 1.
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <map>
#include <string>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include "check_model.h"

namespace cca = c10::cuda::CUDACachingAllocator;

static const weir_check_model *model;

// ---- the functions of the runtime that the shim and libc10_cuda.so call ----

// clang-format off
#define RUNTIME(name, parameters, result)                                                          \
    extern "C" cudaError_t name parameters { return static_cast<cudaError_t>(result); }
RUNTIME(cudaGetDevice, (int *device), *device = 0)
RUNTIME(cudaSetDevice, (int), 0)
RUNTIME(cudaGetDeviceCount, (int *count), (*count = 1, 0))
RUNTIME(cudaGetLastError, (), 0)
RUNTIME(cudaMemGetInfo, (size_t *free_bytes, size_t *total), model->memory(free_bytes, total))
RUNTIME(cudaDeviceSynchronize, (), model->synchronize())
RUNTIME(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest), *least = *greatest = 0)
RUNTIME(cudaStreamIsCapturing, (cudaStream_t stream, cudaStreamCaptureStatus *status),
        model->is_capturing(stream, reinterpret_cast<int *>(status)))
// clang-format on
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(c10::DeviceIndex));
}

namespace {

const char *subject = "start"; // the name of the running check

[[noreturn]] void fail(const std::string &what) {
    printf("%s: %s\n", subject, what.c_str());
    fflush(stdout);
    std::_Exit(1);
}
void must(bool is_so, const char *what) {
    if (!is_so)
        fail(what);
}

constexpr size_t MIB = 1 << 20;
// The live blocks by address, with their sizes and the numbers of their owners.
std::map<char *, std::pair<size_t, uint64_t>> live;
uint64_t owners;
cudaStream_t one, other;

void use(void *block, cudaStream_t stream) {
    auto [bytes, owner] = live.at(static_cast<char *>(block));
    must(model->use(stream, block, bytes, owner) == 0, "work fails");
}
void adopt(void *block, size_t bytes) {
    auto *start = static_cast<char *>(block);
    auto next = live.lower_bound(start);
    must(block && (next == live.end() || start + bytes <= next->first), "blocks overlap");
    must(next == live.begin() || std::prev(next)->first + std::prev(next)->second.first <= start,
         "blocks overlap");
    live[start] = {bytes, ++owners};
}
void *allocate(size_t bytes, cudaStream_t stream) {
    void *block = cca::raw_alloc_with_stream(bytes, stream);
    adopt(block, bytes);
    use(block, stream);
    return block;
}
void release(void *block) {
    live.erase(static_cast<char *>(block));
    cca::raw_delete(block);
}

void check_allocations() {
    subject = "allocations";
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 60; i++)
            (void)allocate((i * 7919 % 40) * MIB / 8 + 1, i % 2 ? one : other);
        must(cca::getDeviceStats(0).allocation[0].current == 60, "the statistics miss blocks");
        while (!live.empty())
            release(live.begin()->first);
    }
    must(cca::getDeviceStats(0).allocation[0].current == 0, "the statistics miss frees");
}

void check_record_stream() {
    subject = "record_stream";
    for (int round = 0; round < 3; round++) {
        void *block = allocate(4 * MIB, one);
        use(block, other);
        c10::DataPtr data(block, block, cca::get()->raw_deleter(), c10::Device(c10::kCUDA, 0));
        cca::recordStream(data, c10::cuda::getStreamFromExternal(other, 0));
        live.erase(static_cast<char *>(block));
        data.clear();
        release(allocate(4 * MIB, one));
    }
}

// Checks a capture that uses a private memory pool, and a checkpoint of the pool's live blocks.
void check_capture() {
    c10::MempoolId_t pool{0, 7};
    subject = "capture";
    must(model->capture_begin(one) == 0, "no capture");
    cca::beginAllocateToPool(0, pool, [](cudaStream_t stream) { return stream == one; });
    release(allocate(3 * MIB, one));
    void *kept = allocate(5 * MIB, one);
    void *outside = cca::raw_alloc_with_stream(MIB, other);
    cca::endAllocateToPool(0, pool);
    must(model->capture_end(one, 2) == 0, "the capture broke");
    cca::raw_delete(outside);
    must(cca::checkPoolLiveAllocations(0, pool, {kept}), "the pool has other blocks");
    for (const auto &segment : cca::snapshot(pool).segments)
        must(segment.owner_private_pool_id == pool, "a segment of the pool is shared");

    subject = "checkpoint";
    must(cudaDeviceSynchronize() == cudaSuccess, "no wait");
    auto state = cca::getCheckpointState(0, pool);
    release(kept);
    cca::beginAllocateToPool(0, pool, [](cudaStream_t stream) { return stream == one; });
    void *later = allocate(2 * MIB, one);
    cca::endAllocateToPool(0, pool);
    auto delta = cca::setCheckpointPoolState(0, state);
    must(delta.ptrs_freed == std::vector<void *>{later},
         "the restore freed other blocks than the later block");
    must(delta.dataptrs_allocd.size() == 1 && delta.dataptrs_allocd[0].get() == kept,
         "the restore lacks the saved block");
    live.erase(static_cast<char *>(later));
    adopt(kept, 5 * MIB);
    delta.dataptrs_allocd[0].release_context();
    use(kept, one);
    release(kept);
    cca::releasePool(0, pool);
    cca::releasePool(0, pool);
    cca::emptyCache();
    must(cca::snapshot(pool).segments.empty(), "the pool keeps memory");
}

void check_oom() {
    subject = "out of memory";
    try {
        (void)cca::raw_alloc_with_stream(size_t(1) << 42, one);
        fail("4 TiB were given out");
    } catch (const c10::OutOfMemoryError &) {
    }
    must(cca::getDeviceStats(0).num_ooms == 1, "the statistics miss a failure");
    release(allocate(MIB, one));
}

void check_snapshot() {
    subject = "snapshot";
    cca::recordHistory(true, nullptr, 100, cca::RecordContext::NEVER, true, {});
    void *block = allocate(2 * MIB, one);
    auto snapshot = cca::snapshot();
    auto wanted = reinterpret_cast<size_t>(block);
    size_t found = 0, events = 0;
    for (const auto &segment : snapshot.segments) {
        size_t address = segment.address;
        for (const auto &piece : segment.blocks) {
            found += piece.allocated && address == wanted;
            address += piece.size;
        }
    }
    for (const auto &entry : snapshot.device_traces.at(0))
        events += entry.action_ == cca::TraceEntry::ALLOC && entry.addr_ == wanted;
    must(found == 1, "a block is missing");
    must(events == 1, "an event is missing");
    cca::recordHistory(false, nullptr, 100, cca::RecordContext::NEVER, true, {});
    release(block);
}

void check(const char *shim, const char *preload) {
    void *weir = dlopen(preload, RTLD_NOW | RTLD_GLOBAL);
    must(weir != nullptr, weir ? "" : dlerror());
    auto make = reinterpret_cast<weir_check_model_function *>(dlsym(weir, "weir_check_model_open"));
    model = make ? make() : nullptr;
    must(model != nullptr, "no device model");
    void *library = dlopen(shim, RTLD_NOW);
    must(library != nullptr, library ? "" : dlerror());
    auto install = reinterpret_cast<const char *(*)()>(dlsym(library, "weir_torch_install"));
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    const char *declined = install();
    must(!declined, declined);
    must(c10::GetAllocator(c10::kCUDA) == cca::get(), "PyTorch has two allocators");
    cca::init(1);
    for (auto *stream : {&one, &other})
        must(model->stream_create(reinterpret_cast<void **>(stream)) == 0, "no stream");
    check_allocations();
    check_record_stream();
    check_capture();
    check_oom();
    check_snapshot();
    subject = "the end";
    must(cudaDeviceSynchronize() == cudaSuccess, "no wait");
    if (model->fault())
        fail(model->fault());
}

} // namespace

int main(int, char **arguments) {
    try {
        check(arguments[1], arguments[2]);
    } catch (const std::exception &error) {
        fail(error.what());
    }
    std::_Exit(0); // skips PyTorch's destructors, which would call the driver
}
