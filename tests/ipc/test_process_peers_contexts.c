/* SPDX-License-Identifier: MIT */
/* test_process_peers_contexts.c: processes free memory for contexts of others, and keep some of the device free. */
#include "test_process_peers.h"

static struct weir_slot_file registry;
static struct weir_registry_entry entry;

/* ---- room for contexts --------------------------------------------------------------------------- */

/* MiB of a context and of a device, as on a GPU. */
enum { CONTEXT = 512, LARGE = 8192 };

/* Makes contexts take memory in processes that start from now on. */
static void charge_contexts(void) {
    char path[128];
    FILE *file;

    snprintf(path, sizeof path, "%s/profile", folder);
    file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "capacity = %llu\ncontext_bytes = %llu\n", LARGE * (unsigned long long)MIB,
            CONTEXT * (unsigned long long)MIB);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(setenv("WEIR_MODEL_PROFILE", path, 1), 0);
}

/* Makes the process reserve idle memory until less than a context is free. */
static void fill_device(struct child *c) {
    for (int i = 0; i < (LARGE - CONTEXT - CONTEXT / 2) / 256; i++)
        expect(c, "take 256", "WEIR_OK");
    expect(c, "give", "WEIR_OK");
    ck_assert_uint_gt(figures_of(c).reserved, LARGE - 2 * CONTEXT);
}

CASE("contexts", 60, set_up_peers, tear_down_peers);

TEST_EACH(3, test_a_context_opens_beside_idle_memory) {
    struct child idle, needy;

    charge_contexts();
    start(&idle, "%d", kinds[_i]);
    fill_device(&idle);
    start(&needy, "%d", kinds[_i]);
    expect(&needy, "take 256", "WEIR_OK");
}

/* The first share is the whole device, and falls when others come.  The mapped engine frees pieces of 512 MiB. */
TEST_EACH(2, test_contexts_beside_preallocated_shares) {
    struct child c[3];
    unsigned long long sum = 0;

    charge_contexts();
    for (int i = 0; i < 3; i++) {
        start(&c[i], "%d prealloc share", _i == 0 ? KIND_POOL : KIND_MAPPED);
        expect(&c[i], "take 64", "WEIR_OK");
    }
    for (int i = 0; i < 3; i++) {
        unsigned long long reserve = figures_of(&c[i]).reserved;

        ck_assert_uint_ge(reserve, LARGE / 3 - 4 * CONTEXT);
        sum += reserve;
    }
    ck_assert_uint_le(sum, LARGE - 3 * CONTEXT - LARGE / 64);
}

/* The program has no allocator yet. */
TEST(test_a_programs_context_beside_a_preallocated_share) {
    struct child one, late;
    struct figures f;

    charge_contexts();
    start(&one, "0 prealloc share");
    start_peer(&late, "program");
    hears(&late, "CUDA_ERROR_OUT_OF_MEMORY");
    hears(&late, "ready");
    f = figures_of(&one);
    ck_assert_uint_ge(f.released_mib, CONTEXT);
    ck_assert_uint_ge(f.reserved, LARGE / 2 - LARGE / 64);
}

/* The share of the first process falls when another one joins, and the memory above it is freed before the first
 * process is asked.  So its answer is 0 bytes, but the context opens. */
TEST_EACH(2, test_a_context_opens_if_shares_fell_for_it) {
    struct child one, late;

    charge_contexts();
    start(&one, "0 limit share prealloc max");
    ck_assert_uint_gt(figures_of(&one).reserved, LARGE - 2 * CONTEXT);
    if (_i == 0) {
        start(&late, "0");
    } else {
        start_peer(&late, "program");
        hears(&late, "CUDA_ERROR_OUT_OF_MEMORY");
        hears(&late, "ready");
    }
    ck_assert_uint_le(figures_of(&one).reserved, LARGE / 2);
}

