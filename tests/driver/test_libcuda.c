/* SPDX-License-Identifier: MIT */
/* test_libcuda.c: a program and weir beside it on one driver.
 *
 * The driver is tests/libcuda, which the program opens by itself and weir as its device "cuda".  Each
 * test runs in a fresh process, which is this program with a word on its command line and
 * LD_LIBRARY_PATH naming the folder; it prints what it saw and the test reads that.
 */
#include <check.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weir/weir.h>

#include "driver/driver.h"
#include "tests/fixtures/suite.h"

#define MIB ((size_t)1 << 20)

/* -------------------------------------------------- what the child process does ---- */

static void *library;

static void find(void *pointer, const char *symbol) {
    void *address = dlsym(library, symbol);

    if (!address) {
        printf("no %s\n", symbol);
        exit(1);
    }
    memcpy(pointer, &address, sizeof address);
}

#define CHILD_MUST(fact) ((fact) ? (void)0 : (printf("not so: %s\n", #fact), exit(1)))

/* What the program's own calls see: the memory that weir takes, each of its blocks, its streams. */
static int child_same(void) {
    CUresult (*init)(unsigned), (*retain)(CUcontext *, CUdevice), (*set)(CUcontext);
    CUresult (*info)(size_t *, size_t *), (*create)(CUstream *, unsigned);
    CUresult (*fill)(CUdeviceptr, unsigned char, size_t, CUstream);
    CUresult (*copy)(void *, CUdeviceptr, size_t), (*count)(int *);
    CUresult (*ask)(void *, CUpointer_attribute, CUdeviceptr);
    size_t before, after, total;
    weir_allocator *allocator;
    unsigned char byte = 0;
    weir_options options;
    CUcontext context;
    CUstream stream;
    int devices, ordinal = -1;
    void *block;

    find(&init, "cuInit");
    find(&retain, "cuDevicePrimaryCtxRetain");
    find(&set, "cuCtxSetCurrent");
    find(&info, "cuMemGetInfo_v2");
    find(&create, "cuStreamCreate");
    find(&fill, "cuMemsetD8Async");
    find(&copy, "cuMemcpyDtoH_v2");
    find(&count, "cuDeviceGetCount");
    find(&ask, "cuPointerGetAttribute");
    CHILD_MUST(init(0) == 0 && count(&devices) == 0 && retain(&context, devices - 1) == 0);
    CHILD_MUST(set(context) == 0 && create(&stream, CU_STREAM_NON_BLOCKING) == 0);
    CHILD_MUST(info(&before, &total) == 0);
    weir_options_init(&options);
    CHILD_MUST(weir_options_from_env(&options, NULL, 0) == WEIR_OK);
    options.device = devices == 1 ? "cuda" : "cuda:2";
    options.prealloc = (weir_amount){.value = 512 * MIB, .kind = WEIR_AMOUNT_BYTES};
    CHILD_MUST(weir_allocator_create(&options, &allocator) == WEIR_OK);
    CHILD_MUST(info(&after, &total) == 0);
    printf("engine %d devices %d taken %d\n", options.engine, devices,
           before - after >= 512 * MIB);
    CHILD_MUST(weir_alloc(allocator, 100, stream, &block) == WEIR_OK);
    CHILD_MUST(fill((uintptr_t)block, 9, 100, stream) == 0 &&
               copy(&byte, (uintptr_t)block, 1) == 0);
    CHILD_MUST(ask(&ordinal, 9, (uintptr_t)block) == 0);
    printf("byte %d device %d\n", byte, ordinal);
    CHILD_MUST(weir_free(allocator, block, stream) == WEIR_OK);
    CHILD_MUST(weir_allocator_destroy(allocator) == WEIR_OK);
    CHILD_MUST(info(&after, &total) == 0);
    printf("given back %d\n", before == after);
    return 0;
}

