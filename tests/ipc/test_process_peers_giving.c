/* SPDX-License-Identifier: MIT */
/* test_process_peers_giving.c: a process frees idle memory for another process that needs it. */
#include "test_process_peers.h"

CASE("giving", 60, set_up_peers, tear_down_peers);

TEST_EACH(3, test_idle_reserve_goes_to_who_needs_it) {
    struct child idle, needy;
    struct figures f;
    char words[64];

    start(&idle, "%d", kinds[_i]);
    start(&needy, "%d", kinds[_i]);
    fill_peer(&idle, 896);
    for (int i = 0; i < 6; i++) /* a region is larger than the request */
        expect(&needy, "take 128", "WEIR_OK");
    f = figures_of(&needy);
    ck_assert_uint_eq(f.in_use, 768);
    ck_assert_uint_ge(f.reclaims, 1);
    ck_assert_uint_eq(f.failed_requests, 0);
    ck_assert_uint_ge(f.received_mib, 640);
    f = figures_of(&idle);
    ck_assert_uint_ge(f.releases, 1);
    ck_assert_uint_ge(f.released_mib, 640);
    ck_assert_uint_le(f.reserved, 256);
    /* The events agree with the counters. */
    snprintf(words, sizeof words, "%llu %llu", f.releases, f.released_mib);
    expect(&idle, "releases", words);
    f = figures_of(&needy);
    snprintf(words, sizeof words, "%llu %llu", f.reclaims, f.received_mib);
    expect(&needy, "reclaims", words);
    ck_assert(registries());
    end_peer_child(&idle);
    end_peer_child(&needy);
    ck_assert(!registries());
}

/* The private pool has no users (_i < 4), so its memory is freed; or it has one, whose graphs contain its addresses. */
TEST_EACH(8, test_the_memory_of_a_pool_goes_once_it_has_no_users) {
    static const char *const engines[] = {"pool", "bfc", "mapped", "direct"};
    int has_user = _i >= 4;
    struct child idle, needy;
    char line[32];

    start(&idle, "program");
    snprintf(line, sizeof line, "pool %s 640 %s", engines[_i % 4], has_user ? "used" : "unused");
    expect(&idle, line, "WEIR_OK");
    ck_assert_uint_ge(figures_of(&idle).reserved, 640);
    start(&needy, "0");
    expect(&needy, "take 512", has_user ? "WEIR_E_NO_MEMORY" : "WEIR_OK");
    ck_assert_uint_eq(figures_of(&idle).reserved < 640, !has_user);
}

/* If the block kept other regions too, no process could use their idle memory. */
TEST_EACH(3, test_one_block_keeps_its_region_alone) {
    struct child one, needy;

    start(&one, "%d", kinds[_i]);
    start(&needy, "%d", kinds[_i]);
    fill_peer(&one, 896);
    expect(&one, "take 40", "WEIR_OK");
    expect(&needy, "take 512", "WEIR_OK");
}

/* A share, or keep-free memory, says before another process starts that the device is shared. */
TEST_EACH(2, test_one_block_beside_who_comes_later) {
    struct child one, needy;

    start(&one, "%s", _i == 0 ? "0 limit share:8" : "0 keep-free 32MiB");
    fill_peer(&one, 896);
    expect(&one, "take 40", "WEIR_OK");
    start(&needy, "0");
    expect(&needy, "take 512", "WEIR_OK");
}

TEST_EACH(2, test_without_the_registry_it_is_refused) {
    struct child idle, needy;

    start(&idle, "%s", _i == 0 ? "0 registry off" : "0");
    start(&needy, "%s", _i == 1 ? "0 registry off" : "0");
    fill_peer(&idle, 896);
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    ck_assert_uint_eq(figures_of(&needy).received_mib, 0);
    ck_assert_uint_ge(figures_of(&idle).reserved, 896);
}

TEST(test_what_is_in_use_stays) {
    struct child busy_one, needy;

    start_each("0", &busy_one, &needy);
    peer_allocates(&busy_one, 14, 64);
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    ck_assert_uint_eq(figures_of(&busy_one).in_use, 896);
    ck_assert_uint_eq(figures_of(&busy_one).releases, 0);
    ck_assert_uint_eq(figures_of(&needy).failed_requests, 1);
    expect(&busy_one, "give", "WEIR_OK");
    expect(&needy, "take 512", "WEIR_OK");
}

