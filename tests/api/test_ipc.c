/* SPDX-License-Identifier: MIT */
/* test_ipc.c: blocks of the mapped engine that other processes open (weir/share.h), in one process and between two.
 *
 * The other process is this program again: WEIR_TEST_IPC in its environment says what it does.
 */
#include "api/allocator_internal.h"
#include "base/who.h"
#include "tests/fixtures/model_device.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fixtures/blocks.h"
#include "tests/fixtures/deny.h"
#include "tests/fixtures/logged.h"
#include "tests/fixtures/own_file.h"

#define CAPACITY (1 * GIB)
#define UNIT (8 * MIB) /* of physical allocations in `compact` */

static weir_allocator *a;
static char message[512];

static weir_options options_for(int front) {
    weir_options options = options_of(KIND_MAPPED, "model", 0);

    options.packing = WEIR_PACKING_COMPACT;
    options.internal_dependencies = WEIR_SWITCH_OFF;
    options.front = front;
    options.exportable = WEIR_SWITCH_ON;
    options.log = WEIR_LOG_ERROR;
    return options;
}

/* Loops are over these. */
static const int fronts[] = {WEIR_SWITCH_ON, WEIR_SWITCH_OFF};

static void start(void) {
    start_model(CAPACITY);
    catch_log();
}

static void make(int front) {
    weir_options options = options_for(front);

    OK(weir_allocator_create(&options, &a));
}

static void end(void) {
    OK(weir_allocator_destroy(a));
    check_model();
    ck_assert_ptr_null(weir__model_fault());
    MUST_EQ(device_free(), CAPACITY);
}

static void fill(void *at, unsigned char value, size_t bytes) {
    CU(driver->cuMemsetD8Async((uintptr_t)at, value, bytes, A));
    CU(driver->cuStreamSynchronize(A));
}

/* Each MiB has its own value, from `first` on. */
static unsigned char *take_marked(size_t bytes, unsigned char first) {
    unsigned char *block = take(a, bytes, A);

    for (size_t at = 0; at < bytes; at += MIB)
        fill(block + at, (unsigned char)(first + at / MIB), bytes - at < MIB ? bytes - at : MIB);
    return block;
}

static void expect_marked(const unsigned char *at, size_t bytes, unsigned char first) {
    unsigned char *host = malloc(bytes);

    MUST(host != NULL);
    CU(driver->cuMemcpyDtoHAsync(host, (uintptr_t)at, bytes, B));
    CU(driver->cuStreamSynchronize(B));
    for (size_t i = 0; i < bytes; i += MIB)
        MUST_EQ(first_other(host + i, (unsigned char)(first + i / MIB),
                            bytes - i < MIB ? bytes - i : MIB),
                bytes - i < MIB ? bytes - i : MIB);
    free(host);
}

/* The caller frees it. */
static char *text_of(const void *address, size_t *offset) {
    size_t needed = 0, again = 0;
    char *text;

    OK(weir_ipc_make(a, address, NULL, 0, &needed, NULL));
    text = malloc(needed);
    MUST(text != NULL);
    OK(weir_ipc_make(a, address, text, needed, &again, offset));
    MUST(again == needed && strlen(text) == needed - 1);
    return text;
}

static size_t pieces_of(const char *text) {
    size_t pieces = 1;

    for (; *text; text++)
        pieces += *text == ',';
    return pieces;
}

static unsigned char *open_text(const char *text) {
    void *base = NULL;
    int device = -1;
    weir_status status = weir_ipc_open(text, &device, &base, message, sizeof message);

    ck_assert_msg(status == WEIR_OK, "%s: %s", weir_status_name(status), message);
    MUST(device == 0 && base && !message[0]);
    return base;
}

static unsigned char *open_block(const void *block, size_t *offset) {
    char *text = text_of(block, offset);
    unsigned char *base = open_text(text);

    free(text);
    return base;
}

static void turned_down(weir_status wanted, const char *text, const char *why) {
    void *base = &base;
    weir_status status = weir_ipc_open(text, NULL, &base, message, sizeof message);

    ck_assert_msg(status == wanted && base == &base && strstr(message, why), "%s: %s (%s)",
                  weir_status_name(status), message, text);
}