TEST_EACH(2, test_a_context_without_room_is_explained) {
    char pid[32], said[1024], path[96];
    struct child full, also, less, least, none, needy;
    FILE *file;
    size_t length;

    charge_contexts();
    start_each("0", &full, &also, &less, &least, &none);
    peer_allocates(&full, 16, 256);
    peer_allocates(&also, 4, 256);
    expect(&less, "take 64", "WEIR_OK");
    expect(&least, "take 32", "WEIR_OK");
    if (_i == 0)
        stop(&also);
    snprintf(path, sizeof path, "%s/said", folder);
    ck_assert_ptr_nonnull(freopen(path, "w", stderr));
    start_peer(&needy, _i == 0 ? "0" : "program");
    if (_i == 0) {
        hear(&needy);
        ck_assert_ptr_nonnull(strstr(needy.reply, "cannot open the device's context"));
        ck_assert_int_eq(WEXITSTATUS(exit_status_of_peer(&needy)), 4);
    } else {
        ck_assert_int_eq(WEXITSTATUS(exit_status_of_peer(&needy)), 9);
    }
    file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    length = fread(said, 1, sizeof said - 1, file);
    said[length] = '\0';
    fclose(file);
    ck_assert_msg(strstr(said, "keep-free 1GiB (--keep-free)") != NULL, "%s", said);
    snprintf(pid, sizeof pid, "process %d ", (int)full.pid);
    ck_assert_msg(strstr(said, pid) != NULL, "%s", said);
    ck_assert_msg(strstr(said, "has 4GiB, could release 0B; process ") != NULL, "%s", said);
    snprintf(pid, sizeof pid, "process %d ", (int)also.pid);
    ck_assert_msg(strstr(said, pid) != NULL, "%s", said);
    ck_assert_msg(strstr(said, _i == 0 ? "has 1GiB, could release 0B, is stopped; process "
                                       : "has 1GiB, could release 0B; process ") != NULL,
                  "%s", said);
    ck_assert_ptr_nonnull(strstr(said, "has 64MiB, could release 0B"));
    ck_assert_ptr_null(strstr(said, "32MiB"));
}

/* Acts as a process that has nearly the whole device and does not answer, although it is not stopped. */
static void be_silent(uint64_t capacity) {

    start_model(capacity);
    open_device_registry(&registry);
    entry = (struct weir_registry_entry){
        .reserved = capacity - 128 * MIB, .idle = capacity - 128 * MIB, .command = "silent"};
    weir__registry_publish(&registry, &entry);
    ck_assert_int_eq(weir__model_shared_alloc(0, capacity, capacity - 128 * MIB), 0);
}

CASE("silent", 60, set_up_peers, tear_down_peers);

/* A request (_i 0) or a context (_i 1) of the needy process is refused. */
TEST_EACH(2, test_who_does_not_answer_is_named) {
    char wanted[160];
    struct child needy;

    be_silent(_i == 0 ? CAPACITY : LARGE * MIB);
    if (_i == 0) {
        start(&needy, "0 recovery-timeout 500ms");
        expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
        send_line(&needy, "why");
        snprintf(wanted, sizeof wanted, "|              process %d has 896MiB of it, and %s|",
                 (int)getpid(), "does not answer");
    } else {
        charge_contexts();
        start_peer(&needy, "0");
        snprintf(wanted, sizeof wanted,
                 ": process %d 'silent' has 7.88GiB, could release 7.88GiB, %s", (int)getpid(),
                 "does not answer");
    }
    hear(&needy);
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "%s", needy.reply);
    if (_i == 1)
        ck_assert_int_eq(WEXITSTATUS(exit_status_of_peer(&needy)), 4);
    weir__registry_close(&registry);
}

TEST(test_others_give_beside_a_stopped_one) {
    struct child stopped, idle, needy;

    start_each("0", &stopped, &idle, &needy);
    fill_peer(&stopped, 512);
    fill_peer(&idle, 384);
    stop(&stopped);
    expect(&needy, "take 320", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&idle).released_mib, 192);
    end_by(&stopped, SIGKILL);
    expect(&needy, "take 512", "WEIR_OK"); /* the killed process's memory */
}

TEST(test_a_killed_one_leaves_its_memory) {
    struct child killed, needy;
    uint64_t began;

    start_each("0", &killed, &needy);
    peer_allocates(&killed, 14, 64);
    ck_assert_int_eq(kill(killed.pid, SIGKILL), 0);
    began = now_ms();
    do {
        ask_peer(&needy, "take 512");
    } while (strcmp(needy.reply, "WEIR_OK") != 0 && now_ms() - began < 1000);
    ck_assert_str_eq(needy.reply, "WEIR_OK");
}

