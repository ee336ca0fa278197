/* SPDX-License-Identifier: MIT */
/* test_ipc_refused.c: blocks of the mapped engine that other processes cannot open, and why (weir/share.h). */
#include "api/allocator_internal.h"
#include "base/who.h"

#include <stdarg.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "tests/fixtures/deny.h"
#include "tests/fixtures/exported.h"
#include "tests/fixtures/own_file.h"

CASE("refused", 60, start_exporting_device, end_exporter_if_there);

TEST(wrong_arguments_are_refused) {
    void *block, *base;
    char text[1024] = "as it was";
    size_t needed = 0, offset = 0;

    make_exporter(WEIR_SWITCH_ON);
    block = alloc_block_from(a, MIB, A);
    EXPECT(WEIR_E_INVALID, weir_ipc_make(NULL, block, text, sizeof text, NULL, NULL));
    EXPECT(WEIR_E_INVALID, weir_ipc_make(a, NULL, text, sizeof text, NULL, NULL));
    MUST(lines() == 1 && strstr(logged, "weir_ipc_make: address is NULL"));
    EXPECT(WEIR_E_INVALID, weir_ipc_make(a, block, NULL, 1, NULL, NULL));
    MUST(lines() == 1 && strstr(logged, "weir_ipc_make: text is NULL"));
    OK(weir_ipc_make(a, block, NULL, 0, &needed, NULL));
    EXPECT(WEIR_E_INVALID, weir_ipc_make(a, block, text, needed - 1, &needed, &offset));
    MUST(lines() == 1 && strstr(logged, "text_bytes is less"));
    MUST(strcmp(text, "as it was") == 0);
    OK(weir_ipc_make(a, block, text, needed, NULL, NULL));
    MUST_EQ(strlen(text) + 1, needed);
    EXPECT(WEIR_E_NOT_OWNED, weir_ipc_make(a, (void *)(uintptr_t)4096, NULL, 0, NULL, NULL));
    EXPECT(WEIR_E_INVALID, weir_ipc_open(NULL, NULL, &base, message, sizeof message));
    ck_assert_str_eq(message, "text is NULL");
    EXPECT(WEIR_E_INVALID, weir_ipc_open(text, NULL, NULL, NULL, 0));
    EXPECT(WEIR_E_NOT_OWNED, weir_ipc_close(block));
    free_to(a, block, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_ipc_make(a, block, NULL, 0, NULL, NULL));
}

/* A block of a graph is not the engine's memory. */
TEST_EACH(ROWS(caches), a_block_of_a_graph) {
    void *block = NULL;

    make_exporter(caches[_i]);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(weir_alloc(a, MIB, A, &block));
    EXPECT(WEIR_E_NOT_OWNED, weir_ipc_make(a, block, NULL, 0, NULL, NULL));
    OK(weir_free(a, block, A));
    drop_capture(A);
}

/* A part of a text, or a text with a wrong part, is refused. */
TEST(wrong_texts_are_refused) {
    static const char *const wrong[] = {
        "",
        "x",
        "weir-ipc-1",
        "weir-ipc-2:model:1:1:1:GPU-0:3.1.2097152",
        "weir-ipc-1:other:1:1:1:GPU-0:3.1.2097152",
        "weir-ipc-1:model:0:1:1:GPU-0:3.1.2097152",
        "weir-ipc-1:model:-1:1:1:GPU-0:3.1.2097152",
        "weir-ipc-1:model:99999999999:1:1:GPU-0:3.1.2097152",
        "weir-ipc-1:model:1:99999999999999999999:1:GPU-0:3.1.2097152",
        "weir-ipc-1:model:1:1:1::3.1.2097152",
        "weir-ipc-1:model:1:1:1:GPU-0123456789012345678901234567890123456789:3.1.2097152",
        "weir-ipc-1:model:1:1:1:GPU-0:",
        "weir-ipc-1:model:1:1:1:GPU-0:3.1",
        "weir-ipc-1:model:1:1:1:GPU-0:3.1.0",
        "weir-ipc-1:model:1:1:1:GPU-0:3.1.2097152,",
        "weir-ipc-1:model:1:1:1:GPU-0:3.1.2097152,,3.1.2097152",
        "weir-ipc-1:model:1:1:1:GPU-0:3.1.2097152 ",
        "weir-ipc-1:model:1:1:1:GPU-0:9999999999.1.2097152",
    };
    char *text, *word;
    void *block;
    size_t length;

    make_exporter(WEIR_SWITCH_ON);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        turned_down(WEIR_E_PARSE, wrong[i], "not a text of weir_ipc_make");
    block = alloc_block_from(a, 20 * MIB, A);
    text = text_of(block, NULL);
    length = strlen(text);
    word = malloc(length + 64);
    MUST(word != NULL);
    for (size_t i = 0; i < length; i++) {
        void *base = NULL;
        weir_status status;

        memcpy(word, text, i);
        word[i] = '\0';
        status = weir_ipc_open(word, NULL, &base, message, sizeof message);
        if (status == WEIR_OK) { /* this part ends after a whole piece */
            MUST(text[i] == ',');
            OK(weir_ipc_close(base));
        } else {
            ck_assert_msg((status == WEIR_E_PARSE || status == WEIR_E_NOT_OWNED) && message[0],
                          "%s: %s", word, message);
        }
    }
    snprintf(word, length + 64, "%s,18446744073709551615.1.1", text);
    turned_down(WEIR_E_PARSE, word, "not a text");
    snprintf(word, length + 64, "%s,1.1.9223372036854775807", text);
    turned_down(WEIR_E_PARSE, word, "add up to no size");
    snprintf(word, length + 64, "%s,1.1.2097152", text); /* standard output is not memory */
    turned_down(WEIR_E_NOT_OWNED, word, "is not the block's memory any more");
    *strstr(text, "GPU-") = 'C';
    turned_down(WEIR_E_NO_DEVICE, text, "does not see the block's device CPU-");
    free(text);
    free(word);
    free_to(a, block, A);
}