/* ---- one process ------------------------------------------------------------------------------- */

START_TEST(both_sides_see_the_same_bytes) {
    const size_t bytes = 20 * MIB + 4096;
    unsigned char *block, *base;
    size_t offset = 1;
    char *text;

    make(fronts[_i]);
    block = take_marked(bytes, 1);
    text = text_of(block, &offset);
    MUST(pieces_of(text) >= 3);
    base = open_text(text);
    MUST(base + offset != block);
    expect_marked(base + offset, bytes, 1);
    fill(base + offset + UNIT, 99, MIB);
    fill(base + offset + bytes - 4096, 98, 4096);
    expect_marked(block + UNIT, MIB, 99);
    expect_marked(block + bytes - 4096, 4096, 98);
    OK(weir_ipc_close(base));
    EXPECT(WEIR_E_NOT_OWNED, weir_ipc_close(base));
    OK(weir_ipc_close(NULL));
    free(text);
    give(a, block, A);
    ANSWERS(0, lines());
    end();
}
END_TEST

/* Any address of a block gives the block's text; the offset tells where in it. */
START_TEST(an_address_inside) {
    unsigned char *block, *base;
    size_t first = 0, offset = 0;
    char *text, *other;

    make(fronts[_i]);
    block = take_marked(20 * MIB, 1);
    text = text_of(block, &first);
    for (size_t at = MIB; at < 20 * MIB; at += MIB) {
        other = text_of(block + at, &offset);
        MUST(strcmp(text, other) == 0 && offset == first + at);
        free(other);
    }
    other = text_of(block + 20 * MIB - 1, &offset);
    MUST(strcmp(text, other) == 0 && offset == first + 20 * MIB - 1);
    base = open_text(text);
    expect_marked(base + first + 2 * MIB, 18 * MIB, 3);
    OK(weir_ipc_close(base));
    free(text);
    free(other);
    give(a, block, A);
    end();
}
END_TEST

/* A block that ends where a physical allocation does has nothing of the next; one that begins there, nothing before. */
START_TEST(blocks_at_the_borders_of_pieces) {
    unsigned char *block[4], *base;
    char *text[4];
    size_t offset;

    make(WEIR_SWITCH_OFF);
    for (int i = 0; i < 4; i++) {
        block[i] = take_marked(UNIT, (unsigned char)(20 * i));
        text[i] = text_of(block[i], &offset);
        MUST(pieces_of(text[i]) == 1 && offset == 0);
        MUST(i == 0 || strcmp(text[i], text[i - 1]) != 0);
    }
    for (int i = 0; i < 4; i++) {
        base = open_text(text[i]);
        expect_marked(base, UNIT, (unsigned char)(20 * i));
        OK(weir_ipc_close(base));
        give(a, block[i], A);
        free(text[i]);
    }
    end();
}
END_TEST

/* Small blocks share a physical allocation, and so a text. */
START_TEST(blocks_side_by_side) {
    unsigned char *one, *two, *base;
    char *text, *other;
    size_t offset[2];

    make(fronts[_i]);
    one = take(a, 1000, A);
    two = take(a, 1000, A);
    fill(one, 1, 1000);
    fill(two, 2, 1000);
    text = text_of(one, &offset[0]);
    other = text_of(two, &offset[1]);
    MUST(strcmp(text, other) == 0 && offset[1] - offset[0] == (size_t)(two - one));
    base = open_text(text);
    expect_marked(base + offset[0], 1000, 1);
    expect_marked(base + offset[1], 1000, 2);
    OK(weir_ipc_close(base));
    free(text);
    free(other);
    give(a, one, A);
    give(a, two, A);
    end();
}
END_TEST

