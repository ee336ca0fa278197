/* SPDX-License-Identifier: MIT */
/* test_share.c: blocks that another process uses (weir/share.h), within one process and between two.
 *
 * The other process is this program again: with WEIR_TEST_SHARE in its environment it imports what it inherits, says
 * so, and does what that says.
 */
#include "api/allocator_internal.h"
#include "tests/fixtures/model_device.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fixtures/deny.h"
#include "ipc/lease.h"
#include "tests/fixtures/logged.h"
#include "tests/fixtures/own_file.h"
#include "tests/fixtures/piped_child.h"
#include "tests/fixtures/suite.h"

#define CAPACITY (1 * GIB)
#define BYTES ((size_t)3 << 20)

static weir_allocator *a;
static weir_import *import;
static int files[2];

static weir_options options_for(int front) {
    weir_options options = options_of(KIND_POOL, "model", 512 * MIB);

    options.front = front;
    options.exportable = WEIR_SWITCH_ON;
    options.log = WEIR_LOG_ERROR;
    return options;
}

/* Loops are over these. */
static const int caches[] = {WEIR_SWITCH_ON, WEIR_SWITCH_OFF};

static void start(void) {
    start_model(CAPACITY);
    catch_log();
}

static void make(int front) {
    weir_options options = options_for(front);

    OK(weir_allocator_create(&options, &a));
    OK(weir_export(a, files));
}

static void open_import(void) {
    int device = -1;

    OK(weir_import_create("model", files, &device, &import));
    MUST_EQ(device, 0);
}

static void close_files(void) {
    MUST(close(files[0]) == 0 && close(files[1]) == 0);
}

static void end(void) {
    OK(weir_import_destroy(import));
    OK(weir_allocator_destroy(a));
    close_files();
    check_model();
    MUST_EQ(device_free(), CAPACITY);
}

static unsigned char *take(size_t bytes) {
    void *block = NULL;

    OK(weir_alloc(a, bytes, A, &block));
    CU(driver->cuMemsetD8Async((uintptr_t)block, 7, bytes, A));
    CU(driver->cuStreamSynchronize(A));
    return block;
}

static weir_shared share(void *block) {
    weir_shared handle;

    OK(weir_share(a, block, A, &handle));
    return handle;
}

static unsigned char byte_at(const unsigned char *at) {
    unsigned char byte = 0;

    CU(driver->cuMemcpyDtoHAsync(&byte, (uintptr_t)at, 1, B));
    CU(driver->cuStreamSynchronize(B));
    return byte;
}

/* ---- one process ------------------------------------------------------------------------------- */

CASE("one process", 30, start, NULL);

TEST_EACH(2, both_sides_see_the_same_bytes) {
    unsigned char *block[2], *there[2];
    weir_shared handle[2];

    make(caches[_i]);
    open_import();
    for (int i = 0; i < 2; i++) { /* with the caches they lie in one piece of the driver's */
        block[i] = take(BYTES);
        handle[i] = share(block[i]);
        OK(weir_import_block(import, &handle[i], (void **)&there[i]));
        MUST(there[i] != block[i]);
        MUST(byte_at(there[i]) == 7 && byte_at(there[i] + BYTES - 1) == 7);
    }
    CU(driver->cuMemsetD8Async((uintptr_t)there[0], 1, BYTES, B));
    CU(driver->cuMemsetD8Async((uintptr_t)block[1], 2, BYTES, B));
    CU(driver->cuStreamSynchronize(B));
    MUST(byte_at(block[0]) == 1 && byte_at(block[0] + BYTES - 1) == 1);
    MUST(byte_at(there[1]) == 2);
    OK(weir_import_free(import, there[0], B));
    MUST(byte_at(there[1] + BYTES - 1) == 2);
    EXPECT(WEIR_E_NOT_OWNED, weir_import_free(import, there[0], B));
    OK(weir_import_free(import, there[1], B));
    for (int i = 0; i < 2; i++)
        OK(weir_free(a, block[i], A));
    MUST_EQ(lines(), 0);
    end();
}

