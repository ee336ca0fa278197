// SPDX-License-Identifier: MIT
// adapters_throw.cc: as PyTorch calls weir_torch_alloc: from C++, which gets a failure as an exception.
//
//     adapters_throw MODULE

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>

namespace {

struct witness {
    bool *gone;
    ~witness() { *gone = true; }
};

} // namespace

int main(int argc, char **argv) {
    void *module = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!module) {
        std::printf("Bail out! %s\n", argc > 1 ? dlerror() : "no module is named");
        return 1;
    }
    std::function<void *(std::size_t, int, void *)> alloc(
        reinterpret_cast<void *(*)(std::size_t, int, void *)>(dlsym(module, "weir_torch_alloc")));
    std::function<void(void *, std::size_t, int, void *)> release(
        reinterpret_cast<void (*)(void *, std::size_t, int, void *)>(
            dlsym(module, "weir_torch_free")));
    void *legacy = reinterpret_cast<void *>(1);
    int bad = 0;

    for (int i = 0; i < 3; i++) {
        bool gone = false;
        const char *what = "nothing was thrown";
        try {
            witness w{&gone};
            alloc(std::size_t{100} << 20, i < 2 ? 0 : 77, legacy);
        } catch (const std::runtime_error &e) {
            std::printf("# %s\n", e.what());
            what = std::strncmp(e.what(), "CUDA out of memory. ", 20) == 0 ? "memory" : "other";
        }
        bool right = gone && std::strcmp(what, i < 2 ? "memory" : "other") == 0;
        std::printf("%s %d - a failure is thrown, of %s\n", right ? "ok" : "not ok", i + 1,
                    i < 2 ? "memory" : "a device that is not there");
        bad += !right;
    }
    void *block = alloc(1 << 20, 0, legacy);
    std::printf("%s 4 - what fits is served after it\n", block ? "ok" : "not ok");
    release(block, 1 << 20, 0, legacy);
    std::printf("1..4\n");
    return bad || !block;
}