/* Physical allocations that have moved are exported from where they are now, as often as they move. */
START_TEST(memory_that_was_moved) {
    unsigned char *block[4], *large, *base;
    size_t offset = 0;
    char *before, *after;

    make(WEIR_SWITCH_OFF);
    for (int i = 0; i < 4; i++)
        block[i] = take_marked(UNIT, 1);
    before = text_of(block[0], NULL);
    if (_i == 1)
        busy(A, 5 * MS); /* they move before completion, and leave aliased mappings */
    give(a, block[0], A);
    give(a, block[2], A);
    large = take_marked(2 * UNIT, 100);
    MUST_EQ(reserve(a), 4 * UNIT);
    after = text_of(large, &offset);
    MUST(pieces_of(after) == 2 && offset == 0);
    MUST(strstr(after, strrchr(before, ':') + 1) != NULL); /* the same descriptor */
    base = open_text(after);
    expect_marked(base, 2 * UNIT, 100);
    OK(weir_ipc_close(base));
    free(before);
    free(after);
    give(a, large, A);
    give(a, block[1], A);
    give(a, block[3], A);
    end();
}
END_TEST

/* The descriptor goes with the physical allocation, and the next one's text is another. */
START_TEST(memory_that_goes_back) {
    size_t released = 0;
    unsigned char *block, *base;
    char *text, *other;
#ifdef CAN_DENY
    int before;
#endif

    make(WEIR_SWITCH_OFF);
#ifdef CAN_DENY
    before = files_open();
#endif
    block = take_marked(20 * MIB, 1);
    text = text_of(block, NULL);
    base = open_text(text);
    OK(weir_ipc_close(base));
    give(a, block, A);
    OK(weir_trim(a, 0, &released));
    MUST_EQ(device_free(), CAPACITY);
#ifdef CAN_DENY
    ANSWERS(before, files_open());
#endif
    turned_down(WEIR_E_NOT_OWNED, text, "has freed the block");
    block = take_marked(20 * MIB, 1);
    other = text_of(block, NULL);
    MUST(strcmp(text, other) != 0);
    free(text);
    free(other);
    give(a, block, A);
    end();
}
END_TEST

START_TEST(a_receiver_keeps_the_memory) {
    unsigned char *block, *base;
    size_t released = 0, offset = 0;

    make(fronts[_i]);
    block = take_marked(20 * MIB, 1);
    base = open_block(block, &offset);
    give(a, block, A);
    OK(weir_trim(a, 0, &released));
    MUST(device_free() <= CAPACITY - 20 * MIB);
    block = take_marked(20 * MIB, 200);
    expect_marked(base + offset, 20 * MIB, 1);
    give(a, block, A);
    OK(weir_allocator_destroy(a));
    MUST(device_free() <= CAPACITY - 20 * MIB);
    expect_marked(base + offset, 20 * MIB, 1);
    OK(weir_ipc_close(base));
    check_model();
    MUST_EQ(device_free(), CAPACITY);
}
END_TEST

/* Nothing is unmapped under work, though the receiver does not say on which stream that is. */
START_TEST(a_close_waits_for_the_device) {
    unsigned char *block, *base, *twice;
    size_t offset = 0;

    make(WEIR_SWITCH_ON);
    block = take_marked(MIB, 1);
    base = open_block(block, &offset);
    twice = open_block(block, &offset);
    MUST(base != twice);
    busy(B, 5 * MS);
    CU(driver->cuMemsetD8Async((uintptr_t)base + offset, 5, MIB, B));
    OK(weir_ipc_close(base));
    CU(driver->cuStreamQuery(B));
    expect_marked(twice + offset, MIB, 5);
    refuse_waits();
    EXPECT(WEIR_E_NO_MEMORY, weir_ipc_close(twice));
    weir__model_faults_clear();
    expect_marked(twice + offset, MIB, 5);
    OK(weir_ipc_close(twice));
    give(a, block, A);
    end();
}
END_TEST

START_TEST(a_hardened_block) {
    weir_options options = options_for(WEIR_SWITCH_ON);
    unsigned char *block, *base;
    size_t offset = 0;

    options.harden = WEIR_HARDEN_GUARD | WEIR_HARDEN_POISON;
    OK(weir_allocator_create(&options, &a));
    block = take_marked(20 * MIB, 1);
    base = open_block(block, &offset);
    expect_marked(base + offset, 20 * MIB, 1);
    OK(weir_ipc_close(base));
    give(a, block, A);
    end();
}
END_TEST