TEST_EACH(2, the_importer_frees_first) {
    unsigned char *block, *other;
    weir_shared handle;
    void *there = NULL;

    make(caches[_i]);
    open_import();
    block = take(BYTES);
    other = take(5000);
    handle = share(block);
    OK(weir_import_block(import, &handle, &there));
    EXPECT(WEIR_E_BUSY, weir_free(a, block, A));
    MUST(lines() == 1 && strstr(logged, "another process has"));
    EXPECT(WEIR_E_BUSY, weir_free_any(a, block));
    EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
    OK(weir_free(a, other, A));
    MUST_EQ(byte_at(there), 7);
    EXPECT(WEIR_E_BUSY, weir_import_destroy(import));
    busy(B, 5 * MS);
    OK(weir_import_free(import, there, B));
    CU(driver->cuStreamQuery(B)); /* it waited */
    OK(weir_free(a, block, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, A));
    end();
}

TEST_EACH(2, a_handle_is_imported_once) {
    weir_import *second = NULL;
    weir_shared handle, again, wrong;
    unsigned char *block;
    void *there = NULL, *none = NULL;

    make(caches[_i]);
    open_import();
    OK(weir_import_create("model", files, NULL, &second));
    block = take(BYTES);
    handle = share(block);
    EXPECT(WEIR_E_BUSY, weir_share(a, block, A, &again)); /* it is, already */
    OK(weir_import_block(import, &handle, &there));
    EXPECT(WEIR_E_BUSY, weir_import_block(import, &handle, &none));
    EXPECT(WEIR_E_BUSY, weir_import_block(second, &handle, &none));
    EXPECT(WEIR_E_BUSY, weir_share(a, block, A, &again));
    OK(weir_import_free(import, there, B));
    EXPECT(WEIR_E_NOT_OWNED, weir_import_block(import, &handle, &none));
    OK(weir_share(a, block, A, &again));
    EXPECT(WEIR_E_NOT_OWNED, weir_import_block(second, &handle, &none));
    OK(weir_import_block(second, &again, &there));
    OK(weir_import_free(second, there, B));
    again = share(block);
    OK(weir_free(a, block, A)); /* withdrawn */
    EXPECT(WEIR_E_NOT_OWNED, weir_import_block(import, &again, &none));
    memset(&wrong, 0, sizeof wrong);
    EXPECT(WEIR_E_INVALID, weir_import_block(import, &wrong, &none));
    EXPECT(WEIR_E_INVALID, weir_import_block(import, NULL, &none));
    EXPECT(WEIR_E_INVALID, weir_import_block(NULL, &handle, &none));
    OK(weir_import_free(import, NULL, B));
    OK(weir_import_destroy(NULL));
    MUST(none == NULL);
    OK(weir_import_destroy(second));
    end();
}

TEST_EACH(2, only_what_is_done_is_shared) {
    weir_shared handle;
    unsigned char *block;

    make(caches[_i]);
    open_import();
    block = take(BYTES);
    busy(A, 5 * MS);
    EXPECT(WEIR_E_BUSY, weir_share(a, block, A, &handle));
    CU(driver->cuStreamSynchronize(A));
    EXPECT(WEIR_E_INVALID, weir_share(NULL, block, A, &handle));
    (void)lines();
    EXPECT(WEIR_E_INVALID, weir_share(a, NULL, A, &handle));
    MUST(lines() == 1 && strstr(logged, "weir_share: block is NULL"));
    EXPECT(WEIR_E_INVALID, weir_share(a, block, A, NULL));
    MUST(lines() == 1 && strstr(logged, "weir_share: handle is NULL"));
    EXPECT(WEIR_E_NOT_OWNED, weir_share(a, (void *)(uintptr_t)4096, A, &handle));
    OK(weir_share(a, block, A, &handle));
    OK(weir_free(a, block, A));
    end();
}

TEST(after_the_exporter) {
    weir_import *second = NULL;
    weir_shared handle;
    void *none = NULL;
    unsigned char *block;

    make(WEIR_SWITCH_ON);
    open_import();
    block = take(BYTES);
    handle = share(block);
    OK(weir_free(a, block, A));
    OK(weir_allocator_destroy(a));
    EXPECT(WEIR_E_NOT_OWNED, weir_import_block(import, &handle, &none));
    EXPECT(WEIR_E_NOT_OWNED, weir_import_create("model", files, NULL, &second));
    MUST(!second && !none);
    OK(weir_import_destroy(import));
    close_files();
    MUST_EQ(device_free(), CAPACITY);
}