TEST(test_lower_priority_gives_first) {
    struct child low, high, needy;

    start(&high, "0 priority 7");
    start(&low, "0 priority 2");
    start(&needy, "0");
    fill_peer(&high, 512);
    fill_peer(&low, 384);
    expect(&needy, "take 320", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&low).released_mib, 128);
    ck_assert_uint_eq(figures_of(&high).released_mib, 0);
    expect(&needy, "take 320", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&high).released_mib, 64);
}

/* On a busy machine a process may publish its idle memory too late and be asked last, so one good try is enough. */
TEST(test_most_idle_gives_first) {
    struct child little, much, needy;
    uint64_t given = 0;

    for (int tries = 0; tries < 8; tries++) {
        start_each("0", &little, &much, &needy);
        fill_peer(&little, 320);
        fill_peer(&much, 576);
        expect(&needy, "take 384", "WEIR_OK");
        given = figures_of(&much).released_mib;
        if (figures_of(&little).released_mib == 0 && given >= 224)
            break;
        given = 0;
        end_peer_child(&needy);
        end_peer_child(&much);
        end_peer_child(&little);
    }
    ck_assert_uint_ge(given, 224);
    ck_assert_uint_le(given, 384); /* little more than the missing bytes */
}

/* Work on the device still uses the freed blocks, so their process waits for the work before it releases the memory. */
TEST(test_work_that_uses_it_is_waited_for) {
    struct child idle, needy;

    start(&idle, "0 cache off");
    start(&needy, "0");
    peer_allocates(&idle, 14, 64);
    expect(&idle, "work 50", "busy");
    expect(&idle, "give", "WEIR_OK");
    expect(&needy, "take 512", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&idle).released_mib, 384);
}

/* A trim that fails once in the driver is tried again. */
TEST(test_a_trim_that_fails_once_is_retried) {
    struct child idle, needy;

    start(&idle, "0 cache off");
    start(&needy, "0");
    fill_peer(&idle, 896);
    expect(&idle, "fail", "it will");
    expect(&needy, "take 512", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&idle).released_mib, 384);
}

/* If the driver does not report free memory, one request asks other processes for all bytes. */
TEST(test_what_is_free_is_not_known) {
    struct child idle, needy;

    start_beside(&idle, 960, &needy, "0");
    expect(&needy, "blind", "it is");
    expect(&needy, "take 256", "WEIR_OK");
    ck_assert_uint_eq(figures_of(&needy).reclaims, 1);
    ck_assert_uint_ge(figures_of(&idle).released_mib, 256);
}

/* The request is as large as the limit. */
TEST(test_a_request_is_served_up_to_its_limit) {
    struct child idle, needy;

    start_beside(&idle, 896, &needy, "0 limit 512MiB");
    expect(&needy, "take 512", "WEIR_OK");
}

TEST(test_without_a_wait_nobody_is_asked) {
    struct child idle, needy;

    start_beside(&idle, 896, &needy, "0 recovery-timeout 0");
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    ck_assert_uint_eq(figures_of(&needy).reclaims, 0);
    ck_assert_uint_eq(figures_of(&idle).releases, 0);
}

/* The request needs all of the device, so the other process must free all its memory. */
TEST(test_all_idle_memory_is_freed_for_a_large_request) {
    struct child idle, needy;

    start_beside(&idle, 896, &needy, "0");
    expect(&needy, "take 1024", "WEIR_OK");
    ck_assert_uint_eq(figures_of(&idle).reserved, 0);
}

/* If the request exceeds the process's limit, no other process is asked, with or without keep-free memory. */
TEST_EACH(2, test_no_peer_is_asked_above_the_own_limit) {
    static const char *const words[] = {"0 limit 256MiB cache off",
                                        "0 limit 256MiB keep-free 32MiB cache off"};
    struct child idle, needy;

    start(&needy, "%s", words[_i]);
    expect(&needy, "take 250", "WEIR_OK");
    start(&idle, "0");
    fill_peer(&idle, 768); /* the rest of the device */
    ask_peer(&needy, "take 100");
    ck_assert_str_ne(needy.reply, "WEIR_OK");
    ck_assert_uint_eq(figures_of(&idle).releases, 0);
    ck_assert_uint_eq(figures_of(&needy).reclaims, 0);
}