/* Starts a process with `mib` MiB, makes its first thread exit and stops it, so that it stays ending. */
static void start_child_that_ends(struct child *c, unsigned mib, struct child *also) {
    start(c, "0");
    if (also)
        start(also, "0 recovery-timeout 2s");
    for (unsigned taken = 0; taken < mib; taken += 64)
        expect(c, "take 64", "WEIR_OK");
    expect(c, "ending", "it is");
    while (state_of(c) != 'Z')
        sleep_for_ms(1);
    stop(c);
}

/* A request waits for an ending process longer than for a live one, even if the ending began before the request. */
TEST_EACH(2, test_who_is_ending_is_waited_for) {
    struct child killed, needy;
    uint64_t began, took;

    start_child_that_ends(&killed, 896, _i == 0 ? &needy : NULL);
    if (_i == 1)
        start(&needy, "0 recovery-timeout 2s");
    began = now_ms();
    send_line(&needy, "take 512");
    sleep_for_ms(400);
    ck_assert_int_eq(kill(killed.pid, SIGKILL), 0);
    hears(&needy, "WEIR_OK");
    took = now_ms() - began;
    ask_peer(&needy, "looks");
    ck_assert_uint_le((uint64_t)atol(needy.reply), 50 + took / 2); /* it sleeps between queries */
}

/* A request waits for an ending process, even if that process still has its slot and answers. */
TEST(test_who_is_ending_keeps_nothing) {
    struct child killed, needy;

    start(&killed, "0");
    start(&needy, "0 recovery-timeout 2s");
    for (unsigned taken = 0; taken < 896; taken += 64)
        expect(&killed, "take 64", "WEIR_OK");
    expect(&killed, "dying", "it is");
    while (state_of(&killed) != 'Z')
        sleep_for_ms(1);
    send_line(&needy, "take 512");
    sleep_for_ms(400);
    ck_assert_int_eq(kill(killed.pid, SIGKILL), 0);
    hears(&needy, "WEIR_OK");
}

/* The live process keeps too much memory in any case. */
TEST(test_a_process_that_is_ending_is_not_waited_for) {
    struct child ending, needy, busy;
    uint64_t began;

    start_child_that_ends(&ending, 64, NULL);
    start_each("0", &busy, &needy);
    peer_allocates(&busy, 10, 64);
    began = now_ms();
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    ck_assert_uint_lt(now_ms() - began, 1000); /* a wait takes two seconds */
    end_by(&ending, SIGKILL);
}

/* The request waits only if the memory and the context of the ending process are enough (_i 1). */
TEST_EACH(2, test_who_is_ending_has_too_little) {
    uint64_t began, others = (uint64_t)6000 * MIB, enough;
    struct child ending, needy;
    char words[32];

    start_model(LARGE * MIB);
    charge_contexts();
    start_child_that_ends(&ending, 64, NULL);
    start(&needy, "0");
    enough = (device_free() - others) / MIB + 1024; /* weir assumes a context of 1 GiB */
    ck_assert_int_eq(weir__model_shared_alloc(0, LARGE * MIB, others), 0);
    snprintf(words, sizeof words, "take %llu",
             (unsigned long long)(_i == 0 ? enough + 65 : enough));
    began = now_ms();
    send_line(&needy, words);
    if (_i == 1) {
        sleep_for_ms(200);
        weir__model_shared_free(0, others);
    }
    hear(&needy);
    ck_assert_str_eq(needy.reply, _i == 0 ? "WEIR_E_NO_MEMORY" : "WEIR_OK");
    if (_i == 0) {
        ck_assert_uint_lt(now_ms() - began, 1000);
        weir__model_shared_free(0, others);
    }
    end_by(&ending, SIGKILL);
}

/* No process is ending, and the driver refuses free memory. */
TEST(test_nobody_is_waited_for_where_nobody_is) {
    struct child needy;
    uint64_t began;

    start(&needy, "0");
    expect(&needy, "refuse", "it will");
    began = now_ms();
    expect(&needy, "take 64", "WEIR_E_NO_MEMORY");
    ck_assert_uint_lt(now_ms() - began, 1000);
}