/* ---- what is refused --------------------------------------------------------------------------- */

START_TEST(arguments_that_are_wrong) {
    void *block, *base;
    char text[1024] = "as it was";
    size_t needed = 0, offset = 0;

    make(WEIR_SWITCH_ON);
    block = take(a, MIB, A);
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
    give(a, block, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_ipc_make(a, block, NULL, 0, NULL, NULL));
    end();
}
END_TEST

/* A graph's block is no memory of the engine's. */
START_TEST(a_block_of_a_graph) {
    void *block = NULL;
    CUgraph graph;

    make(fronts[_i]);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(weir_alloc(a, MIB, A, &block));
    EXPECT(WEIR_E_NOT_OWNED, weir_ipc_make(a, block, NULL, 0, NULL, NULL));
    OK(weir_free(a, block, A));
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphDestroy(graph));
    end();
}
END_TEST

/* No beginning of a text is one, nor is one with a part that is wrong. */
START_TEST(texts_that_are_wrong) {
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

    make(WEIR_SWITCH_ON);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        turned_down(WEIR_E_PARSE, wrong[i], "not a text of weir_ipc_make");
    block = take(a, 20 * MIB, A);
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
        if (status == WEIR_OK) { /* it ends with a whole piece */
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
    snprintf(word, length + 64, "%s,1.1.2097152", text); /* standard output is no memory */
    turned_down(WEIR_E_NOT_OWNED, word, "is not the block's memory any more");
    *strstr(text, "GPU-") = 'C';
    turned_down(WEIR_E_NO_DEVICE, text, "does not see the block's device CPU-");
    free(text);
    free(word);
    give(a, block, A);
    end();
}
END_TEST

/* As of a process whose number another has now, or which has ended, or is of another namespace. */
START_TEST(senders_that_are_another) {
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
END_TEST

START_TEST(allocators_that_cannot) {
    weir_options options = options_of(KIND_POOL, "model", 0);
    void *block;

    options.log = WEIR_LOG_ERROR;
    options.exportable = WEIR_SWITCH_ON;
    if (_i > 0) {
        options = options_for(WEIR_SWITCH_ON);
        options.exportable = WEIR_SWITCH_DEFAULT;
    }
    OK(weir_allocator_create(&options, &a));
    block = take(a, MIB, A);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_ipc_make(a, block, NULL, 0, NULL, NULL));
    ANSWERS(1, lines());
    MUST(strstr(logged, "needs engine mapped and export on"));
    give(a, block, A);
    end();
}
END_TEST

/* The pool engine's exports are another thing. */
START_TEST(a_mapped_allocator_has_no_files_of_a_pool) {
    weir_shared handle;
    int files[2];
    void *block;

    make(WEIR_SWITCH_ON);
    block = take(a, MIB, A);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_export(a, files));
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_share(a, block, A, &handle));
    give(a, block, A);
    end();
}
END_TEST

static CUresult tell_no_files(int *value, CUdevice_attribute what, CUdevice device) {
    CUresult result = driver->cuDeviceGetAttribute(value, what, device);

    if (what == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
        *value = 0;
    return result;
}

START_TEST(drivers_that_cannot) {
    weir_options options = options_for(WEIR_SWITCH_ON);
    struct weir_driver table = *driver;

    table.capabilities &= ~(unsigned)WEIR_CAP_IPC;
    EXPECT(WEIR_E_NOT_SUPPORTED, weir__allocator_create_on(&table, &options, &a, NULL, 0));
    MUST(lines() == 1 && strstr(logged, "cannot share mapped memory"));
    table = *driver;
    table.cuDeviceGetAttribute = tell_no_files;
    EXPECT(WEIR_E_NOT_SUPPORTED, weir__allocator_create_on(&table, &options, &a, NULL, 0));
    MUST(lines() == 1 && strstr(logged, "cannot share mapped memory"));
    MUST_EQ(device_free(), CAPACITY);
}
END_TEST

/* Whichever driver call fails, both sides can go on, and nothing stays open or mapped. */
START_TEST(a_refusal_leaves_things_as_they_were) {
    unsigned char *block;

    make(fronts[_i]);
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
        met = weir__model_faults_met(NULL);
        weir__model_faults_clear();
        if (base && status != WEIR_OK)
            OK(weir_ipc_close(base));
        give(a, block, A);
        MUST(k < 200 && (k > 10 || met > 0));
    }
    end();
}
END_TEST