/* A program without weir may free memory yet, but the request waits no longer than its timeout. */
TEST(test_a_request_waits_until_its_timeout) {
    struct child one, needy;
    uint64_t began;

    start_model(CAPACITY);
    start(&one, "0");
    start(&needy, "0 recovery-timeout 200ms");
    expect(&one, "take 64", "WEIR_OK");
    ck_assert_int_eq(weir__model_shared_alloc(0, CAPACITY, 768 * MIB), 0);
    began = now_ms();
    expect(&needy, "take 256", "WEIR_E_NO_MEMORY");
    ck_assert_uint_ge(now_ms() - began, 20);
    ck_assert_uint_eq(figures_of(&needy).reclaims, 1); /* all retries count as one */
    ck_assert_uint_eq(figures_of(&needy).received_mib, 0);
    weir__model_shared_free(0, 768 * MIB);
    expect(&needy, "take 256", "WEIR_OK");
}

/* The request fits beside the other process's blocks, so it waits for memory that a program without weir frees. */
TEST(test_until_what_fits_is_free) {
    struct child one, needy;

    start_model(CAPACITY);
    start_each("0 cache off", &one, &needy);
    peer_allocates(&one, 8, 64);
    ck_assert_uint_eq(figures_of(&one).in_use, 512);
    ck_assert_int_eq(weir__model_shared_alloc(0, CAPACITY, 256 * MIB), 0);
    send_line(&needy, "take 512");
    sleep_for_ms(100);
    weir__model_shared_free(0, 256 * MIB);
    hears(&needy, "WEIR_OK");
}

/* Returns the MiB that the process has asked others for.  Needs an open driver. */
static uint64_t asked_by(const struct child *c) {
    struct weir_registry_entry says = {0};
    struct weir_slot_file look;
    uint64_t since = weir__registry_now();

    look_at_registry(&look);
    weir__registry_ring(&look);
    for (int slot = 0; says.pid != (uint64_t)c->pid || says.as_of_ns < since;
         slot = (slot + 1) % WEIR_SLOTS) {
        ck_assert_uint_lt(weir__registry_now() - since, 20000 * MS);
        (void)weir__registry_read(&look, slot, &says);
    }
    weir__registry_close(&look);
    return says.requested / MIB;
}

/* A waiting request asks only for the missing bytes, so that the other process keeps the rest of its idle memory. */
TEST(test_who_waits_asks_for_what_it_needs) {
    struct child one, needy;

    start_model(CAPACITY);
    start_each("0 cache off", &one, &needy);
    peer_allocates(&one, 13, 64);
    ck_assert_int_eq(weir__model_shared_alloc(0, CAPACITY, 128 * MIB), 0);
    send_line(&needy, "take 128"); /* 64 MiB are free */
    sleep_for_ms(100);
    expect(&one, "give", "WEIR_OK");
    hears(&needy, "WEIR_OK");
    ck_assert_uint_ge(figures_of(&one).released_mib, 64);
    ck_assert_uint_le(figures_of(&one).released_mib, 256);
}

/* A process that uses the missing memory is asked once (_i 0).  Without other processes the request is repeated for as
 * long as a killed process may take to end (_i 1). */
TEST_EACH(2, test_who_is_refused_has_asked_little) {
    struct child one, needy;

    start_model(CAPACITY);
    start(&needy, "0 cache off");
    if (_i == 0) {
        start(&one, "0 cache off");
        peer_allocates(&one, 13, 64);
    } else {
        ck_assert_int_eq(weir__model_shared_alloc(0, CAPACITY, 832 * MIB), 0);
    }
    expect(&needy, "take 256", "WEIR_E_NO_MEMORY");
    ck_assert_uint_ge(asked_by(&needy), _i == 0 ? 64 : 2 * 64);
    ck_assert_uint_le(asked_by(&needy), _i == 0 ? 256 : 7 * 256);
    ck_assert_uint_eq(figures_of(&needy).reclaims, _i == 0);
}

static struct weir_slot_file registry;
static struct weir_registry_entry entry;

/* Asks the only other process for memory.  Returns the bytes of its answer. */
static uint64_t ask_for(uint64_t bytes) {
    struct weir_registry_entry other;
    uint64_t began = now_ms();
    int slot = 0;

    while (slot == weir__registry_slot(&registry) || !weir__registry_read(&registry, slot, &other))
        ck_assert_int_lt(++slot, WEIR_SLOTS);
    entry.sequence++;
    entry.until_ns = weir__registry_now() + 20000 * MS;
    entry.request[0] = (struct weir_registry_request){(uint64_t)slot, other.start, bytes};
    weir__registry_publish(&registry, &entry);
    weir__registry_ring(&registry);
    for (;;) {
        ck_assert(weir__registry_read(&registry, slot, &other));
        for (int i = 0; i < WEIR_REGISTRY_ANSWERS; i++)
            if (other.answer[i].sequence == entry.sequence)
                return other.answer[i].bytes;
        ck_assert_uint_le(now_ms() - began, 20000);
        sleep_for_ms(1);
    }
}