/* A process that has been ending for two seconds is no longer waited for. */
TEST(test_who_does_not_come_to_its_end) {
    struct child ending[2], needy;
    uint64_t began;

    start_child_that_ends(&ending[0], 448, &needy);
    start_child_that_ends(&ending[1], 448, NULL);
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    sleep_for_ms(500);
    for (int i = 0; i < 3; i++) {
        began = now_ms();
        expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
        ck_assert_uint_lt(now_ms() - began, 1000);
    }
    for (int i = 0; i < 2; i++)
        end_by(&ending[i], SIGKILL);
}

/* A killed process frees all its memory, whether the request waits for it (the last row) or has not asked it yet. */
TEST_WHERE(8, 23, NULL, test_who_dies_gives_all) {
    struct child killed, needy;

    start_each("0", &killed, &needy);
    peer_allocates(&killed, 14, 64);
    stop(&killed);
    send_line(&needy, "take 512");
    sleep_for_ms(_i < 22 ? _i : 100);
    ck_assert_int_eq(kill(killed.pid, SIGKILL), 0);
    hears(&needy, "WEIR_OK");
}

TEST_EACH(2, test_the_file_is_ruined_meanwhile) {
    struct child idle, needy;
    char command[200];
    uint64_t began;

    start_beside(&idle, 896, &needy, "0");
    snprintf(command, sizeof command,
             _i == 0 ? "truncate -s 0 %s/weir-*registry*" : "rm %s/weir-*registry*", folder);
    ck_assert_int_eq(system(command), 0);
    began = now_ms();
    do { /* the needy process makes a new file, and the idle one joins it */
        ask_peer(&needy, "take 512");
    } while (strcmp(needy.reply, "WEIR_OK") != 0 && now_ms() - began < 5000);
    ck_assert_str_eq(needy.reply, "WEIR_OK");
    ck_assert_uint_ge(figures_of(&idle).released_mib, 384);
}

/* ---- keep-free memory ---------------------------------------------------------------------------- */

CASE("shares", 60, set_up_peers, tear_down_peers);

TEST_EACH(3, test_growth_leaves_room) {
    struct child c;
    unsigned taken = 0;

    start(&c, "%d keep-free 256MiB", kinds[_i]);
    do {
        ask_peer(&c, "take 32");
        taken += 32;
    } while (strcmp(c.reply, "WEIR_OK") == 0);
    ck_assert_str_eq(c.reply, "WEIR_E_LIMIT");
    ck_assert_uint_ge(taken, 640);
    ck_assert_uint_le(figures_of(&c).reserved, 768);
}

/* Idle memory of another process is freed before a request is refused to keep memory free. */
TEST_EACH(3, test_idle_reserve_goes_to_who_leaves_room) {
    struct child idle, needy;
    struct figures f;

    start(&idle, "%d keep-free 128MiB", kinds[_i]);
    start(&needy, "%d keep-free 128MiB", kinds[_i]);
    fill_peer(&idle, 768);
    peer_allocates(&needy, 4, 128);
    f = figures_of(&needy);
    ck_assert_uint_eq(f.failed_requests, 0);
    ck_assert_uint_ge(f.received_mib, 384);
    ck_assert_uint_le(f.reserved + figures_of(&idle).reserved, 896);
    expect(&needy, "take 512", "WEIR_E_LIMIT");
}

/* A program without weir allocates memory, and frees it. */
TEST(test_room_is_measured) {
    struct child c;

    start_model(CAPACITY);
    start(&c, "0 keep-free 256MiB");
    ck_assert_int_eq(weir__model_shared_alloc(0, CAPACITY, 512 * MIB), 0);
    expect(&c, "take 128", "WEIR_OK");
    expect(&c, "take 256", "WEIR_E_LIMIT");
    weir__model_shared_free(0, 512 * MIB);
    expect(&c, "take 256", "WEIR_OK");
}

TEST_EACH(2, test_more_than_there_is) {
    struct child c;

    start_peer(&c, _i == 0 ? "0 keep-free 2GiB" : "0 keep-free max");
    hear(&c);
    ck_assert_ptr_nonnull(strstr(c.reply, _i == 0 ? "keep-free '2GiB' is above the device's 1GiB"
                                                  : "keep-free 'max' is above the device's 1GiB"));
    ck_assert_int_eq(WEXITSTATUS(exit_status_of_peer(&c)), 4);
}