/* A program that closes what is not its own: the memory is exported again, under another name. */
START_TEST(numbers_that_are_lost) {
    unsigned char *block, *base;
    char *text, *again;
    int number = -1;

    make(WEIR_SWITCH_ON);
    block = take_marked(MIB, 1);
    text = text_of(block, NULL);
    MUST(sscanf(strrchr(text, ':'), ":%d.", &number) == 1);
    MUST(own_file_put(number));
    turned_down(WEIR_E_NOT_OWNED, text, "is not the block's memory any more");
    again = text_of(block, NULL);
    MUST(strcmp(text, again) != 0);
    base = open_text(again);
    OK(weir_ipc_close(base));
    free(text);
    free(again);
    give(a, block, A);
    end();
    MUST(own_file_is_whole(number));
}
END_TEST

/* ---- what cannot be had ------------------------------------------------------------------------ */

#ifdef CAN_DENY
/* No number is left beyond those that are open. */
static void allow_files(int more) {
    struct rlimit limit;
    int highest = 0;

    for (int i = 0; i < 1000; i++)
        if (fcntl(i, F_GETFD) >= 0)
            highest = i;
    for (int i = 0; i < highest; i++)
        (void)!fcntl(log_file, F_DUPFD_CLOEXEC, i); /* gaps, as well as some more */
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

START_TEST(no_descriptor_is_left) {
    unsigned char *block, *base;
    char *text;
    int before;

    make(WEIR_SWITCH_OFF);
    block = take_marked(20 * MIB, 1);
    allow_files(2); /* of three */
    before = fcntl(log_file, F_DUPFD_CLOEXEC, 0);
    MUST(before >= 0 && close(before) == 0);
    EXPECT(WEIR_E_HOST_MEMORY, weir_ipc_make(a, block, NULL, 0, NULL, NULL));
    MUST_EQ(weir_last_driver_result(), CUDA_SUCCESS);
    ANSWERS(before, fcntl(log_file, F_DUPFD_CLOEXEC, 0)); /* what it had opened is closed */
    close(before);
    allow_all_files();
    text = text_of(block, NULL);
    allow_files(0);
    turned_down(WEIR_E_HOST_MEMORY, text, "no file descriptor is left");
    allow_all_files();
    base = open_text(text);
    expect_marked(base, 20 * MIB, 1);
    OK(weir_ipc_close(base));
    free(text);
    give(a, block, A);
    end();
}
END_TEST

START_TEST(no_host_memory) {
    unsigned char *block;
    char text[1024];

    make(WEIR_SWITCH_OFF);
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
        } else if (status != WEIR_E_NO_MEMORY) { /* of the model's own, too */
            MUST(status == WEIR_E_HOST_MEMORY);
        }
    }
    give(a, block, A);
    end();
}
END_TEST

/* The kernel's answers to calls that take descriptors. */
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