/* Returns the number that the process answers. */
static unsigned long long number_from_child(struct child *child, const char *what) {
    unsigned long long number;

    ask_peer(child, what);
    ck_assert_int_eq(sscanf(child->reply, "%llu", &number), 1);
    return number;
}

/* The process frees all its idle memory, and nothing when it is asked again. */
TEST(test_asked_for_more_than_there_is) {
    struct child idle;

    start(&idle, "0 cache off");
    fill_peer(&idle, 512);
    start_model(CAPACITY);
    open_device_registry(&registry);
    ck_assert_uint_ge(ask_for(4 * GIB), 512 * MIB);
    ck_assert_uint_eq(figures_of(&idle).reserved, 0);
    ck_assert_uint_eq(ask_for(4 * GIB), 0);
    expect(&idle, "take 40", "WEIR_OK"); /* from two units, both in use */
    ck_assert_uint_ge(figures_of(&idle).reserved, 64);
    ck_assert_uint_eq(ask_for(4 * GIB), 0);
    ck_assert_uint_eq(figures_of(&idle).in_use, 40);
    weir__registry_leave(&registry);
    weir__registry_close(&registry);
}

/* Returns the MiB that the process in the first slot could free, as it has published. */
static uint64_t could_give(void) {
    struct weir_registry_entry says = {0};
    struct weir_slot_file look;
    uint64_t since = weir__registry_now();

    look_at_registry(&look);
    weir__registry_ring(&look);
    while (says.as_of_ns < since) {
        ck_assert_uint_lt(weir__registry_now() - since, 20000 * MS);
        (void)weir__registry_read(&look, 0, &says);
    }
    weir__registry_close(&look);
    return says.idle / MIB;
}

/* The use of a tensor has ended, but no call has observed that.  Publishing figures does not complete the free, since a
 * wait for the tensors' lock could delay the figures.  A request of another process gets the memory. */
TEST(test_figures_complete_no_frees_of_tensors) {
    struct child idle;

    start(&idle, "program");
    expect(&idle, "use mapped 256", "WEIR_OK");
    start_model(CAPACITY);
    (void)could_give();
    expect(&idle, "active", "256");
    open_device_registry(&registry);
    ck_assert_uint_ge(ask_for(GIB), 256 * MIB);
    expect(&idle, "active", "0");
    weir__registry_leave(&registry);
    weir__registry_close(&registry);
}

/* A freed tensor waits for work that a capture has held back.  The thread that answers other processes records no event
 * for the tensor, since the program may capture the stream again.  A trim by the program records the event. */
TEST(test_who_gives_records_nothing_on_the_program_s_streams) {
    unsigned long long before;
    struct child idle;

    start(&idle, "program");
    expect(&idle, "capture 256", "WEIR_OK");
    start_model(CAPACITY);
    open_device_registry(&registry);
    before = number_from_child(&idle, "records");
    (void)ask_for(GIB);
    expect(&idle, "active", "256");
    ck_assert_uint_eq(number_from_child(&idle, "records"), before);
    expect(&idle, "trim", "WEIR_OK");
    expect(&idle, "active", "0");
    weir__registry_leave(&registry);
    weir__registry_close(&registry);
}

/* A thread of the program holds the tensors' lock.  In row 1 there is a pool without users. */
TEST_EACH(2, test_figures_do_not_wait_for_the_lock_of_tensors) {
    struct child idle;
    uint64_t idle_mib;

    start(&idle, "program");
    expect(&idle, _i ? "pool mapped 256 unused" : "use mapped 256", "WEIR_OK");
    start_model(CAPACITY);
    idle_mib = could_give();
    ck_assert(!_i || idle_mib >= 256);
    expect(&idle, "hold", "it is held");
    ck_assert_uint_eq(could_give(), idle_mib);
}

/* A pool's memory comes from functions of the program, which may need a lock of the program.  So the thread that
 * answers other processes does not call the functions, but a trim by the program does. */
