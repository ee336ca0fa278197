/* SPDX-License-Identifier: MIT */
/* test_ipc.c: blocks of the mapped engine that are shared (weir/share.h), in one process and between two.
 *
 * The other process is this program again.  WEIR_TEST_IPC in its environment selects its part. */
#include "tests/fixtures/deny.h"
#include "tests/fixtures/exported.h"
#include "tests/fixtures/piped_child.h"

CASE("one process", 60, start_exporting_device, end_exporter_if_there);

TEST_EACH(ROWS(caches), both_sides_see_the_same_bytes) {
    const size_t bytes = 20 * MIB + 4096;
    unsigned char *block, *base;
    size_t offset = 1;
    char *text;

    make_exporter(caches[_i]);
    block = take_marked(bytes, 1);
    text = text_of(block, &offset);
    MUST(pieces_of(text) >= 3);
    base = open_exported_text(text);
    MUST(base + offset != block);
    expect_marked(base + offset, bytes, 1);
    fill_range(base + offset + UNIT, 99, MIB);
    fill_range(base + offset + bytes - 4096, 98, 4096);
    expect_marked(block + UNIT, MIB, 99);
    expect_marked(block + bytes - 4096, 4096, 98);
    OK(weir_ipc_close(base));
    EXPECT(WEIR_E_NOT_OWNED, weir_ipc_close(base));
    OK(weir_ipc_close(NULL));
    free(text);
    free_to(a, block, A);
    ANSWERS(0, lines());
}

/* Any address inside a block gives the block's text, and an offset into the text's memory. */
TEST_EACH(ROWS(caches), an_address_inside) {
    unsigned char *block, *base;
    size_t first = 0, offset = 0;
    char *text, *other;

    make_exporter(caches[_i]);
    block = take_marked(20 * MIB, 1);
    text = text_of(block, &first);
    for (size_t at = MIB; at < 20 * MIB; at += MIB) {
        other = text_of(block + at, &offset);
        MUST(strcmp(text, other) == 0 && offset == first + at);
        free(other);
    }
    other = text_of(block + 20 * MIB - 1, &offset);
    MUST(strcmp(text, other) == 0 && offset == first + 20 * MIB - 1);
    base = open_exported_text(text);
    expect_marked(base + first + 2 * MIB, 18 * MIB, 3);
    OK(weir_ipc_close(base));
    free(text);
    free(other);
    free_to(a, block, A);
}

/* A block that fills a physical allocation shares nothing of the allocations before and after it. */
TEST(a_block_shares_nothing_of_the_blocks_beside_it) {
    unsigned char *block[4], *base;
    char *text[4];
    size_t offset;

    make_exporter(WEIR_SWITCH_OFF);
    for (int i = 0; i < 4; i++) {
        block[i] = take_marked(UNIT, (unsigned char)(20 * i));
        text[i] = text_of(block[i], &offset);
        MUST(pieces_of(text[i]) == 1 && offset == 0);
        MUST(i == 0 || strcmp(text[i], text[i - 1]) != 0);
    }
    for (int i = 0; i < 4; i++) {
        base = open_exported_text(text[i]);
        expect_marked(base, UNIT, (unsigned char)(20 * i));
        OK(weir_ipc_close(base));
        free_to(a, block[i], A);
        free(text[i]);
    }
}

/* Small blocks share a physical allocation, and therefore a text. */
TEST_EACH(ROWS(caches), blocks_side_by_side) {
    unsigned char *one, *two, *base;
    char *text, *other;
    size_t offset[2];

    make_exporter(caches[_i]);
    one = alloc_block_from(a, 1000, A);
    two = alloc_block_from(a, 1000, A);
    fill_range(one, 1, 1000);
    fill_range(two, 2, 1000);
    text = text_of(one, &offset[0]);
    other = text_of(two, &offset[1]);
    MUST(strcmp(text, other) == 0 && offset[1] - offset[0] == (size_t)(two - one));
    base = open_exported_text(text);
    expect_marked(base + offset[0], 1000, 1);
    expect_marked(base + offset[1], 1000, 2);
    OK(weir_ipc_close(base));
    free(text);
    free(other);
    free_to(a, one, A);
    free_to(a, two, A);
}