/* The sender's process id belongs to another process now, or the sender has ended, or is in another namespace. */
TEST(a_text_of_a_past_sender_is_refused) {
    char text[256], device[WEIR_UUID_BYTES];
    unsigned long long start = weir__process_start(getppid());
    unsigned long long space = weir__process_namespace();

    CU(weir__driver_uuid(driver, 0, device));
    snprintf(text, sizeof text, "weir-ipc-1:model:%ld:%llu:%llu:%s:3.1.2097152", (long)getppid(),
             start + 1, space, device);
    turned_down(WEIR_E_NOT_OWNED, text, "another one has its number");
    snprintf(text, sizeof text, "weir-ipc-1:model:%ld:1:%llu:%s:3.1.2097152", (long)getpid(), space,
             device);
    turned_down(WEIR_E_NOT_OWNED, text, "another one has its number");
    snprintf(text, sizeof text, "weir-ipc-1:model:2147483646:1:%llu:%s:3.1.2097152", space, device);
    turned_down(WEIR_E_NOT_OWNED, text, "process 2147483646, which shared the block, has ended");
    snprintf(text, sizeof text, "weir-ipc-1:model:%ld:%llu:%llu:%s:3.1.2097152", (long)getppid(),
             start, space + 1, device);
    turned_down(WEIR_E_NOT_SUPPORTED, text, "has other process ids than this one");
}

static const int kinds_without[] = {KIND_POOL, KIND_REGIONS, KIND_DIRECT};

TEST_EACH(ROWS(kinds_without), allocators_that_cannot) {
    weir_options options = options_of(kinds_without[_i], "model", 0);
    void *block;

    options.log = WEIR_LOG_ERROR;
    OK(weir_allocator_create(&options, &a));
    block = alloc_block_from(a, MIB, A);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_ipc_make(a, block, NULL, 0, NULL, NULL));
    ANSWERS(1, lines());
    MUST(strstr(logged, "needs engine mapped"));
    free_to(a, block, A);
}

static CUresult tell_no_files(int *value, CUdevice_attribute what, CUdevice device) {
    CUresult result = driver->cuDeviceGetAttribute(value, what, device);

    if (what == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
        *value = 0;
    return result;
}

/* If the driver lacks the calls, or the device lacks file handles, weir serves requests and shares nothing. */
TEST_EACH(2, drivers_without_shared_handles_share_nothing) {
    weir_options options = exported_options(WEIR_SWITCH_ON);
    struct weir_driver table = *driver;
    void *block;

    if (_i == 0)
        table.capabilities &= ~(unsigned)WEIR_CAP_IPC;
    else
        table.cuDeviceGetAttribute = tell_no_files;
    OK(weir__allocator_create_on(&table, &options, &a, NULL, 0));
    block = alloc_block_from(a, MIB, A);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_ipc_make(a, block, NULL, 0, NULL, NULL));
    MUST(lines() == 1 && strstr(logged, "weir_ipc_make: the driver and the device cannot share"));
    free_to(a, block, A);
    end_exporter(); /* needs the driver's table */
}

/* Whichever driver call fails, both sides can go on, and nothing stays open or mapped. */
TEST_EACH(ROWS(caches), a_failure_leaves_things_as_they_were) {
    unsigned char *block;

    make_exporter(caches[_i]);
    for (uint64_t k = 1, met = 1; met > 0; k++) {
        char text[1024];
        void *base = NULL;
        weir_status status;

        block = take_marked(20 * MIB, 1);
        weir__model_fail_any(k, 0, CUDA_ERROR_UNKNOWN, 0);
        status = weir_ipc_make(a, block, text, sizeof text, NULL, NULL);
        if (status == WEIR_OK)
            status = weir_ipc_open(text, NULL, &base, NULL, 0);
        if (status == WEIR_OK)
            status = weir_ipc_close(base);
        met = weir__model_faults_injected(NULL);
        weir__model_faults_clear();
        if (base && status != WEIR_OK)
            OK(weir_ipc_close(base));
        free_to(a, block, A);
        MUST(k < 200 && (k > 10 || met > 0));
    }
}

