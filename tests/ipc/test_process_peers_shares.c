/* SPDX-License-Identifier: MIT */
/* test_process_peers_shares.c: shares of the device. */
#include "test_process_peers.h"

static struct weir_slot_file registry;

/* Waits until the limit is `mib` MiB.  A process adapts its share at once, or half a second later. */
static void expect_limit(struct child *c, unsigned mib) {
    uint64_t began = now_ms();
    unsigned is;

    do {
        ask_peer(c, "limit");
        is = (unsigned)atoi(c->reply);
        sleep_for_ms(5);
    } while (is != mib && now_ms() - began < 10000);
    ck_assert_uint_eq(is, mib);
}

CASE("shares", 60, set_up_peers, tear_down_peers);

TEST(test_equal_shares_as_processes_come_and_go) {
    struct child one, two, three;

    start(&one, "0 limit share");
    expect_limit(&one, 1024);
    start(&two, "0 limit share");
    expect_limit(&one, 512);
    expect_limit(&two, 512);
    start(&three, "0"); /* has no share, but counts */
    expect_limit(&one, 320);
    end_by(&three, SIGKILL);
    expect_limit(&one, 512);
    end_peer_child(&two);
    expect_limit(&one, 1024);
}

TEST(test_weighted_shares) {
    struct child heavy, light, none;

    start(&heavy, "0 limit share:3");
    start(&light, "0 limit share:0.5 ");
    start(&none, "0 limit share:0.5");
    expect_limit(&heavy, 768);
    expect_limit(&light, 128);
    expect_limit(&none, 128);
}

TEST(test_a_share_is_never_below_what_is_in_use) {
    struct child full, late;

    start(&full, "0 limit share");
    peer_allocates(&full, 12, 64);
    start(&late, "0 limit share");
    expect_limit(&late, 512);
    expect_limit(&full, 768);
    ck_assert_uint_eq(figures_of(&full).in_use, 768);
    expect(&full, "give", "WEIR_OK");
    expect_limit(&full, 512);
    expect(&late, "take 480", "WEIR_OK");
}

static void until_reserve(struct child *c, uint64_t most) {
    uint64_t began = now_ms();

    while (figures_of(c).reserved > most && now_ms() - began < 20000)
        sleep_for_ms(5);
    ck_assert_uint_le(figures_of(c).reserved, most);
}

/* The mapped engine frees whole physical allocations, and one more if that is needed to come down to the share. */
TEST_EACH(3, test_reserve_above_a_share_goes) {
    struct child full, late;
    const char *also = _i == 2 ? " cache off" : "";
    int kind = _i == 1 ? KIND_MAPPED : KIND_POOL;
    uint64_t began;

    start(&full, "%d limit share%s", kind, also);
    fill_peer(&full, 896);
    expect(&full, "take 40", "WEIR_OK");
    start(&late, "%d limit share%s", kind, also);
    until_reserve(&full, 512);
    ck_assert_uint_ge(figures_of(&full).reserved, 384);           /* no more was freed */
    for (began = now_ms(); figures_of(&full).released_mib < 384;) /* counted after the release */
        ck_assert_uint_lt(now_ms() - began, 20000);
}

/* Memory beside live blocks cannot be freed.  The thread retries and flushes caches only after calls of the program. */
TEST_EACH(2, test_memory_beside_live_blocks_is_retried_only_after_calls) {
    static const char *const ways[] = {"0", "0 harden poison"};
    struct child full, late;
    char before[4096];

    start(&full, "%s limit share:4", ways[_i]);
    for (int i = 0; i < 14; i++)
        expect(&full, i % 2 ? "take 30" : "take 34", "WEIR_OK");
    expect(&full, "half", "WEIR_OK");
    start(&late, "0 limit share:12");
    expect_limit(&late, 768);
    do { /* waits until no more memory is freed */
        ask_peer(&full, "trims");
        snprintf(before, sizeof before, "%s", full.reply);
        sleep_for_ms(200);
        ask_peer(&full, "trims");
    } while (strcmp(full.reply, before) != 0);
    sleep_for_ms(1200); /* the thread checks twice */
    expect(&full, "trims", before);
    expect(&full, "give", "WEIR_OK");
    until_reserve(&full, 256);
}

/* Shares are in units of 32 MiB, and leave 1/64 of the device free. */
TEST(test_preallocated_shares) {
    struct child one, two;

    start(&one, "0 prealloc share");
    ck_assert_uint_eq(figures_of(&one).reserved, 992);
    start(&two, "0 prealloc share");
    ck_assert_uint_le(figures_of(&one).reserved, 512);
    ck_assert_uint_eq(figures_of(&two).reserved, 480);
}