/* A physical allocation that has moved is exported from its present address, however often it moves. */
TEST_EACH(2, memory_that_was_moved_is_exported_from_its_new_address) {
    unsigned char *block[4], *large, *base;
    size_t offset = 0;
    char *before, *after;

    make_exporter(WEIR_SWITCH_OFF);
    for (int i = 0; i < 4; i++)
        block[i] = take_marked(UNIT, 1);
    before = text_of(block[0], NULL);
    if (_i == 1)
        busy(A, 5 * MS); /* the move precedes completion, and leaves aliased mappings */
    free_to(a, block[0], A);
    free_to(a, block[2], A);
    large = take_marked(2 * UNIT, 100);
    MUST_EQ(reserved_bytes_of(a), 4 * UNIT);
    after = text_of(large, &offset);
    MUST(pieces_of(after) == 2 && offset == 0);
    MUST(strstr(after, strrchr(before, ':') + 1) != NULL); /* its descriptor did not change */
    base = open_exported_text(after);
    expect_marked(base, 2 * UNIT, 100);
    OK(weir_ipc_close(base));
    free(before);
    free(after);
    free_to(a, large, A);
    free_to(a, block[1], A);
    free_to(a, block[3], A);
}

/* The descriptor is closed with the physical allocation.  The next allocation has another text. */
TEST(a_descriptor_is_closed_with_its_memory) {
    size_t released = 0;
    unsigned char *block, *base;
    char *text, *other;
#ifdef CAN_DENY
    int before;
#endif

    make_exporter(WEIR_SWITCH_OFF);
#ifdef CAN_DENY
    before = files_open();
#endif
    block = take_marked(20 * MIB, 1);
    text = text_of(block, NULL);
    base = open_exported_text(text);
    OK(weir_ipc_close(base));
    free_to(a, block, A);
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
    free_to(a, block, A);
}

TEST_EACH(ROWS(caches), a_receiver_keeps_the_memory) {
    unsigned char *block, *base;
    size_t released = 0, offset = 0;

    make_exporter(caches[_i]);
    block = take_marked(20 * MIB, 1);
    base = open_block(block, &offset);
    free_to(a, block, A);
    OK(weir_trim(a, 0, &released));
    MUST(device_free() <= CAPACITY - 20 * MIB);
    block = take_marked(20 * MIB, 200);
    expect_marked(base + offset, 20 * MIB, 1);
    free_to(a, block, A);
    OK(weir_allocator_destroy(a));
    a = NULL;
    MUST(device_free() <= CAPACITY - 20 * MIB);
    expect_marked(base + offset, 20 * MIB, 1);
    OK(weir_ipc_close(base));
    check_model();
    MUST_EQ(device_free(), CAPACITY);
}

/* A close unmaps nothing that work uses, although the receiver names no stream. */
TEST(a_close_waits_for_the_device) {
    unsigned char *block, *base, *twice;
    size_t offset = 0;

    make_exporter(WEIR_SWITCH_ON);
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
    free_to(a, block, A);
}

TEST(a_hardened_block_can_be_shared) {
    weir_options options = exported_options(WEIR_SWITCH_ON);
    unsigned char *block, *base;
    size_t offset = 0;

    options.harden = WEIR_HARDEN_GUARD | WEIR_HARDEN_POISON;
    OK(weir_allocator_create(&options, &a));
    block = take_marked(20 * MIB, 1);
    base = open_block(block, &offset);
    expect_marked(base + offset, 20 * MIB, 1);
    OK(weir_ipc_close(base));
    free_to(a, block, A);
}

/* ---- two processes ----------------------------------------------------------------------------- */

static struct child start_child(const char *what) {
    return start_piped("test_ipc", "WEIR_TEST_IPC", what);
}

static int exit_status_of_child(const struct child *child) {
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

/* Opens the block of a letter, reads and writes it, and reads it again after the sender has freed it. */
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
    fill_range((unsigned char *)base + letter.offset, 9, letter.bytes);
    if (write(1, "i", 1) != 1 || read(0, &word, 1) != 1)
        return 5;
    if (!is_filled((unsigned char *)base + letter.offset, 9, letter.bytes))
        return 6;
    return weir_ipc_close(base) == WEIR_OK ? 42 : 7;
}