TEST_EACH(3, who_cannot_export) {
    static const int kinds[] = {KIND_REGIONS, KIND_FIXED, KIND_DIRECT};
    weir_options options = options_of(kinds[_i], "model", 512 * MIB);
    weir_shared handle;

    options.log = WEIR_LOG_ERROR;
    options.exportable = WEIR_SWITCH_ON;
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_allocator_create(&options, &a));
    MUST(lines() == 1 && strstr(logged, "choose engine mapped or pool"));
    options = options_for(WEIR_SWITCH_ON);
    options.exportable = WEIR_SWITCH_DEFAULT;
    OK(weir_allocator_create(&options, &a));
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_export(a, files));
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_share(a, &handle, A, &handle));
    EXPECT(WEIR_E_INVALID, weir_export(NULL, files));
    OK(weir_allocator_destroy(a));
    files[0] = files[1] = 0; /* no such files */
    EXPECT(WEIR_E_INVALID, weir_import_create("model", files, NULL, &import));
    EXPECT(WEIR_E_INVALID, weir_import_create("model", NULL, NULL, &import));
    MUST_EQ(device_free(), CAPACITY);
}

static int kinds_told;
static CUresult kinds_result;

static CUresult tell_kinds(int *value, CUdevice_attribute what, CUdevice device) {
    if (what != CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES)
        return driver->cuDeviceGetAttribute(value, what, device);
    *value = kinds_told;
    return kinds_result;
}

/* Drivers without the calls, devices without files; one that does not know the question may have them. */
TEST(drivers_that_cannot_export) {
    weir_options options = options_for(WEIR_SWITCH_ON);
    struct weir_driver table = *driver;

    table.capabilities &= ~(unsigned)WEIR_CAP_IPC;
    EXPECT(WEIR_E_NOT_SUPPORTED, weir__allocator_create_on(&table, &options, &a, NULL, 0));
    MUST(lines() == 1 && strstr(logged, "the driver and the device cannot share pools") != NULL);
    table = *driver;
    table.cuDeviceGetAttribute = tell_kinds;
    EXPECT(WEIR_E_NOT_SUPPORTED, weir__allocator_create_on(&table, &options, &a, NULL, 0));
    MUST(lines() == 1 && strstr(logged, "the driver and the device cannot share pools") != NULL);
    kinds_result = CUDA_ERROR_INVALID_VALUE;
    OK(weir__allocator_create_on(&table, &options, &a, NULL, 0));
    OK(weir_export(a, files));
    close_files();
    OK(weir_allocator_destroy(a));
    MUST_EQ(lines(), 0);
    MUST_EQ(device_free(), CAPACITY);
}

/* The wrong way round, or one of them twice. */
TEST(files_that_are_no_pair) {
    weir_import *none = NULL;
    int wrong[2];

    make(WEIR_SWITCH_ON);
    open_import();
    wrong[0] = files[1];
    wrong[1] = files[0];
    EXPECT(WEIR_E_INVALID, weir_import_create("model", wrong, NULL, &none));
    wrong[1] = files[1];
    EXPECT(WEIR_E_INVALID, weir_import_create("model", wrong, NULL, &none));
    MUST(!none);
    end();
}

/* Whichever driver call fails, both sides can go on. */
TEST_EACH(2, a_failure_leaves_things_as_they_were) {
    unsigned char *block;

    make(caches[_i]);
    open_import();
    block = take(BYTES);
    for (uint64_t k = 1, met = 1; met > 0; k++) {
        weir_import *second = NULL;
        weir_shared handle;
        weir_status status;
        void *there = NULL;
        int more[2] = {-1, -1};

        weir__model_fail_any(k, 0, CUDA_ERROR_UNKNOWN, 0);
        status = weir_export(a, more);
        if (status == WEIR_OK)
            status = weir_import_create("model", more, NULL, &second);
        if (status == WEIR_OK)
            status = weir_share(a, block, A, &handle);
        if (status == WEIR_OK)
            status = weir_import_block(second, &handle, &there);
        if (status == WEIR_OK)
            status = weir_import_free(second, there, B);
        met = weir__model_faults_met(NULL);
        weir__model_faults_clear();
        if (there && status != WEIR_OK)
            OK(weir_import_free(second, there, B));
        if (second)
            OK(weir_import_destroy(second));
        if (more[0] >= 0)
            MUST(close(more[0]) == 0 && close(more[1]) == 0);
        OK(weir_free(a, block, A));
        block = take(BYTES);
        MUST(k < 200 && (k > 10 || met > 0));
    }
    OK(weir_free(a, block, A));
    end();
}