/* The driver refuses a call, or the receiver has another driver. */
TEST(errors_of_the_driver_are_reported) {
    static const struct {
        enum weir_driver_entry entry;
        CUresult result;
        weir_status status;
    } answers[] = {
        {WEIR_ENTRY_cuMemImportFromShareableHandle, CUDA_ERROR_NOT_SUPPORTED, WEIR_E_NOT_SUPPORTED},
        {WEIR_ENTRY_cuMemImportFromShareableHandle, CUDA_ERROR_NOT_PERMITTED, WEIR_E_NOT_SUPPORTED},
        {WEIR_ENTRY_cuMemImportFromShareableHandle, CUDA_ERROR_INVALID_VALUE, WEIR_E_NOT_OWNED},
        {WEIR_ENTRY_cuMemAddressReserve, CUDA_ERROR_OUT_OF_MEMORY, WEIR_E_NO_MEMORY},
        {WEIR_ENTRY_cuMemMap, CUDA_ERROR_UNKNOWN, WEIR_E_DRIVER},
        {WEIR_ENTRY_cuMemSetAccess, CUDA_ERROR_UNKNOWN, WEIR_E_DRIVER},
    };
    char *text, cuda[256];
    void *block;

    make_exporter(WEIR_SWITCH_ON);
    block = alloc_block_from(a, 20 * MIB, A);
    text = text_of(block, NULL);
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        weir__model_fail(answers[i].entry, 1, answers[i].result, 0);
        turned_down(answers[i].status, text, "");
        MUST_EQ((CUresult)weir_last_driver_result(), answers[i].result);
        weir__model_faults_clear();
    }
    snprintf(cuda, sizeof cuda, "weir-ipc-1:cuda:%ld:1:0:GPU-0:3.1.2097152", (long)getppid());
    MUST(setenv("CUDA_VISIBLE_DEVICES", "", 1) == 0);
    turned_down(WEIR_E_NO_DEVICE, cuda, "");
    free(text);
    free_to(a, block, A);
}

/* The descriptors of an allocator are closed even if its device is lost. */
TEST(descriptors_are_closed_after_the_loss_of_a_device) {
    unsigned char *block;
#ifdef CAN_DENY
    int before = files_open();
#endif

    make_exporter(WEIR_SWITCH_OFF);
    block = alloc_block_from(a, MIB, A);
    free(text_of(block, NULL));
    weir__model_fail(WEIR_ENTRY_cuMemExportToShareableHandle, 1, CUDA_ERROR_ILLEGAL_ADDRESS, 0);
    block = alloc_block_from(a, 100 * MIB, A);
    EXPECT(WEIR_E_DEVICE_LOST, weir_ipc_make(a, block, NULL, 0, NULL, NULL));
    EXPECT(WEIR_E_DEVICE_LOST, weir_ipc_make(a, block, NULL, 0, NULL, NULL));
    weir__model_fail(WEIR_ENTRY_cuCtxPushCurrent, 1, CUDA_ERROR_CONTEXT_IS_DESTROYED, 1);
    OK(weir_allocator_destroy(a));
    a = NULL;
    weir__model_faults_clear();
    ANSWERS(0, weir__model_reset(&(struct weir_model_setup){.capacity = CAPACITY}));
#ifdef CAN_DENY
    ANSWERS(before, files_open());
#endif
}

/* If the program closes weir's descriptor, weir exports the memory again, under another name. */
TEST(memory_is_exported_again_after_its_descriptor_is_lost) {
    unsigned char *block, *base;
    char *text, *again;
    int number = -1;

    make_exporter(WEIR_SWITCH_ON);
    block = take_marked(MIB, 1);
    text = text_of(block, NULL);
    MUST(sscanf(strrchr(text, ':'), ":%d.", &number) == 1);
    MUST(own_file_put(number));
    turned_down(WEIR_E_NOT_OWNED, text, "is not the block's memory any more");
    again = text_of(block, NULL);
    MUST(strcmp(text, again) != 0);
    base = open_exported_text(again);
    OK(weir_ipc_close(base));
    free(text);
    free(again);
    free_to(a, block, A);
    end_exporter();
    MUST(own_file_is_whole(number));
}

/* ---- lack of host resources ------------------------------------------------------------------------ */