/* Sends a block, and ends when the test says so. */
static int be_sender(void) {
    struct letter letter = {.bytes = 20 * MIB};
    unsigned char *block;
    size_t offset;
    char word;

    make_exporter(WEIR_SWITCH_ON);
    block = alloc_block_from(a, letter.bytes, A);
    fill_range(block, 7, letter.bytes);
    OK(weir_ipc_make(a, block, letter.text, sizeof letter.text, NULL, &offset));
    letter.offset = offset;
    if (write(1, &letter, sizeof letter) != (ssize_t)sizeof letter)
        return 2;
    return read(0, &word, 1) == 1 ? 42 : 3;
}

/* Runs the child's part outside of Check, whose assertions may not be used in a child. */
static int serve_as_importer(const char *what) {
    struct weir_driver_failure failure;

    alarm(20);
    driver = weir__driver_open("model", &failure);
    if (!driver || driver->cuDevicePrimaryCtxRetain(&primary, 0) ||
        driver->cuCtxPushCurrent(primary) || driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING) ||
        driver->cuStreamCreate(&B, CU_STREAM_NON_BLOCKING))
        return 1;
    return strcmp(what, "receive") == 0 ? be_receiver() : be_sender();
}

/* Returns 1 if the receiver reported that the kernel denies descriptors, 0 if not. */
static int child_is_forbidden(const struct child *child, char *word) {
    if (read(child->from, word, 1) == 1 && *word != '#')
        return 0;
    MUST(exit_status_of_child(child) == 77);
    printf("# skipped: the kernel forbids pidfd_getfd\n");
    return 1;
}

CASE("two processes", 60, start_exporting_device, end_exporter_if_there);

TEST_EACH(ROWS(caches), another_process_opens_a_block) {
    struct letter letter = {.bytes = 20 * MIB};
    unsigned char *block;
    struct child child;
    size_t offset = 0, released = 0;
    char word = 0;

    make_exporter(caches[_i]);
    block = alloc_block_from(a, letter.bytes, A);
    fill_range(block, 7, letter.bytes);
    OK(weir_ipc_make(a, block, letter.text, sizeof letter.text, NULL, &offset));
    letter.offset = offset;
    child = start_child("receive");
    MUST(write(child.to, &letter, sizeof letter) == (ssize_t)sizeof letter);
    if (!child_is_forbidden(&child, &word)) {
        MUST(word == 'i');
        MUST(is_filled(block, 9, letter.bytes));
        free_to(a, block, A);
        OK(weir_trim(a, 0, &released));
        block = alloc_block_from(a, letter.bytes, A);
        fill_range(block, 1, letter.bytes);
        MUST(write(child.to, "x", 1) == 1);
        ANSWERS(42, exit_status_of_child(&child));
    }
    free_to(a, block, A);
}

/* A mapping outlives its sender; a text does not. */
TEST(a_mapping_outlives_its_sender) {
    struct child child = start_child("send");
    struct letter letter;
    weir_status status;
    void *base = NULL;
    siginfo_t is;
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
    MUST(waitid(P_PID, (id_t)child.pid, &is, WEXITED | WNOWAIT) == 0);
    turned_down(WEIR_E_NOT_OWNED, letter.text, "has ended"); /* the child is not reaped yet */
    ANSWERS(42, exit_status_of_child(&child));
    turned_down(WEIR_E_NOT_OWNED, letter.text, "has ended");
    if (!ptrace) {
        MUST(is_filled((unsigned char *)base + letter.offset, 7, letter.bytes));
        OK(weir_ipc_close(base));
    }
    check_model();
    MUST_EQ(device_free(), CAPACITY);
}

/* A child of fork() can neither export nor import. */
TEST(a_forked_child_can_neither_export_nor_import) {
    void *block, *base;
    char *text;

    make_exporter(WEIR_SWITCH_ON);
    block = alloc_block_from(a, MIB, A);
    text = text_of(block, NULL);
    base = open_exported_text(text);
    if (is_forked_child()) {
        void *none = NULL;

        _exit(weir_ipc_make(a, block, NULL, 0, NULL, NULL) != WEIR_E_FORKED ||
              weir_ipc_open(text, NULL, &none, NULL, 0) != WEIR_E_FORKED ||
              weir_ipc_close(base) != WEIR_E_FORKED);
    }
    OK(weir_ipc_close(base));
    free(text);
    free_to(a, block, A);
}

int main(void) {
    const char *what = getenv("WEIR_TEST_IPC");

    return what ? serve_as_importer(what) : run_tests("ipc", CK_FORK);
}