/* ---- two processes ----------------------------------------------------------------------------- */

/* With the files at 3 and 4. */
static struct child start_child(const char *what) {
    return start_piped("test_share", "WEIR_TEST_SHARE", what, files);
}

static char heard(const struct child *child) {
    char word = 0;

    MUST(read(child->from, &word, 1) == 1);
    return word;
}

static int ended(const struct child *child) {
    int status = 0;

    MUST(waitpid(child->pid, &status, 0) == child->pid);
    close(child->to);
    close(child->from);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

/* What the other process does: says 'i' when it has the block, 'f' when it has given it back. */
static int be_child(const char *what) {
    const struct weir_driver *d;
    struct weir_driver_failure failure;
    const int inherited[2] = {3, 4};
    unsigned char *host = malloc(BYTES);
    weir_shared handle;
    CUcontext context;
    CUstream stream;
    void *block;

    alarm(20);
    if (!host || read(0, &handle, sizeof handle) != (ssize_t)sizeof handle ||
        weir_import_create("model", inherited, NULL, &import) != WEIR_OK ||
        weir_import_block(import, &handle, &block) != WEIR_OK)
        return 2;
    d = weir__driver_open("model", &failure);
    if (!d || d->cuDevicePrimaryCtxRetain(&context, 0) || d->cuCtxPushCurrent(context) ||
        d->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) ||
        d->cuMemcpyDtoHAsync(host, (uintptr_t)block, BYTES, stream) ||
        d->cuStreamSynchronize(stream))
        return 3;
    for (size_t i = 0; i < BYTES; i++)
        if (host[i] != 7)
            return 4;
    if (d->cuMemsetD8Async((uintptr_t)block, 9, BYTES, stream) || write(1, "i", 1) != 1)
        return 5;
    if (strcmp(what, "hold") == 0)
        for (;;)
            pause();
    if (read(0, host, 1) != 1 || weir_import_free(import, block, stream) != WEIR_OK ||
        weir_import_destroy(import) != WEIR_OK || write(1, "f", 1) != 1)
        return 6;
    free(host);
    return 42;
}

CASE("two processes", 30, start, NULL);

TEST_EACH(2, another_process_uses_a_block_and_frees_it) {
    unsigned char *block;
    struct child child;
    weir_shared handle;

    make(caches[_i]);
    block = take(BYTES);
    handle = share(block);
    child = start_child("free");
    MUST(write(child.to, &handle, sizeof handle) == (ssize_t)sizeof handle);
    MUST(heard(&child) == 'i');
    EXPECT(WEIR_E_BUSY, weir_free(a, block, A));
    MUST(write(child.to, "x", 1) == 1);
    MUST(heard(&child) == 'f');
    MUST(byte_at(block) == 9 && byte_at(block + BYTES - 1) == 9);
    OK(weir_free(a, block, A));
    MUST(ended(&child) == 42);
    import = NULL;
    end();
}

TEST(an_importer_that_ended_has_nothing) {
    unsigned char *block;
    struct child child;
    weir_shared handle;

    make(WEIR_SWITCH_ON);
    block = take(BYTES);
    handle = share(block);
    child = start_child("hold");
    MUST(write(child.to, &handle, sizeof handle) == (ssize_t)sizeof handle);
    MUST(heard(&child) == 'i');
    EXPECT(WEIR_E_BUSY, weir_free(a, block, A));
    EXPECT(WEIR_E_BUSY, weir_share(a, block, A, &handle));
    MUST(kill(child.pid, SIGKILL) == 0);
    MUST(ended(&child) == 256 + SIGKILL);
    handle = share(block); /* for another one */
    OK(weir_free(a, block, A));
    import = NULL;
    end();
}

/* ---- what is not available ------------------------------------------------------------------------ */

static struct weir_loans loans;

#ifdef CAN_DENY
enum step { MAKE, OPEN, TAKE, STEPS };

