// SPDX-License-Identifier: MIT
// random_allocations.cpp: RMM's benchmark of random allocations, with two additions.  The first is a memory resource
// that calls weir_alloc and weir_free, with the settings of the environment.  The second is a mode in which each
// iteration is timed.  Apart from these, the program is RMM's own file, which is included unchanged.  bench/rmm/run
// builds the program.
#define main rmm_main
#include <benchmarks/random_allocations/random_allocations.cpp>
#undef main

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <rmm/error.hpp>
#include <weir/weir.h>

namespace {

void throw_unless_ok(weir_status status, char const *what) {
    if (status != WEIR_OK)
        throw rmm::bad_alloc{std::string{what} + ": " + weir_status_name(status)};
}

class weir_memory_resource final {
  public:
    weir_memory_resource() {
        weir_options options;
        weir_options_init(&options);
        char message[256];
        throw_unless_ok(weir_options_from_env(&options, message, sizeof message),
                        "weir_options_from_env");
        weir_allocator *made = nullptr;
        throw_unless_ok(weir_allocator_create(&options, &made), "weir_allocator_create");
        allocator_ = {made, [](weir_allocator *one) { weir_allocator_destroy(one); }};
    }

    void *allocate(cuda::stream_ref stream, std::size_t bytes,
                   std::size_t = rmm::CUDA_ALLOCATION_ALIGNMENT) {
        void *block = nullptr;
        throw_unless_ok(weir_alloc(allocator_.get(), bytes, stream.get(), &block), "weir_alloc");
        return block;
    }

    void deallocate(cuda::stream_ref stream, void *block, std::size_t,
                    std::size_t = rmm::CUDA_ALLOCATION_ALIGNMENT) noexcept {
        weir_free(allocator_.get(), block, stream.get());
    }

    void *allocate_sync(std::size_t bytes, std::size_t = rmm::CUDA_ALLOCATION_ALIGNMENT) {
        void *block = nullptr;
        throw_unless_ok(weir_alloc_any(allocator_.get(), bytes, &block), "weir_alloc_any");
        return block;
    }

    void deallocate_sync(void *block, std::size_t,
                         std::size_t = rmm::CUDA_ALLOCATION_ALIGNMENT) noexcept {
        weir_free_any(allocator_.get(), block);
    }

    friend void get_property(weir_memory_resource const &, cuda::mr::device_accessible) noexcept {
    }

    bool operator==(weir_memory_resource const &other) const noexcept {
        return allocator_ == other.allocator_;
    }

    bool operator!=(weir_memory_resource const &other) const noexcept {
        return !(*this == other);
    }

  private:
    std::shared_ptr<weir_allocator> allocator_;
};

static_assert(cuda::mr::resource_with<weir_memory_resource, cuda::mr::device_accessible>);

any_device_resource make_weir() {
    return weir_memory_resource{};
}

// Runs the command `time RESOURCE N M SECONDS', which times each iteration, all with one resource.  (RMM's main creates
// a new resource for each of its runs, so its mean contains growth.)  Prints a line with four numbers: the first
// iteration, and the median, the minimum and the number of the other iterations.  The times are milliseconds.
int time_iterations(char const *name, std::size_t n, std::size_t m, double seconds) {
    std::map<std::string, MRFactoryFunc> const factories{
        {"arena", &make_arena},           {"binning", &make_binning}, {"cuda", &make_cuda},
        {"cuda_async", &make_cuda_async}, {"pool", &make_pool},       {"weir", &make_weir}};
    cudaFree(nullptr);
    auto resource = factories.at(name)();
    std::vector<double> taken;
    double total = 0;
    while (taken.size() < 4 || total < seconds * 1e3) {
        auto begin = std::chrono::steady_clock::now();
        uniform_random_allocations(resource, n, m, max_usage);
        std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
        taken.push_back(took.count());
        total += took.count();
    }
    std::sort(taken.begin() + 1, taken.end());
    std::printf("%.3f %.3f %.3f %zu\n", taken[0], taken[1 + (taken.size() - 1) / 2], taken[1],
                taken.size() - 1);
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    if (argc == 6 && std::strcmp(argv[1], "time") == 0)
        return time_iterations(argv[2], std::strtoull(argv[3], nullptr, 10),
                               std::strtoull(argv[4], nullptr, 10), std::atof(argv[5]));
    return rmm_main(argc, argv);
}