/* Returns how many MiB a process may keep above its share, since it frees whole units or physical allocations. */
static unsigned piece_of_kind(int kind) {
    return kind == KIND_MAPPED ? 40 : 0;
}

/* A process that waits for its turn gets the memory that others have freed meanwhile. */
TEST(test_a_share_asks_when_its_turn_has_come) {
    struct weir_process_lock lock = WEIR_PROCESS_LOCK_NONE;
    char name[WEIR_UUID_BYTES];
    struct child full, two;

    start(&full, "0");
    peer_allocates(&full, 14, 64);
    start_model(CAPACITY);
    ck_assert_int_eq(weir__driver_uuid(driver, 0, name), CUDA_SUCCESS);
    ck_assert_int_eq(weir__process_lock_try(&lock, name), 1);
    start_peer(&two, "0 prealloc share");
    sleep_for_ms(300); /* the process waits for its turn */
    expect(&full, "give", "WEIR_OK");
    weir__process_lock_release(&lock);
    hears(&two, "ready");
    ck_assert_uint_eq(figures_of(&two).reserved, 480);
}

/* Returns 1 if the process has a request now, else 0. */
static int is_asking(const struct child *c) {
    struct weir_registry_entry its;

    for (int slot = 0; slot < 2; slot++)
        if (weir__registry_read(&registry, slot, &its) && its.pid == (uint64_t)c->pid)
            return its.until_ns != 0;
    return 0;
}

static int has_said(const struct child *c) {
    struct pollfd reply = {.fd = fileno(c->from), .events = POLLIN};

    return poll(&reply, 1, 0) != 0;
}

/* Returns the MiB that a process preallocates beside one that answers late. */
static uint64_t share_beside_a_slow_one(void) {
    struct child slow, two;
    uint64_t got;

    start(&slow, "0 prealloc share");
    start_model(CAPACITY);
    look_at_registry(&registry);
    stop(&slow);
    start_peer(&two, "0 prealloc share");
    while (!is_asking(&two) && !has_said(&two))
        sleep_for_ms(1);
    sleep_for_ms(150);
    ck_assert_int_eq(kill(slow.pid, SIGCONT), 0);
    hears(&two, "ready");
    got = figures_of(&two).reserved;
    weir__registry_close(&registry);
    end_peer_child(&two);
    end_peer_child(&slow);
    return got;
}

/* A process that frees much memory may answer late. */
TEST(test_a_share_waits_for_those_that_are_slow) {
    uint64_t got = 0;

    /* The process gives up if no memory was freed for a second, which happens on a busy machine. */
    for (int tries = 0; tries < 8 && got != 480; tries++)
        got = share_beside_a_slow_one();
    ck_assert_uint_eq(got, 480);
}

/* A process that grows again after each release is not asked for ever. */
TEST(test_a_peer_that_grows_again_is_not_asked_for_ever) {
    struct weir_registry_entry two_says = {0};
    struct child one, two;

    start_model(CAPACITY);
    ck_assert_int_eq(weir__model_shared_alloc(0, CAPACITY, 700 * MIB), 0);
    start(&one, "3 work %s/turns 96 96", folder);
    start(&two, "0 prealloc share");
    look_at_registry(&registry);
    for (int slot = 0; two_says.pid != (uint64_t)two.pid; slot++) {
        ck_assert_int_lt(slot, WEIR_SLOTS);
        (void)weir__registry_read(&registry, slot, &two_says);
    }
    ck_assert_uint_ge(two_says.requested, 64 * MIB);
    ck_assert_uint_le(two_says.requested, 1024 * MIB);
    weir__registry_close(&registry);
    weir__model_shared_free(0, 700 * MIB);
}

/* Keep-free memory is not part of a share, and memory that others freed for a share counts.  The mapped engine frees
 * whole physical allocations: here the first process has two, and the larger one is its share. */
TEST_EACH(2, test_preallocated_shares_leave_room) {
    int kind = _i == 0 ? KIND_POOL : KIND_MAPPED;
    struct child one, two;

    start(&one, "%d prealloc share:4 keep-free 128MiB", kind);
    ck_assert_uint_eq(figures_of(&one).reserved, 896);
    start(&two, "%d prealloc share:3 keep-free 128MiB", kind);
    expect(&two, "take 1", "WEIR_OK");
    ck_assert_uint_le(512, figures_of(&one).reserved);
    ck_assert_uint_le(figures_of(&one).reserved, 512 + piece_of_kind(kind));
    ck_assert_uint_eq(figures_of(&one).reserved + figures_of(&two).reserved, 896);
}