START_TEST(kernels_that_refuse) {
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
END_TEST
#endif

/* ---- two processes ----------------------------------------------------------------------------- */

struct child {
    pid_t pid;
    int to, from;
};

/* The program again, what it is told at 0, what it says at 1. */
static struct child start_child(const char *what) {
    struct child child;
    int down[2], up[2];

    MUST(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
    fflush(stdout);
    child.pid = fork();
    if (child.pid == 0) {
        setenv("WEIR_TEST_IPC", what, 1);
        dup2(down[0], 0);
        dup2(up[1], 1);
        exec_itself((char *[]){(char *)(uintptr_t) "test_ipc", NULL});
        _exit(99);
    }
    MUST(child.pid > 0);
    close(down[0]);
    close(up[1]);
    child.to = down[1];
    child.from = up[0];
    return child;
}

static int ended(const struct child *child) {
    int status = 0;

    close(child->to);
    MUST(waitpid(child->pid, &status, 0) == child->pid);
    close(child->from);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

struct letter {
    uint64_t offset, bytes;
    char text[1024];
};

static int is_filled(const unsigned char *at, unsigned char value, size_t bytes) {
    unsigned char *host = malloc(bytes);
    int is = host && driver->cuMemcpyDtoHAsync(host, (uintptr_t)at, bytes, B) == CUDA_SUCCESS &&
             driver->cuStreamSynchronize(B) == CUDA_SUCCESS &&
             first_other(host, value, bytes) == bytes;

    free(host);
    return is;
}

/* Opens what it is sent, looks, writes; then, once it is told that the sender has freed it, looks again. */
static int be_receiver(void) {
    struct letter letter;
    void *base = NULL;
    char word;

    if (read(0, &letter, sizeof letter) != (ssize_t)sizeof letter)
        return 2;
    if (weir_ipc_open(letter.text, NULL, &base, message, sizeof message) != WEIR_OK) {
        printf("# %s\n", message);
        return strstr(message, "ptrace_scope") ? 77 : 3;
    }
    if (!is_filled((unsigned char *)base + letter.offset, 7, letter.bytes))
        return 4;
    fill((unsigned char *)base + letter.offset, 9, letter.bytes);
    if (write(1, "i", 1) != 1 || read(0, &word, 1) != 1)
        return 5;
    if (!is_filled((unsigned char *)base + letter.offset, 9, letter.bytes))
        return 6;
    return weir_ipc_close(base) == WEIR_OK ? 42 : 7;
}

/* Sends a block, and ends when it is told to. */
static int be_sender(void) {
    struct letter letter = {.bytes = 20 * MIB};
    unsigned char *block;
    size_t offset;
    char word;

    make(WEIR_SWITCH_ON);
    block = take(a, letter.bytes, A);
    fill(block, 7, letter.bytes);
    OK(weir_ipc_make(a, block, letter.text, sizeof letter.text, NULL, &offset));
    letter.offset = offset;
    if (write(1, &letter, sizeof letter) != (ssize_t)sizeof letter)
        return 2;
    return read(0, &word, 1) == 1 ? 42 : 3;
}

/* Outside of Check, whose assertions must not be met. */
static int be_child(const char *what) {
    struct weir_driver_failure failure;

    alarm(20);
    driver = weir__driver_open("model", &failure);
    if (!driver || driver->cuDevicePrimaryCtxRetain(&primary, 0) ||
        driver->cuCtxPushCurrent(primary) || driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING) ||
        driver->cuStreamCreate(&B, CU_STREAM_NON_BLOCKING))
        return 1;
    return strcmp(what, "receive") == 0 ? be_receiver() : be_sender();
}

/* 1: the kernel here lets nobody take descriptors, which the receiver has seen. */
static int is_forbidden(const struct child *child, char *word) {
    if (read(child->from, word, 1) == 1 && *word != '#')
        return 0;
    MUST(ended(child) == 77);
    printf("# skipped: the kernel forbids pidfd_getfd\n");
    return 1;
}

START_TEST(another_process_opens_a_block) {
    struct letter letter = {.bytes = 20 * MIB};
    unsigned char *block;
    struct child child;
    size_t offset = 0, released = 0;
    char word = 0;

    make(fronts[_i]);
    block = take(a, letter.bytes, A);
    fill(block, 7, letter.bytes);
    OK(weir_ipc_make(a, block, letter.text, sizeof letter.text, NULL, &offset));
    letter.offset = offset;
    child = start_child("receive");
    MUST(write(child.to, &letter, sizeof letter) == (ssize_t)sizeof letter);
    if (!is_forbidden(&child, &word)) {
        MUST(word == 'i');
        MUST(is_filled(block, 9, letter.bytes));
        give(a, block, A);
        OK(weir_trim(a, 0, &released));
        block = take(a, letter.bytes, A);
        fill(block, 1, letter.bytes);
        MUST(write(child.to, "x", 1) == 1);
        ANSWERS(42, ended(&child));
    }
    give(a, block, A);
    end();
}
END_TEST

/* A mapping outlives its sender; a text does not. */
START_TEST(a_sender_that_ends) {
    struct child child = start_child("send");
    struct letter letter;
    weir_status status;
    void *base = NULL;
    int ptrace = 0;

    for (size_t have = 0; have < sizeof letter;) {
        ssize_t bytes = read(child.from, (char *)&letter + have, sizeof letter - have);

        MUST(bytes > 0);
        have += (size_t)bytes;
    }
    status = weir_ipc_open(letter.text, NULL, &base, message, sizeof message);
    ptrace = status == WEIR_E_NOT_SUPPORTED;
    MUST(status == WEIR_OK || strstr(message, "ptrace_scope"));
    MUST(write(child.to, "x", 1) == 1);
    ANSWERS(42, ended(&child));
    turned_down(WEIR_E_NOT_OWNED, letter.text, "has ended");
    if (!ptrace) {
        MUST(is_filled((unsigned char *)base + letter.offset, 7, letter.bytes));
        OK(weir_ipc_close(base));
    }
    check_model();
    MUST_EQ(device_free(), CAPACITY);
}
END_TEST

/* A child of fork() has neither side. */
START_TEST(a_forked_child) {
    void *block, *base;
    int status = 0;
    char *text;
    pid_t child;

    make(WEIR_SWITCH_ON);
    block = take(a, MIB, A);
    text = text_of(block, NULL);
    base = open_text(text);
    child = fork();
    if (child == 0) {
        void *none = NULL;

        if (weir_ipc_make(a, block, NULL, 0, NULL, NULL) != WEIR_E_FORKED ||
            weir_ipc_open(text, NULL, &none, NULL, 0) != WEIR_E_FORKED ||
            weir_ipc_close(base) != WEIR_E_FORKED)
            _exit(1);
        _exit(0);
    }
    MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    OK(weir_ipc_close(base));
    free(text);
    give(a, block, A);
    end();
}
END_TEST

int main(void) {
    const int both = sizeof fronts / sizeof fronts[0];
    Suite *suite = suite_create("ipc");
    TCase *tests;

    if (getenv("WEIR_TEST_IPC"))
        return be_child(getenv("WEIR_TEST_IPC"));
    tests = suite_add_case(suite, "one process", 60, start, NULL);
    tcase_add_loop_test(tests, both_sides_see_the_same_bytes, 0, both);
    tcase_add_loop_test(tests, an_address_inside, 0, both);
    tcase_add_test(tests, blocks_at_the_borders_of_pieces);
    tcase_add_loop_test(tests, blocks_side_by_side, 0, both);
    tcase_add_loop_test(tests, memory_that_was_moved, 0, 2);
    tcase_add_test(tests, memory_that_goes_back);
    tcase_add_loop_test(tests, a_receiver_keeps_the_memory, 0, both);
    tcase_add_test(tests, a_close_waits_for_the_device);
    tcase_add_test(tests, a_hardened_block);
    tests = suite_add_case(suite, "refused", 60, start, NULL);
    tcase_add_test(tests, arguments_that_are_wrong);
    tcase_add_loop_test(tests, a_block_of_a_graph, 0, both);
    tcase_add_test(tests, texts_that_are_wrong);
    tcase_add_test(tests, senders_that_are_another);
    tcase_add_loop_test(tests, allocators_that_cannot, 0, 2);
    tcase_add_test(tests, a_mapped_allocator_has_no_files_of_a_pool);
    tcase_add_test(tests, drivers_that_cannot);
    tcase_add_loop_test(tests, a_refusal_leaves_things_as_they_were, 0, both);
    tcase_add_test(tests, numbers_that_are_lost);
#ifdef CAN_DENY
    tcase_add_test(tests, no_descriptor_is_left);
    tcase_add_test(tests, no_host_memory);
    tcase_add_test(tests, kernels_that_refuse);
#endif
    tests = suite_add_case(suite, "two processes", 60, start, NULL);
    tcase_add_loop_test(tests, another_process_opens_a_block, 0, both);
    tcase_add_test(tests, a_sender_that_ends);
    tcase_add_test(tests, a_forked_child);
    return run_suite(suite, CK_FORK);
}