#ifdef CAN_DENY
/* Leaves room for `more` descriptors beyond the open ones. */
static void allow_files(int more) {
    struct rlimit limit;
    int highest = 0;

    for (int i = 0; i < 1000; i++)
        if (fcntl(i, F_GETFD) >= 0)
            highest = i;
    for (int i = 0; i < highest; i++)
        (void)!fcntl(log_file, F_DUPFD_CLOEXEC, i); /* fills gaps, and adds some */
    highest = fcntl(log_file, F_DUPFD_CLOEXEC, 0);
    MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = (rlim_t)(highest + 1 + more);
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static void allow_all_files(void) {
    struct rlimit limit;

    MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

TEST(no_descriptor_is_left) {
    unsigned char *block, *base;
    char *text;
    int before;

    make_exporter(WEIR_SWITCH_OFF);
    block = take_marked(20 * MIB, 1);
    allow_files(2); /* three are needed */
    before = fcntl(log_file, F_DUPFD_CLOEXEC, 0);
    MUST(before >= 0 && close(before) == 0);
    EXPECT(WEIR_E_HOST_MEMORY, weir_ipc_make(a, block, NULL, 0, NULL, NULL));
    MUST_EQ(weir_last_driver_result(), CUDA_SUCCESS);
    ANSWERS(before,
            fcntl(log_file, F_DUPFD_CLOEXEC, 0)); /* the failed call closed its descriptors */
    close(before);
    allow_all_files();
    deny("fstat", 1, 0, EIO);
    EXPECT(WEIR_E_HOST_MEMORY, weir_ipc_make(a, block, NULL, 0, NULL, NULL));
    ANSWERS(1, deny_none());
    text = text_of(block, NULL);
    allow_files(0);
    turned_down(WEIR_E_HOST_MEMORY, text, "no file descriptor is left");
    allow_all_files();
    base = open_exported_text(text);
    expect_marked(base, 20 * MIB, 1);
    OK(weir_ipc_close(base));
    free(text);
    free_to(a, block, A);
}

TEST(exports_and_imports_fail_without_host_memory) {
    unsigned char *block;
    char text[1024];

    make_exporter(WEIR_SWITCH_OFF);
    block = take_marked(20 * MIB, 1);
    for (uint64_t k = 1, met = 1; met; k++) {
        void *base = NULL;
        weir_status status;

        refuse_in = k;
        was_refused = 0;
        status = weir_ipc_make(a, block, text, sizeof text, NULL, NULL);
        if (status == WEIR_OK)
            status = weir_ipc_open(text, NULL, &base, message, sizeof message);
        refuse_in = 0;
        met = (uint64_t)was_refused;
        if (status == WEIR_OK) {
            OK(weir_ipc_close(base));
        } else if (status != WEIR_E_NO_MEMORY) { /* the device model needs host memory, too */
            MUST(status == WEIR_E_HOST_MEMORY);
        }
    }
    free_to(a, block, A);
}

/* Replaces syscall, so that a call on a descriptor gets the wanted answer. */
static long denied_call;
static int denied_with;

#pragma GCC visibility push(default)
long syscall(long number, ...) {
    va_list arguments;
    long value[6];

    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        value[i] = va_arg(arguments, long);
    va_end(arguments);
    if (number == denied_call) {
        errno = denied_with;
        return -1;
    }
    return BEHIND(syscall)(number, value[0], value[1], value[2], value[3], value[4], value[5]);
}
#pragma GCC visibility pop

TEST(a_refusing_kernel_is_reported_with_advice) {
    static const struct {
        int error;
        weir_status status;
        const char *why;
    } answers[] = {
        {EPERM, WEIR_E_NOT_SUPPORTED, "kernel.yama.ptrace_scope to 0 or 1"},
        {ENOSYS, WEIR_E_NOT_SUPPORTED, "use Linux 5.6 or later"},
        {ESRCH, WEIR_E_NOT_OWNED, "has ended"},
        {EBADF, WEIR_E_NOT_OWNED, "has freed the block"},
        {EMFILE, WEIR_E_HOST_MEMORY, "ulimit -n"},
        {ENFILE, WEIR_E_HOST_MEMORY, "ulimit -n"},
        {ENOMEM, WEIR_E_HOST_MEMORY, "memory"},
    };
    char text[256], device[WEIR_UUID_BYTES];

    CU(weir__driver_uuid(driver, 0, device));
    snprintf(text, sizeof text, "weir-ipc-1:model:%ld:%llu:%llu:%s:3.1.2097152", (long)getppid(),
             (unsigned long long)weir__process_start(getppid()),
             (unsigned long long)weir__process_namespace(), device);
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        denied_with = answers[i].error;
        denied_call = 434;
        turned_down(answers[i].status, text, answers[i].why);
        denied_call = 438;
        turned_down(answers[i].status, text, answers[i].why);
    }
    denied_call = 0;
}
#endif

SUITE("ipc refused", CK_FORK);