/* weir's table has what the resolver gives for flags 0, and all of it. */
static int child_table(void) {
    struct weir_driver_failure failure;
    const struct weir_driver *driver = weir__driver_open("cuda", &failure);

    if (!driver) {
        printf("failure: %s\n", failure.text);
        return 0;
    }
    printf("%s %d capabilities %u\n", driver->name, driver->version, driver->capabilities);
#define COMPARE(group, name, symbol, version, params, args)                                        \
    {                                                                                              \
        void *exported = dlsym(library, symbol);                                                   \
        if (!exported || memcmp(&exported, &driver->name, sizeof exported) != 0)                   \
            printf("another %s\n", symbol);                                                        \
    }
    WEIR_DRIVER_ENTRIES(COMPARE)
    return 0;
}

/* ------------------------------------------------------- how a test starts one ---- */

static char own_path[4096];
static char output[65536];

/* NULL, and a line of TAP, where the driver was not built. */
static const char *run(const char *word, const char *settings) {
    const char *top = getenv("top_builddir");
    char command[9000], file[4200];
    size_t length;
    FILE *pipe;
    int status;

    snprintf(file, sizeof file, "%s/tests/libcuda/.libs/libcuda.so.1", top ? top : ".");
    if (access(file, R_OK) != 0) {
        printf("# skipped: no tests/libcuda (built without shared libraries)\n");
        return NULL;
    }
    file[strlen(file) - strlen("/libcuda.so.1")] = '\0';
    snprintf(command, sizeof command, "exec env LD_LIBRARY_PATH='%s' %s '%s' %s", file, settings,
             own_path, word);
    pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    length = fread(output, 1, sizeof output - 1, pipe);
    output[length] = '\0';
    status = pclose(pipe);
    ck_assert_msg(status == 0, "%s: status %d: %s", command, status, output);
    return output;
}

static void none(void) {
}

static const struct {
    const char *settings;
    int engine;
} engines[] = {{"WEIR_ENGINE=pool", WEIR_ENGINE_POOL},
               {"WEIR_ENGINE=bfc", WEIR_ENGINE_BFC},
               {"WEIR_ENGINE=mapped", WEIR_ENGINE_MAPPED}};

CASE("libcuda", 60, none, none);

TEST_EACH(ROWS(engines), a_program_sees_what_weir_does) {
    char wanted[200];
    const char *text = run("same", engines[_i].settings);

    snprintf(wanted, sizeof wanted,
             "engine %d devices 1 taken 1\nbyte 9 device 0\ngiven back 1\n", engines[_i].engine);
    if (text)
        ck_assert_str_eq(text, wanted);
}

TEST(the_models_variables_set_it_up) {
    const char *text = run("same", "WEIR_MODEL_DEVICES=3");

    if (text)
        ck_assert_msg(strstr(text, " devices 3 taken 1\nbyte 9 device 2\ngiven back 1\n"), "%s",
                      text);
}

TEST(weir_finds_every_entry_by_the_resolver) {
    char wanted[100];
    const char *text = run("table", "X=");

    snprintf(wanted, sizeof wanted, "cuda 13000 capabilities %u\n",
             weir__driver_capabilities(13000));
    if (text)
        ck_assert_str_eq(text, wanted);
}

TEST(an_older_drivers_profile_is_played) {
    char path[] = "/tmp/weir-profile-XXXXXX", settings[100];
    int file = mkstemp(path);
    const char *text;

    ck_assert_int_ge(file, 0);
    ck_assert_int_gt(dprintf(file, "driver_version = 11040\n"), 0);
    close(file);
    snprintf(settings, sizeof settings, "WEIR_MODEL_PROFILE=%s", path);
    text = run("table", settings);
    unlink(path);
    if (text)
        ck_assert_msg(strncmp(text, "cuda 11040 ", 11) == 0, "%s", text);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        library = dlopen("libcuda.so.1", RTLD_NOW);
        CHILD_MUST(library);
        return strcmp(argv[1], "same") == 0 ? child_same() : child_table();
    }
    if (readlink("/proc/self/exe", own_path, sizeof own_path - 1) <= 0)
        snprintf(own_path, sizeof own_path, "%s", argv[0]);
    return run_tests("libcuda", CK_FORK_GETENV);
}