/* The list of loans with the k-th call denied, for each k: it works, or nothing of it is left. */
static void deny_each(enum step step, int for_good) {
    struct weir_loans theirs;
    int before = files_open();
    uint32_t place;
    uint64_t life;

    for (uint64_t k = 1, all = 1; all > 0; k++) {
        weir_status status;

        if (step != MAKE)
            OK(weir__loans_make(&loans, "0123456789abcdef"));
        if (step == TAKE)
            OK(weir__loans_open(&theirs, loans.given.number));
        OK(step == TAKE ? weir__loans_offer(&loans, &place, &life) : WEIR_OK);
        deny(NULL, k, for_good, EIO);
        status = step == MAKE   ? weir__loans_make(&loans, "0123456789abcdef")
                 : step == OPEN ? weir__loans_open(&theirs, loans.given.number)
                                : weir__loans_take(&theirs, place, life);
        all = deny_none();
        MUST(status == WEIR_OK || status == WEIR_E_HOST_MEMORY || status == WEIR_E_INVALID ||
             status == WEIR_E_BUSY);
        if (step != MAKE)
            weir__loans_close(&theirs);
        weir__loans_close(&loans);
        ANSWERS(before, files_open());
    }
}

CASE("refused", 30, start, NULL);

TEST_EACH(2 * STEPS, lists_of_loans_with_each_call_denied) {
    deny_each((enum step)(_i / 2), _i % 2);
}

TEST(exports_that_cannot_be_made) {
    weir_options options = options_for(WEIR_SWITCH_ON);
    unsigned char *block;
    weir_shared handle;
    int before = files_open();

    weir_status status;

    deny("ftruncate", 1, 0, EIO);
    EXPECT(WEIR_E_HOST_MEMORY, weir_allocator_create(&options, &a));
    MUST_EQ(deny_none(), 1);
    for (uint64_t k = 1, met = 1; met; k++) {
        refuse_in = k;
        was_refused = 0;
        status = weir_allocator_create(&options, &a);
        refuse_in = 0;
        met = (uint64_t)was_refused;
        if (status == WEIR_OK)
            OK(weir_allocator_destroy(a));
        else if (status != WEIR_E_NO_MEMORY) /* of the model's own, too */
            ck_assert_int_eq(status, WEIR_E_HOST_MEMORY);
        ANSWERS(before, files_open());
    }
    make(WEIR_SWITCH_ON);
    close_files();
    deny("fcntl", 1, 0, EMFILE);
    EXPECT(WEIR_E_HOST_MEMORY, weir_export(a, files));
    MUST_EQ(deny_none(), 1);
    block = take(BYTES);
    refuse_in = 1;
    EXPECT(WEIR_E_HOST_MEMORY, weir_share(a, block, A, &handle));
    refuse_in = 0;
    weir__model_fail(WEIR_ENTRY_cuStreamQuery, 1, CUDA_ERROR_INVALID_HANDLE, 0);
    EXPECT(WEIR_E_STREAM, weir_share(a, block, A, &handle));
    weir__model_fail(WEIR_ENTRY_cuStreamQuery, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_share(a, block, A, &handle));
    OK(weir_share(a, block, A, &handle));
    OK(weir_free(a, block, A));
    OK(weir_allocator_destroy(a));
    ANSWERS(before, files_open());
}

/* Host memory is refused at each request in turn. */
TEST(imports_without_host_memory) {
    unsigned char *block;
    weir_shared handle;
    void *there = NULL;
    weir_status status;

    make(WEIR_SWITCH_ON);
    block = take(BYTES);
    handle = share(block);
    refuse_in = 1;
    EXPECT(WEIR_E_HOST_MEMORY, weir_import_create("model", files, NULL, &import));
    refuse_in = 0;
    open_import();
    for (uint64_t k = 1, met = 0; !met; k++) {
        refuse_in = k;
        status = weir_import_block(import, &handle, &there);
        met = refuse_in > 0;
        refuse_in = 0;
        MUST(status == (met ? WEIR_OK : WEIR_E_HOST_MEMORY));
    }
    OK(weir_import_free(import, there, B));
    OK(weir_free(a, block, A));
    end();
}
#endif

CASE("refused", 30, start, NULL);