TEST(test_who_gives_calls_no_source) {
    struct child idle;

    ck_assert_int_eq(setenv("WEIR_CACHE", "off", 1), 0);
    start(&idle, "program");
    expect(&idle, "pool pool 256 source", "WEIR_OK");
    peer_allocates(&idle, 4, 64);
    expect(&idle, "work 50", "busy");
    expect(&idle, "give", "WEIR_OK");
    start_model(CAPACITY);
    open_device_registry(&registry);
    ck_assert_uint_ge(ask_for(GIB), 256 * MIB);
    expect(&idle, "sources", "0");
    expect(&idle, "take 64", "WEIR_OK"); /* else there is nothing to trim */
    expect(&idle, "trim", "WEIR_OK");
    expect(&idle, "sources", "1");
    weir__registry_leave(&registry);
    weir__registry_close(&registry);
}

/* A region is larger than the request, so the first trim frees nothing.  The only pool without users has a live block.
 * So there is nothing to wait for, and this process frees nothing but the region. */
TEST(test_who_has_nothing_to_reclaim_does_not_wait) {
    unsigned long long before;
    struct child idle;

    ck_assert_int_eq(setenv("WEIR_CACHE", "off", 1), 0);
    start(&idle, "program");
    expect(&idle, "pool bfc 64 live", "WEIR_OK");
    peer_allocates(&idle, 1, 512);
    expect(&idle, "give", "WEIR_OK");
    start_model(CAPACITY);
    open_device_registry(&registry);
    before = number_from_child(&idle, "trims");
    ck_assert_uint_ge(ask_for(64 * MIB), 512 * MIB);
    ck_assert_uint_eq(number_from_child(&idle, "trims") - before, 1);
    weir__registry_leave(&registry);
    weir__registry_close(&registry);
}

/* A region is freed as a whole, so memory beside a live block cannot be freed. */
TEST_EACH(6, test_what_lies_beside_a_block_cannot_be_given) {
    static const char *const harden[] = {"", " harden poison"};
    struct child one;
    uint64_t gives;

    start(&one, "%d%s", kinds[_i % 3], harden[_i / 3]);
    start_model(CAPACITY);
    fill_peer(&one, 896);
    ck_assert_uint_eq(could_give(), figures_of(&one).reserved);
    expect(&one, "take 40", "WEIR_OK");
    expect(&one, "take 1", "WEIR_OK");
    gives = could_give();
    ck_assert_uint_lt(gives + 41, figures_of(&one).reserved);
    open_device_registry(&registry);
    ck_assert_uint_eq(ask_for(GIB) / MIB, gives);
    ck_assert_uint_eq(could_give(), 0);
    weir__registry_close(&registry);
}

/* The preallocated memory is one region, which is larger than the part above the share. */
TEST_EACH(2, test_a_region_that_is_part_of_a_share_cannot_be_given) {
    struct child one, two;

    start(&one, "%d limit share prealloc 768MiB%s", KIND_REGIONS, _i == 0 ? "" : " cache off");
    start_model(CAPACITY);
    ck_assert_uint_eq(could_give(), 0); /* preallocated memory stays */
    start(&two, "0 limit share");
    expect(&two, "take 64", "WEIR_OK");
    ck_assert_uint_eq(could_give(), 0);
    ck_assert_uint_eq(figures_of(&one).reserved, 768);
}

TEST(test_several_give_together) {
    struct child idle[3], needy;

    for (int i = 0; i < 3; i++) {
        start(&idle[i], "0");
        fill_peer(&idle[i], 320);
    }
    start(&needy, "0");
    expect(&needy, "take 896", "WEIR_OK");
    for (int i = 0; i < 3; i++)
        ck_assert_uint_ge(figures_of(&idle[i]).released_mib, 192);
}

/* The log has one line, and no process frees memory for another. */
TEST(test_no_registry_can_be_made) {
    char path[96], text[512] = "";
    struct child one, two;
    FILE *file;

    snprintf(path, sizeof path, "%s/said", folder);
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", "/nonexistent/folder", 1), 0);
    ck_assert_ptr_nonnull(freopen(path, "w", stderr));
    start(&one, "0 log warning");
    start(&two, "0 log none");
    fill_peer(&one, 896);
    expect(&two, "take 512", "WEIR_E_NO_MEMORY");
    ck_assert_uint_eq(figures_of(&two).reclaims, 0);
    file = fopen(path, "r");
    ck_assert_ptr_nonnull(fgets(text, sizeof text, file));
    ck_assert_ptr_nonnull(
        strstr(text, "no shared registry of the device's processes (/nonexistent/folder/weir-"));
    ck_assert_ptr_nonnull(strstr(text, ": No such file"));
    ck_assert_ptr_null(fgets(text, sizeof text, file)); /* one line */
    fclose(file);
}
