/* SPDX-License-Identifier: MIT */
/* ranges.c: a program that reports its iterations to NVTX in each way that NVTX has, and allocates between them.
 *
 * Like NVTX's headers it has tables of functions that do nothing until the library in NVTX_INJECTION64_PATH sets
 * others.  It prints how often it reported the name that counts.  With --title it sets a title after it has loaded the
 * library. */
#include "opened.h"

#include <stdlib.h>
#include <wchar.h>

enum { CORE = 1, CORE2 = 5, CORE_SIZE = 16, CORE2_SIZE = 16 };

typedef void function(void);

struct callbacks {
    size_t bytes;
    int (*get_module)(int module, function ***(*table), unsigned *count);
};

struct attributes {
    uint16_t version, bytes;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const void *message;
};

static function *core[CORE_SIZE], *core2[CORE2_SIZE];
static function **core_table[CORE_SIZE + 1], **core2_table[CORE2_SIZE + 1];
static int told;

static int get_module(int module, function ***(*table), unsigned *count) {
    if (module != CORE && module != CORE2)
        return 0;
    *table = module == CORE ? core_table : core2_table;
    *count = module == CORE ? CORE_SIZE : CORE2_SIZE;
    return 1;
}

static const void *get_table(uint32_t number) {
    static const struct callbacks callbacks = {sizeof callbacks, get_module};

    return number == 1 ? &callbacks : NULL;
}

static void load_nvtx(void) {
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *injected = path ? dlopen(path, RTLD_LAZY) : NULL;
    int (*begin)(const void *(*)(uint32_t)) = NULL;
    void *address = injected ? dlsym(injected, "InitializeInjectionNvtx2") : NULL;

    for (int i = 1; i < CORE_SIZE; i++)
        core_table[i] = &core[i];
    for (int i = 1; i < CORE2_SIZE; i++)
        core2_table[i] = &core2[i];
    memcpy(&begin, &address, sizeof address);
    HOLDS(!injected || begin);
    if (begin && !begin(get_table)) {
        memset(core, 0, sizeof core);
        memset(core2, 0, sizeof core2);
    }
}

#define TELL(type, table, number, ...)                                                             \
    do {                                                                                           \
        type *call = (type *)(table)[number];                                                      \
                                                                                                   \
        if (call)                                                                                  \
            (void)call(__VA_ARGS__);                                                               \
    } while (0)

typedef int push_text(const char *name);
typedef int push_wide(const wchar_t *name);
typedef uint64_t start_text(const char *name);
typedef void mark_text(const char *name);
typedef int push_attributes(const struct attributes *attributes);
typedef int domain_push(const void *domain, const struct attributes *attributes);
typedef int range_pop(void);
typedef int domain_pop(const void *domain);
typedef const void *register_text(const void *domain, const char *name);

/* Allocates between two iterations. */
static void alloc_between_ranges(void) {
    CUdeviceptr block;

    CU(cuda.cuMemAlloc(&block, 4096));
    CU(cuda.cuMemFree(block));
    told++;
}

static void iterate_ranges(void) {
    struct attributes attributes = {.version = 3, .bytes = sizeof attributes};
    const void *registered = NULL, *other = NULL;

    TELL(push_text, core, 9, "load data"); /* a name that does not count */
    TELL(push_text, core, 9, "step 1");
    alloc_between_ranges();
    TELL(push_wide, core, 10, L"step \u00e9");
    alloc_between_ranges();
    TELL(start_text, core, 5, "step 3");
    alloc_between_ranges();
    TELL(mark_text, core, 2, "step 4");
    alloc_between_ranges();
    attributes.message_type = 1;
    attributes.message = "step 5";
    TELL(push_attributes, core, 8, &attributes);
    alloc_between_ranges();
    attributes.message_type = 2;
    attributes.message = L"step 6";
    TELL(domain_push, core2, 4, NULL, &attributes);
    alloc_between_ranges();
    if (core2[10]) {
        register_text *call = (register_text *)core2[10];

        registered = call(NULL, "step 7");
        other = call(NULL, "load data");
    }
    attributes.message_type = 3;
    attributes.message = registered;
    TELL(domain_push, core2, 4, NULL, &attributes);
    alloc_between_ranges();
    attributes.message = other;
    TELL(domain_push, core2, 4, NULL, &attributes);
    attributes.message_type = 0; /* without a name */
    TELL(domain_push, core2, 4, NULL, &attributes);
    TELL(push_attributes, core, 8, NULL);
    TELL(push_text, core, 9, NULL);
    alloc_between_ranges();
    for (int i = 0; i < 5; i++) /* back to the first step, by both calls */
        TELL(range_pop, core, 11);
    for (int i = 0; i < 3; i++)
        TELL(domain_pop, core2, 5, NULL);
    alloc_between_ranges();
}

int main(int argc, char **argv) {
    CUdeviceptr block;

    load_nvtx();
    if (is_told(argc, argv, "--title"))
        victim_set_title();
    if (is_told(argc, argv, "--clear"))
        victim_clear_environment(argv[0]);
    start_driver();
    CU(cuda.cuMemAlloc(&block, 1000));
    iterate_ranges();
    CU(cuda.cuMemFree(block));
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    printf("steps %d\n", told);
    return victim_status(argc, argv);
}