TEST(loans_that_cannot_be_made) {
    struct weir_loans theirs, another;
    uint32_t place, last = 0;
    uint64_t life, nothing = 0;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};

    OK(weir__loans_make(&loans, "0123456789abcdef"));
    OK(weir__loans_open(&theirs, loans.given.number));
    OK(weir__loans_open(&another, loans.given.number));
    for (int i = 0; i < WEIR_LOANS_PLACES; i++)
        OK(weir__loans_offer(&loans, &last, &life));
    EXPECT(WEIR_E_LIMIT, weir__loans_offer(&loans, &place, &life));
    EXPECT(WEIR_E_INVALID, weir__loans_take(&theirs, WEIR_LOANS_PLACES, life));
    EXPECT(WEIR_E_NOT_OWNED, weir__loans_take(&theirs, last, life + 1)); /* of another life */
    lock.l_start = 1 + (off_t)last;
    MUST(fcntl(another.file.number, F_OFD_SETLK, &lock) == 0);
    EXPECT(WEIR_E_BUSY, weir__loans_take(&theirs, last, life)); /* another is about to */
    weir__loans_close(&another);
    OK(weir__loans_take(&theirs, last, life));
    weir__loans_close(&theirs);
    MUST(pwrite(loans.given.number, &nothing, sizeof nothing, 0) == sizeof nothing);
    EXPECT(WEIR_E_INVALID, weir__loans_open(&theirs, loans.given.number)); /* it is no list */
    weir__loans_close(&loans);
}

/* A program that closes what is not its own: nobody gets its file, and none that is shared counts as returned. */
TEST(loans_whose_numbers_are_lost) {
    weir_options options = options_for(WEIR_SWITCH_ON);
    int numbers[2], taken[256], count = 0;
    struct weir_loans theirs;
    uint32_t place;
    uint64_t life;

    OK(weir__loans_make(&loans, "0123456789abcdef"));
    OK(weir__loans_open(&theirs, loans.given.number));
    OK(weir__loans_offer(&loans, &place, &life));
    OK(weir__loans_take(&theirs, place, life));
    numbers[0] = loans.file.number;
    numbers[1] = loans.given.number;
    MUST(own_file_put(numbers[0]) && own_file_put(numbers[1]));
    ANSWERS(0, weir__loans_is_over(&loans, place));
    EXPECT(WEIR_E_BUSY, weir__loans_withdraw(&loans, place));
    weir__loans_give(&theirs, place, 1);
    ANSWERS(1, weir__loans_is_over(&loans, place));
    OK(weir__loans_withdraw(&loans, place));
    weir__loans_close(&theirs);
    weir__loans_close(&loans);
    MUST(own_file_is_whole(numbers[0]) && own_file_is_whole(numbers[1]));
    OK(weir_allocator_create(&options, &a));
    for (int file = 3; file < 256; file++) {
        char link[64], leads[64] = "";

        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        if (readlink(link, leads, sizeof leads - 1) > 0 && strstr(leads, "weir-loans"))
            MUST(own_file_put(taken[count++] = file));
    }
    ANSWERS(2, count);
    EXPECT(WEIR_E_HOST_MEMORY, weir_export(a, files));
    OK(weir_allocator_destroy(a));
    MUST(own_file_is_whole(taken[0]) && own_file_is_whole(taken[1]));
}