TEST(test_weights_that_sum_to_zero_are_refused) {
    struct child one, two;

    start_peer(&one, "0 limit share:0");
    hear(&one);
    ck_assert_ptr_nonnull(strstr(one.reply, "weights of all processes on the device sum to 0"));
    ck_assert_int_eq(WEXITSTATUS(exit_status_of_peer(&one)), 4);
    start(&two, "0 limit share");
    start(&one, "0 limit share:0"); /* its limit is the used memory */
    expect_limit(&two, 1024);
    end_peer_child(&two);
    expect(&one, "take 64", "WEIR_E_LIMIT");
    ask_peer(&one, "why");
    ck_assert_msg(strstr(one.reply, "limit share:0 is 32MiB now, of which 0B is in use|") != NULL,
                  "%s", one.reply);
}

/* A falling share frees preallocated memory, but no block in use. */
TEST(test_a_share_caps_what_was_preallocated) {
    struct child one, two, three;

    start(&one, "0 limit share prealloc 768MiB");
    expect(&one, "take 320", "WEIR_OK");
    start(&two, "0 limit share");
    expect_limit(&one, 512);
    until_reserve(&one, 512);
    start(&three, "0 limit share");
    expect_limit(&two, 320);
    until_reserve(&one, 352); /* the block in use, in whole units */
    expect(&one, "give", "WEIR_OK");
    until_reserve(&one, 320);
}

/* A limit that the program sets replaces the share, and frees nothing. */
TEST(test_a_limit_in_place_of_a_share) {
    struct child one, two;

    start(&one, "0 limit share prealloc 768MiB");
    expect(&one, "set-limit 640", "WEIR_OK");
    start(&two, "0 limit share");
    expect_limit(&two, 512);
    sleep_for_ms(100); /* the thread has looked again */
    ck_assert_uint_eq(figures_of(&one).reserved, 768);
    expect_limit(&one, 640);
}

/* A larger preallocation is reduced to the share. */
TEST(test_a_share_caps_what_is_preallocated) {
    struct child one, two;

    start(&one, "0 limit share");
    start(&two, "0 limit share prealloc 768MiB");
    ck_assert_uint_eq(figures_of(&two).reserved, 512);
}

/* Memory that a setting in bytes keeps stays, whatever the share is. */
TEST_EACH(2, test_reserve_that_was_promised_stays) {
    static const char *const ways[] = {"0 limit share prealloc 512MiB prealloc-min 512MiB",
                                       "0 limit share release-threshold 512MiB prealloc 512MiB"};
    struct child one, two, three;

    start(&one, "%s", ways[_i]);
    start_each("0 limit share", &two, &three);
    expect_limit(&one, 320);
    sleep_for_ms(100); /* the thread has looked again */
    ck_assert_uint_eq(figures_of(&one).reserved, 512);
    ck_assert_uint_eq(figures_of(&one).releases, 0);
}

/* The share of the process is preallocated. */
TEST_EACH(3, test_reserve_that_was_promised_stays_beside_a_share) {
    static const char *const ways[] = {
        "0 prealloc share", "0 prealloc share prealloc-min 512MiB",
        "0 prealloc share release-threshold 512MiB cache off"};
    struct child one, others[3], needy;

    start(&one, "%s", ways[_i]);
    if (_i == 0)
        expect(&one, "preallocate 512", "WEIR_OK");
    for (int i = 0; i < 3; i++)
        start(&others[i], "0");
    start(&needy, "0");
    expect(&needy, "take 320", "WEIR_OK");
    expect(&needy, "take 600", "WEIR_E_NO_MEMORY");
    ck_assert_uint_ge(figures_of(&one).reserved, 512);
}

/* A share resizes no allocator without a share, and none on a lost device. */
TEST(test_shares_are_of_those_that_have_one) {
    struct child one, two, three;

    start(&one, "0 limit share");
    expect(&one, "also 0", "WEIR_OK");
    start(&two, "0 limit share");
    expect_limit(&one, 512);
    expect(&one, "lose", "WEIR_E_DEVICE_LOST");
    start(&three, "0 limit share");
    expect_limit(&two, 320);
    sleep_for_ms(100);
    expect(&one, "take 1", "WEIR_E_DEVICE_LOST");
}