/* The second device's, and that of none. */
TEST(devices_are_known_by_name) {
    weir_options options = options_for(WEIR_SWITCH_ON);
    int device = -1, wrong[2];

    ANSWERS(0, weir__model_reset(&(struct weir_model_setup){.devices = 2, .capacity = CAPACITY}));
    options.device = "model:1";
    OK(weir_allocator_create(&options, &a));
    OK(weir_export(a, files));
    OK(weir_import_create("model", files, &device, &import));
    MUST_EQ(device, 1);
    OK(weir_import_destroy(import));
    weir__model_fail(WEIR_ENTRY_cuDeviceGetUuid, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_import_create("model", files, NULL, &import));
    weir__model_fail(WEIR_ENTRY_cuMemPoolImportFromShareableHandle, 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
    EXPECT(WEIR_E_NO_MEMORY, weir_import_create("model", files, NULL, &import));
    OK(weir__loans_make(&loans, "0123456789abcdef"));
    wrong[0] = files[0];
    wrong[1] = loans.given.number;
    EXPECT(WEIR_E_NO_DEVICE, weir_import_create("model", wrong, NULL, &import));
    EXPECT(WEIR_E_INVALID, weir_import_create("model", files, NULL, NULL));
    if (dlopen("libcuda.so.1", RTLD_LAZY) == NULL)
        EXPECT(WEIR_E_NO_DEVICE, weir_import_create(NULL, files, NULL, &import));
    weir__loans_close(&loans);
    OK(weir_allocator_destroy(a));
    close_files();
}

/* A free that the driver has done, but cannot be waited for: the piece is entered again. */
TEST(a_piece_that_is_half_freed) {
    unsigned char *block, *second;
    weir_shared handle;
    void *there = NULL, *other = NULL;

    make(WEIR_SWITCH_ON);
    open_import();
    block = take(BYTES);
    second = take(BYTES);
    handle = share(block);
    EXPECT(WEIR_E_INVALID, weir_import_block(import, &handle, NULL));
    OK(weir_import_block(import, &handle, &there));
    CU(driver->cuStreamBeginCapture(B, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(WEIR_E_CAPTURE, weir_import_free(import, there, B));
    {
        CUgraph graph;

        CU(driver->cuStreamEndCapture(B, &graph));
        CU(driver->cuGraphDestroy(graph));
    }
    weir__model_fail(WEIR_ENTRY_cuStreamSynchronize, 1, CUDA_ERROR_INVALID_HANDLE, 0);
    EXPECT(WEIR_E_STREAM, weir_import_free(import, there, B));
    weir__model_fail(WEIR_ENTRY_cuStreamSynchronize, 2, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_import_free(import, there, B));
    handle = share(second);
    OK(weir_import_block(import, &handle, &other));
    OK(weir_import_free(import, other, B));
    OK(weir_import_free(import, there, B));
    EXPECT(WEIR_E_INVALID, weir_import_free(NULL, there, B));
    OK(weir_free(a, block, A));
    OK(weir_free(a, second, A));
    weir__model_fail(WEIR_ENTRY_cuCtxPushCurrent, 1, CUDA_ERROR_UNKNOWN, 0);
    OK(weir_import_destroy(import)); /* whose pool then goes with the context */
    OK(weir_allocator_destroy(a));
    close_files();
}

/* The list of another exporter. */
TEST(a_handle_of_another) {
    weir_options options = options_for(WEIR_SWITCH_ON);
    weir_allocator *other;
    unsigned char *block;
    weir_shared handle;
    void *there;

    make(WEIR_SWITCH_ON);
    open_import();
    block = take(BYTES);
    OK(weir_allocator_create(&options, &other));
    weir_free(a, block, A);
    {
        weir_allocator *first = a;

        a = other;
        block = take(BYTES);
        handle = share(block);
        OK(weir_free(a, block, A));
        OK(weir_allocator_destroy(a));
        a = first;
    }
    EXPECT(WEIR_E_INVALID, weir_import_block(import, &handle, &there));
    end();
}

/* It is nobody's to share. */
TEST(a_block_of_a_graph) {
    weir_shared handle;
    void *block = NULL;
    CUgraph graph;

    make(WEIR_SWITCH_ON);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(weir_alloc(a, BYTES, A, &block));
    EXPECT(WEIR_E_NOT_OWNED, weir_share(a, block, B, &handle));
    OK(weir_free(a, block, A));
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphDestroy(graph));
    OK(weir_allocator_destroy(a));
    close_files();
}

TEST(a_child_and_a_lost_device) {
    unsigned char *block;
    weir_shared handle;
    weir_import *none;
    void *there;

    make(WEIR_SWITCH_ON);
    open_import();
    block = take(BYTES);
    handle = share(block);
    EXPECT(WEIR_E_INVALID, weir_export(a, NULL));
    MUST(lines() == 1 && strstr(logged, "weir_export: files is NULL"));
    if (is_child())
        _exit(weir_export(a, files) != WEIR_E_FORKED ||
              weir_import_create("model", files, NULL, &none) != WEIR_E_FORKED ||
              weir_import_block(import, &handle, &there) != WEIR_E_FORKED ||
              weir_import_free(import, block, A) != WEIR_E_FORKED ||
              weir_import_destroy(import) != WEIR_E_FORKED);
    weir__model_fail_any(1, 0, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    EXPECT(WEIR_E_DEVICE_LOST, weir_trim(a, 0, NULL));
    weir__model_faults_clear();
    EXPECT(WEIR_E_DEVICE_LOST, weir_share(a, block, A, &handle));
}

int main(void) {
    const char *what = getenv("WEIR_TEST_SHARE");

    return what ? be_child(what) : run_tests("share", CK_FORK_GETENV);
}
